"""Adapters that come and go on two replicas behind a real HAProxy, while clients ask for them."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from clusterctl.node.adapters import Adapters
from clusterctl.node.documents import Member
from clusterctl.node.endpoint import LocalApi
from clusterctl.node.gateway_members import MemberProof
from clusterctl.node.timing import Timing
from tests.fakes.node_bench import await_value
from tests.unit.node.test_gateway import CLUSTER_KEY, GatewayBench, gate, short_path

__all__ = ["gate", "short_path"]

pytestmark = pytest.mark.usefixtures("haproxy")

ADAPTERS, AT_ONCE = 50, 5
SEEDS = range(3)  # One for each client, which keeps its connection
ASKED = "What is the weather like?"


class Operator:
    """Does what `adapter add` and `adapter rm` do: one replica after the other, and the members'
    document after each. The first replica is on the gateway's host, the other on another."""

    def __init__(self, gate: GatewayBench) -> None:
        self._gate = gate
        for replica in gate.replicas:
            replica.name = "tiny"
        apis = [LocalApi("127.0.0.1", each.port, "tiny", CLUSTER_KEY) for each in gate.replicas]
        self._adapters = [Adapters(api, Timing()) for api in apis]
        members = [
            Member(n, host, "127.0.0.1", each.port)
            for n, (host, each) in enumerate(zip("ab", gate.replicas, strict=True), 1)
        ]
        gate.documents["tiny"] = replace(gate.documents["tiny"], members=members)
        gate.follow()
        await_value(lambda: all(one.admitted for one in gate.state().members), "both replicas")

    def change(self, wanted: dict[str, str]) -> None:
        for adapters, replica in zip(self._adapters, self._gate.replicas, strict=True):
            adapters.wanted = dict(wanted)
            has = {name for name, missing in adapters.follow().items() if not missing}
            assert has == set(wanted)
            self._gate.proofs[replica.port] = MemberProof(ready=True, adapters=frozenset(has))
            document = self._gate.documents["tiny"]
            self._gate.documents["tiny"] = replace(document, adapters=dict(wanted))
            self._gate.follow()

    def await_answers(self, status: int, names: Sequence[str]) -> None:
        def answered() -> bool:
            return all(self._gate.post(model=name).status_code == status for name in names)

        await_value(answered, f"{status} for {names}", 60.0)


class Clients:
    """Ask for the model and for adapters, whether they are there or not."""

    def __init__(self, gate: GatewayBench, paths: dict[str, str]) -> None:
        self._gate, self._paths = gate, {"tiny": "tiny", **paths}
        self.offered = {"tiny"}  # Replaced as a whole
        self.lost: list[str] = []
        self.answers: Counter[str] = Counter()
        self._over = threading.Event()

    @contextmanager
    def ask(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask_on, args=(seed,)) for seed in SEEDS]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _ask_on(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - the same in each run
        url = f"http://127.0.0.1:{self._gate.port}/v1/completions"
        key = {"Authorization": f"Bearer {CLUSTER_KEY}"}
        client = httpx2.Client(headers=key, trust_env=False, verify=False, timeout=30)
        while not self._over.is_set():
            name = chance.choice([*self._paths])
            before = self.offered
            try:
                answer = client.post(url, json={"model": name, "prompt": ASKED})
            except httpx2.HTTPError as error:
                self.lost.append(f"{name}: {error!r}")
                continue
            due = name in before & self.offered
            self.answers[f"{'due' if due else 'not due'}: {answer.status_code}"] += 1
            if answer.status_code == 200:
                text = answer.json()["choices"][0]["text"]
                if not text.startswith(f"{self._paths[name]} says"):
                    self.lost.append(f"{name} was answered by {text}")
            elif due or answer.status_code not in (404, 503):
                self.lost.append(f"{name}: {answer.status_code} {answer.text}")
        client.close()


@pytest.mark.timeout(600)
def test_no_request_is_lost_or_answered_by_the_model_itself(
    gate: GatewayBench, tmp_path: Path
) -> None:
    paths = {}
    for number in range(ADAPTERS):
        place = tmp_path / f"adapter-{number}"
        place.mkdir()
        (place / "adapter_config.json").write_text(json.dumps({"r": 8}))
        paths[f"adapter-{number}"] = str(place)
    names = [*paths]
    operator, clients = Operator(gate), Clients(gate, paths)

    with clients.ask():
        wanted: dict[str, str] = {}
        for first in range(0, ADAPTERS, AT_ONCE):
            batch = names[first : first + AT_ONCE]
            wanted |= {name: paths[name] for name in batch}
            operator.change(wanted)
            operator.await_answers(200, batch)
            clients.offered = {"tiny", *wanted}
        listed = {model["id"] for model in gate.get("/v1/models").json()["data"]}
        for first in range(0, ADAPTERS, AT_ONCE):
            batch = names[first : first + AT_ONCE]
            clients.offered = clients.offered - set(batch)
            wanted = {name: paths[name] for name in names[first + AT_ONCE :]}
            operator.change(wanted)
            operator.await_answers(404, batch)

    assert listed == {"tiny", *names}
    assert clients.lost == []
    assert clients.answers["due: 200"] > 500
    for replica in gate.replicas:
        asked = {each.get("model") for each in replica.requests if each.get("prompt") == ASKED}
        assert asked == {"tiny", *names}
