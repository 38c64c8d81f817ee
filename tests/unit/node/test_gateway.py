"""The gateway with a real HAProxy, and replicas that answer like vLLM."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import signal
import socket
import ssl
import string
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clusterctl.deadlines import wait_until
from clusterctl.node import gateway
from clusterctl.node.documents import (
    GatewayMember,
    GatewayState,
    KeysDocument,
    Member,
    MembersDocument,
    NamedKey,
    to_json,
)
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.gateway import Gateway
from clusterctl.node.gateway_members import MemberProof, admission
from clusterctl.node.secret_files import mark, marks
from clusterctl.node.timing import Timing
from clusterctl.steps.gateway_certificate import made
from tests.bench.load import Load, LoadReport, run_load
from tests.fakes.model_server import ModelServer
from tests.fakes.node_bench import await_value
from tests.fakes.ports import port_of, reserved

pytestmark = pytest.mark.usefixtures("haproxy")

CLUSTER_KEY = "c" * 64
READY = MemberProof(ready=True)


class GatewayBench:
    """A gateway over two replicas of `tiny`."""

    def __init__(
        self,
        root: Path,
        port: int,
        key: str = CLUSTER_KEY,
        listen: str = "127.0.0.1",
        listens: str = "",
        proof: MemberProof = READY,
    ) -> None:
        self.port, self.replicas = port, [ModelServer(key), ModelServer(key)]
        self.listen = listen
        self.paths = NodePaths("test", root)
        for directory in (self.paths.config, self.paths.logs, self.paths.state.parent):
            directory.mkdir(parents=True)
        self.paths.api_key.write_text(key)
        self.paths.api_key.chmod(0o600)
        self.documents = {"tiny": self.service("tiny", self.replicas)}
        self.keys: list[NamedKey] = []
        self.proofs = {replica.port: proof for replica in self.replicas}
        timing = Timing(
            tick=0.05,
            connect_every=0.1,
            scrape_every=0.2,
            gateway_silence=2.0,
            gateway_counts_every=0.1,
        )
        journal = Journal(self.paths.journal, "a", io.StringIO())
        self.gateway = Gateway("a", "127.0.0.1", self.paths, timing, journal, listens)
        self.follow()

    def service(self, name: str, replicas: list[ModelServer]) -> MembersDocument:
        members = [Member(n, "a", "127.0.0.1", one.port) for n, one in enumerate(replicas, 1)]
        return MembersDocument(name, [name], self.port, members, listen=self.listen)

    def follow(self) -> None:
        # Copies, as a file is read anew: what was told must not change with this list
        documents, proofs = dict(self.documents), dict(self.proofs)
        self.gateway.follow(documents, KeysDocument([*self.keys]), proofs)

    def state(self) -> GatewayState:
        return self.gateway.state

    def await_up(self) -> None:
        def up() -> bool | None:
            return (self.state().state == "up" and self.health() == 200) or None

        assert wait_until(up, 15.0, every=0.05), self.state()

    def health(self) -> int:
        try:
            return self.get("/health").status_code
        except httpx2.HTTPError:
            return 0

    def get(self, path: str, key: str = CLUSTER_KEY) -> httpx2.Response:
        # As it is: httpx would normalise the path.
        url = httpx2.URL(f"http://127.0.0.1:{self.port}").copy_with(raw_path=path.encode())
        return httpx2.get(url, headers={"Authorization": f"Bearer {key}"}, trust_env=False)

    def post(
        self, key: str = CLUSTER_KEY, path: str = "/v1/completions", **body: Any
    ) -> httpx2.Response:
        return httpx2.post(
            f"http://127.0.0.1:{self.port}{path}",
            headers={"Authorization": f"Bearer {key}"} if key else {},
            json={"messages": "first, as OpenAI's clients have it", "model": "tiny", **body},
            trust_env=False,
            timeout=30,
        )

    def add_key(self, name: str, **limits: Any) -> str:
        """Declare a key and wait until it is in effect."""
        digest = hashlib.sha256(f"sk-{name}".encode()).hexdigest()
        self.keys.append(NamedKey(name, digest, 1.0, **limits))
        self.keys_in_effect()
        return f"sk-{name}"

    def keys_in_effect(self) -> None:
        self.follow()
        wanted = hashlib.sha256(to_json(KeysDocument(self.keys)).encode()).hexdigest()
        await_value(lambda: self.state().keys_in_effect == wanted, "the keys in effect")

    def stop(self) -> None:
        self.gateway.stop()
        for replica in self.replicas:
            replica.release()
            replica.close()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A directory whose path is short enough for a socket's."""
    with tempfile.TemporaryDirectory(prefix="gw") as path:
        yield Path(path)


@pytest.fixture
def gate(short_path: Path) -> Iterator[GatewayBench]:
    with reserved() as port:
        bench = GatewayBench(short_path, port_of(port))
        bench.await_up()
        yield bench
        bench.stop()


def test_a_gateway_that_starts_refuses_connections_until_a_replica_is_ready(
    short_path: Path,
) -> None:
    with reserved() as port:
        bench = GatewayBench(short_path, port_of(port), proof=MemberProof(ready=False))
        began, before = time.monotonic(), []
        while time.monotonic() < began + 1:
            before.append(bench.health())
            time.sleep(0.1)
        bench.proofs[bench.replicas[1].port] = READY
        bench.follow()
        first = wait_until(lambda: bench.health() or None, 10.0, every=0.01)
        took = time.monotonic() - began
        bench.stop()

    assert set(before) == {0}
    assert first == 200
    assert took < Timing().gateway_first


def test_one_without_a_ready_replica_says_so_after_a_while(short_path: Path) -> None:
    with reserved() as port:
        bench = GatewayBench(short_path, port_of(port), proof=MemberProof(ready=False))
        first = wait_until(lambda: bench.health() or None, 10.0, every=0.05)
        bench.stop()

    assert first == 503


def test_requests_are_balanced_and_carry_the_clusters_key_to_replicas(gate: GatewayBench) -> None:
    answers = [gate.post() for _ in range(20)]

    assert [answer.status_code for answer in answers] == [200] * 20
    await_value(lambda: gate.state().served == 20, "20 requests")
    assert [member.requests for member in gate.state().members] == [10, 10]


def test_a_path_that_the_kind_of_model_lacks_is_answered_with_words(gate: GatewayBench) -> None:
    """vLLM's own answer is {"detail":"Not Found"}, which clients show as nothing."""
    for each in gate.replicas:
        each.lacks = "/v1/embeddings"
    answer = gate.post(path="/v1/embeddings", input="a text")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "this model does not offer that path"
    assert gate.post().status_code == 200


def test_an_answer_without_a_path_names_the_kind_of_model_and_what_it_offers(
    gate: GatewayBench,
) -> None:
    for each in gate.replicas:
        each.lacks = "/v1/chat/completions"
        gate.proofs[each.port] = MemberProof(ready=True, kind="embed")
    gate.follow()

    def said() -> str | None:
        answer = gate.post(path="/v1/chat/completions", messages=[])
        assert answer.status_code == 404
        message = str(answer.json()["error"]["message"])
        return message if "it answers" in message else None

    message = wait_until(said, 10.0, every=0.1)

    assert message is not None
    assert message.startswith(
        "this model does not offer that path: it answers embeddings: POST /v1/embeddings, /v2/embed"
    )


def test_a_sound_of_two_gigabytes_is_refused_before_it_is_sent(gate: GatewayBench) -> None:
    head = (
        "POST /v1/audio/transcriptions HTTP/1.1\r\nHost: a\r\n"
        f"Authorization: Bearer {CLUSTER_KEY}\r\nContent-Length: {2 * 2**30}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", gate.port), timeout=10) as connection:
        connection.sendall(head.encode() + b"RIFF")
        answer = connection.recv(4096).decode()

    assert answer.startswith("HTTP/1.1 413 ")
    assert "more than 64 MiB" in answer


@pytest.mark.parametrize(
    "path",
    [
        "/metrics", "/pause", "/server_info", "/collective_rpc", "/invocations", "/tokenize/",
        "/tokenizer_info", "/", "/v1", "/v1/", "//v1/models", "/v1//models",
        "/v1/../metrics", "/v1/./../metrics", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics",
        "/v1%2f..%2fmetrics", "/health/../metrics", "/V1/models", "/v1/models/..;/x",
        "/v1/load_lora_adapter", "/v1/models\\..\\metrics",
    ],
)  # fmt: skip
def test_nothing_but_what_models_offer_is_passed_on(gate: GatewayBench, path: str) -> None:
    answer = gate.get(path)

    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["type"] in ("NotFoundError", "BadRequestError")
    assert [one.paths for one in gate.replicas] == [[], []]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
        "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/audio/transcriptions", "/rerank",
        "/v2/rerank", "/score", "/classify", "/pooling", "/tokenize", "/detokenize",
    ],
)  # fmt: skip
def test_what_models_offer_is_passed_on_with_a_key_alone(gate: GatewayBench, path: str) -> None:
    assert gate.post("wrong", path=path).status_code == 401
    assert [one.paths for one in gate.replicas] == [[], []]

    assert gate.post(path=path).status_code == 200
    assert sorted(one.paths for one in gate.replicas) == [[], [path]]


@pytest.mark.parametrize(
    ("listen", "found"),
    [("", "127.0.0.2"), ("10.0.0.1", "127.0.0.2"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1")],
)
def test_the_gateway_of_another_host_is_where_the_heads_is_and_no_wider(
    short_path: Path, listen: str, found: str
) -> None:
    with reserved() as port:
        bench = GatewayBench(short_path, port_of(port), listen=listen, listens="127.0.0.2")
        listens = await_value(lambda: bench.state().listens, "an address")
        bench.stop()
    assert listens == [f"{found}:{bench.port}"]


def test_a_model_of_two_parts_has_a_path(gate: GatewayBench) -> None:
    assert gate.get("/v1/models/Qwen/Qwen3-8B_x.gguf").json()["path"].endswith("8B_x.gguf")


@pytest.mark.parametrize("key", ["", "wrong", "c" * 63])
def test_no_key_no_answer(gate: GatewayBench, key: str) -> None:
    answer = gate.post(key)

    assert answer.status_code == 401
    assert "Authorization: Bearer" in answer.json()["error"]["message"]
    assert gate.replicas[0].requests == gate.replicas[1].requests == []
    assert gate.health() == 200  # Which needs none


def test_a_key_of_the_users_own_reaches_replicas_as_it_is(short_path: Path) -> None:
    key = "%[src]$HOME\\'\"%#" + string.punctuation
    with reserved() as port:
        bench = GatewayBench(short_path, port_of(port), key)
        bench.await_up()
        assert bench.post(key).status_code == 200
        bench.stop()


def test_a_key_is_in_effect_soon_and_revoked_within_two_seconds(gate: GatewayBench) -> None:
    key = gate.add_key("alice")
    assert gate.post(key).status_code == 200
    assert hashlib.sha256(key.encode()).hexdigest() not in json.dumps(
        gate.state().__dict__, default=str
    )

    gate.keys.clear()
    gate.follow()
    began = time.monotonic()
    await_value(lambda: gate.post(key).status_code == 401, "the key to be refused")

    assert time.monotonic() - began < 2.0
    assert gate.post().status_code == 200
    assert gate.state().restarts == 0


def test_a_revoked_key_is_in_effect_on_connections_from_before_a_reload_too(
    gate: GatewayBench,
) -> None:
    key, url = gate.add_key("alice"), f"http://127.0.0.1:{gate.port}/v1/models"
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.Client(trust_env=False, limits=httpx2.Limits(keepalive_expiry=60)) as client:
        assert client.get(url, headers=headers).status_code == 200
        gate.documents["more"] = gate.service("more", gate.replicas)
        gate.follow()
        await_value(lambda: "more" in str(gate.get("/v1/models").json()), "the reload")
        gate.keys.clear()
        gate.keys_in_effect()

        assert client.get(url, headers=headers).status_code == 401


def test_no_request_is_lost_while_keys_come_and_go(gate: GatewayBench) -> None:
    done = threading.Event()

    def churn() -> None:
        number = 0
        while not done.is_set():
            gate.add_key(f"user{number}")
            number += 1
            del gate.keys[:-2]

    thread = threading.Thread(target=churn)
    thread.start()
    report = run_load(Load(f"http://127.0.0.1:{gate.port}", "tiny", 50, 4, CLUSTER_KEY, 0.5))
    done.set()
    thread.join()

    assert report.lost == 0, report.to_json()


def test_a_limit_of_requests_holds_for_one_key_only(gate: GatewayBench) -> None:
    alice, bob = gate.add_key("alice", requests_per_minute=3), gate.add_key("bob")

    assert [gate.post(alice).status_code for _ in range(5)] == [200] * 3 + [429] * 2
    assert gate.post(bob).status_code == 200
    refused = gate.post(alice)
    assert refused.json()["error"]["type"] == "RateLimitError"
    assert refused.headers["retry-after"] == "21"  # Three in 60 s, rounded up


def test_tokens_are_counted_as_the_replica_reports_them_else_by_events(gate: GatewayBench) -> None:
    alice = gate.add_key("alice")

    gate.post(alice)
    gate.post(alice, stream=True, stream_options={"include_usage": True})
    gate.post(alice, stream=True)

    def counted() -> Any:
        uses = {use.name: use for use in gate.state().keys}
        return uses.get("alice") and uses["alice"].requests == 3 and uses["alice"]

    use = await_value(counted, "three requests of alice")
    assert (use.prompt_tokens, use.completion_tokens, use.tokens_of_day) == (10, 12, 22)
    kept = await_value(lambda: gate.paths.gateway_counts.exists(), "kept counts")
    assert kept


def test_a_limit_of_tokens_holds_and_streams_must_report_theirs(gate: GatewayBench) -> None:
    alice = gate.add_key("alice", tokens_per_day=10)

    refused = gate.post(alice, stream=True)
    assert refused.status_code == 400
    assert "include_usage" in refused.json()["error"]["message"]
    assert gate.post(alice, stream=True, stream_options={"include_usage": True}).status_code == 200
    assert gate.post(alice).status_code == 200  # 9 of 10 were used: it was let in
    await_value(lambda: gate.post(alice).status_code == 429, "the limit", timeout=2.0)


def test_a_stream_that_hides_from_the_gateway_counts_by_its_events(gate: GatewayBench) -> None:
    key = gate.add_key("sly", tokens_per_day=4)
    answer = httpx2.post(
        f"http://127.0.0.1:{gate.port}/v1/completions",
        headers={"Authorization": f"Bearer {key}"},
        content='{"model": "tiny", "stream": false, "stream": true}',
        trust_env=False,
    )

    assert answer.text.count("data: {") == 4
    used = await_value(lambda: gate.state().keys, "a use")
    assert [use.completion_tokens for use in used] == [4]
    await_value(lambda: gate.post(key).status_code == 429, "no more tokens")
    assert 0 < int(gate.post(key).headers["retry-after"]) <= 86400


@contextmanager
def dying(*replicas: ModelServer) -> Iterator[None]:
    """Hold the requests of these, and close their connections 1 s after one has the first, as if
    they were killed."""
    for replica in replicas:
        replica.hold()

    def die() -> None:
        await_value(lambda: any(replica.held.is_set() for replica in replicas), "a request")
        time.sleep(1)
        for replica in replicas:
            replica.release()

    killer = threading.Thread(target=die)
    killer.start()
    yield
    killer.join()


def test_requests_that_a_dying_replica_has_are_answered_by_another(gate: GatewayBench) -> None:
    first = gate.replicas[0]
    url = f"http://127.0.0.1:{gate.port}"

    with dying(first):
        report = run_load(Load(url, "tiny", 20, 1, CLUSTER_KEY))

    assert report.lost == 0, report.to_json()
    assert first.dropped
    await_value(lambda: gate.state().retried == len(first.dropped), "retries")


def test_a_request_that_stores_something_is_not_repeated(gate: GatewayBench) -> None:
    with dying(*gate.replicas):
        answer = httpx2.post(
            f"http://127.0.0.1:{gate.port}/v1/responses",
            headers={"Authorization": f"Bearer {CLUSTER_KEY}"},
            json={"model": "tiny"},
            trust_env=False,
        )

    assert answer.status_code == 502
    assert sum(len(replica.requests) for replica in gate.replicas) == 1


def test_a_member_without_proof_gets_nothing(gate: GatewayBench) -> None:
    gate.proofs[gate.replicas[0].port] = MemberProof(ready=False, why="it is loading")
    gate.follow()
    await_value(lambda: not gate.state().members[0].admitted, "a member that is out")
    time.sleep(0.2)  # HAProxy is told in the same round in which it is reported

    before = len(gate.replicas[0].requests)
    assert {gate.post().status_code for _ in range(10)} == {200}
    assert len(gate.replicas[0].requests) == before
    assert gate.state().members[0].why == "it is loading"

    gate.proofs[gate.replicas[1].port] = MemberProof(ready=False, why="it is loading")
    gate.follow()
    await_value(lambda: gate.health() == 503, "a gateway without members")
    answer = gate.post()
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "ServiceUnavailableError")


def test_requests_in_flight_are_told_of_members_that_get_no_more(gate: GatewayBench) -> None:
    first = gate.replicas[0]
    for replica in gate.replicas:
        replica.hold()
    url = f"http://127.0.0.1:{gate.port}"
    two = Load(url, "tiny", 10, 0.2, CLUSTER_KEY)  # One for each replica
    thread = threading.Thread(target=run_load, args=(two,))
    thread.start()
    await_value(lambda: gate.state().members[0].in_flight == 1, "a request in flight", timeout=10)
    gate.proofs[first.port] = MemberProof(ready=False, why="it is drained")
    gate.follow()
    await_value(lambda: not gate.state().members[0].admitted, "a member that is out")
    assert gate.state().members[0].in_flight == 1
    for replica in gate.replicas:
        replica.release()
    thread.join()
    await_value(lambda: gate.state().members[0].in_flight == 0, "none in flight", timeout=10)


def test_what_was_known_of_a_member_ends_with_it(gate: GatewayBench) -> None:
    def second() -> GatewayMember:
        return gate.state().members[1]

    alone = gate.documents["tiny"]
    there = Member(2, "b", "127.0.0.1", gate.replicas[1].port)  # On another host
    both = replace(alone, members=[alone.members[0], there])
    gate.documents = {"tiny": both}
    gate.follow()
    await_value(lambda: second().host == "b" and second().admitted, "a proven member")
    gate.documents = {"tiny": replace(both, members=both.members[:1])}
    gate.follow()
    await_value(lambda: len(gate.state().members) == 1, "one member")
    gate.replicas[1].close()
    gate.documents = {"tiny": both}
    gate.follow()
    await_value(lambda: len(gate.state().members) == 2, "two members")
    time.sleep(0.2)
    assert not second().admitted
    assert "listening" in second().why or "not watched" in second().why


def test_a_node_without_threads_left_follows_again_later(
    gate: GatewayBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    both = gate.documents["tiny"]
    with monkeypatch.context() as starved:
        starved.setattr(gateway, "EndpointWatch", no_thread)
        away = replace(both.members[1], host="b")
        gate.documents = {"tiny": replace(both, members=[both.members[0], away])}
        gate.follow()
        await_value(lambda: "new thread" in gate.state().detail, "the reason")
        assert gate.post().status_code == 200
    await_value(lambda: gate.state().state == "up", "the gateway")


def test_a_killed_gateway_is_back_within_two_seconds(gate: GatewayBench) -> None:
    gate.add_key("alice")
    pid = gate.gateway._child.pid if gate.gateway._child else 0
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    await_value(lambda: gate.health() != 200, "the end")
    await_value(lambda: gate.health() == 200, "an open gateway")

    assert time.monotonic() - began < 2.0
    assert gate.post("sk-alice").status_code == 200


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        (signal.SIGKILL, "HAProxy was ended by signal 9"),
        (signal.SIGSTOP, "HAProxy did not answer for 2 s, so another is started"),
    ],
)
def test_a_gateway_that_ended_says_how_and_not_its_last_request(
    gate: GatewayBench, ends: signal.Signals, said: str
) -> None:
    assert gate.post().status_code == 200
    child = gate.gateway._child
    assert child
    os.killpg(child.pid, ends)

    def told() -> list[str]:
        lines = map(json.loads, gate.paths.journal.read_text().splitlines())
        return [line["text"] for line in lines if line["event"] == "backing-off"]

    await_value(lambda: told() == [said], "the reason")
    gate.await_up()


def test_a_stream_passes_word_by_word(gate: GatewayBench) -> None:
    for replica in gate.replicas:
        replica.pause, replica.words = 0.4, 3
    times: list[float] = []
    with httpx2.stream(
        "POST",
        f"http://127.0.0.1:{gate.port}/v1/completions",
        headers={"Authorization": f"Bearer {CLUSTER_KEY}"},
        json={"model": "tiny", "stream": True},
        trust_env=False,
    ) as response:
        times.extend(time.monotonic() for line in response.iter_lines() if "word" in line)

    # Words that waited for more to come would arrive two at a time.
    assert all(later - earlier > 0.1 for earlier, later in itertools.pairwise(times))
    assert len(times) == 3


def test_clients_use_https_and_a_renewed_certificate_loses_no_request(short_path: Path) -> None:
    trusted = short_path / "trusted.crt"

    def certify(bench: GatewayBench) -> ssl.SSLContext:
        chain, pem = made("test", ["127.0.0.2", "gate.example"])
        trusted.write_bytes(chain)
        fresh = bench.paths.certificate.with_suffix(".new")
        fresh.write_bytes(pem)
        fresh.rename(bench.paths.certificate)
        return ssl.create_default_context(cafile=str(trusted))

    def answers(context: ssl.SSLContext) -> bool:
        with httpx2.Client(verify=context, trust_env=False) as client:
            try:
                return client.get(f"{url}/health").status_code == 200
            except httpx2.ConnectError:
                return False  # It trusts another certificate

    with reserved() as port:
        bench = GatewayBench(short_path, port_of(port), listen="127.0.0.2")
        url = f"https://127.0.0.2:{bench.port}"
        first = certify(bench)
        bench.await_up()  # It asks on the head itself, without TLS
        await_value(lambda: bench.state().tls_until > time.time() + 3600 * 86400, "TLS", timeout=10)
        assert bench.state().tls
        assert answers(first)
        assert bench.post().status_code == 200
        loads = list[LoadReport]()
        load = Load(url, "tiny", 25, 4, CLUSTER_KEY, 0.5)
        thread = threading.Thread(target=lambda: loads.append(run_load(load)))
        thread.start()
        time.sleep(1)
        second = certify(bench)
        await_value(lambda: answers(second), "the new certificate", timeout=10)
        assert not answers(first)
        thread.join()
        assert loads[0].lost == 0, loads[0].to_json()
        bench.stop()


def test_a_session_stays_on_its_replica(gate: GatewayBench) -> None:
    for _ in range(6):
        gate.post(prompt_cache_key="conversation-1")

    assert sorted(len(replica.requests) for replica in gate.replicas) == [0, 6]


def test_services_share_one_address_by_the_name_of_the_model(gate: GatewayBench) -> None:
    other = ModelServer(CLUSTER_KEY)
    gate.documents["big"] = gate.service("big", [other])
    gate.proofs[other.port] = READY
    url = f"http://127.0.0.1:{gate.port}"
    gate.follow()
    report = run_load(Load(url, "tiny", 50, 2, CLUSTER_KEY))  # The reload loses none

    assert report.lost == 0, report.to_json()
    await_value(lambda: gate.post(model="big").status_code == 200, "the other service")
    assert [request["model"] for request in other.requests] == ["big"]
    listed = gate.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["big", "tiny"]
    assert gate.post(model="none").json()["error"]["type"] == "NotFoundError"
    assert "X-Model" in gate.post(model=None).json()["error"]["message"]
    form = httpx2.post(
        f"{url}/v1/audio/transcriptions",
        headers={"Authorization": f"Bearer {CLUSTER_KEY}"},
        data={"model": "big"},
        files={"file": ("sound.wav", b"RIFF" + bytes(2 * 2**20))},
        trust_env=False,
    )
    assert form.status_code == 200, form.text
    assert len(other.requests[-1]["form"]) > 2 * 2**20
    other.close()


def test_an_adapter_is_asked_only_of_replicas_that_have_it(gate: GatewayBench) -> None:
    """A name that no replica has is never answered by the model itself."""
    service = gate.documents["tiny"]
    gate.documents["tiny"] = replace(service, adapters={"sql": "/a", "lost": "/b"})
    first, second = gate.replicas
    gate.proofs[first.port] = MemberProof(ready=True, adapters=frozenset({"sql"}))
    gate.follow()

    def listed() -> list[str]:
        return [model["id"] for model in gate.get("/v1/models").json()["data"]]

    # Until then the name goes to the only service there is, whose vLLM would refuse it.
    await_value(lambda: "sql" in listed(), "the adapter")
    await_value(lambda: gate.post(model="sql").status_code == 200, "its replica")
    second.requests.clear()

    assert [gate.post(model="sql").status_code for _ in range(8)] == [200] * 8
    assert {request["model"] for request in first.requests} == {"sql"}
    assert second.requests == []
    assert gate.post(model="lost").status_code == 503
    assert gate.post(model="other").status_code == 404
    assert gate.post(model="tiny").status_code == 200
    assert listed() == ["tiny", "sql", "lost"]


def test_a_port_that_is_taken_is_named(short_path: Path) -> None:
    with reserved() as port:
        port.listen()
        bench = GatewayBench(short_path, port_of(port))
        try:
            await_value(lambda: "cannot bind" in bench.state().detail, "a failure")
            assert str(port_of(port)) in bench.state().detail
        finally:
            bench.stop()


def test_a_silent_member_leaves_only_if_another_can_answer() -> None:
    members = [Member(n, "b", "10.0.0.2", 8000 + n) for n in (1, 2)]
    document = MembersDocument("tiny", ["tiny"], 8000, members)
    silent = MemberProof(ready=True, why="no token for 15 s", silent=True)

    one, two = "replica-1", "replica-2"
    assert not admission(document, {one: silent, two: READY})[one].ready
    assert admission(document, {one: silent, two: MemberProof(ready=False)})[one].ready
    assert not admission(document, {one: READY})[two].ready


def test_a_replaced_key_is_sent_once_most_replicas_ask_for_it(gate: GatewayBench) -> None:
    """As `key rotate` and `restart` change them, one after the other; and nothing is lost."""
    new, config = "n" * 64, gate.paths.gateway / "haproxy.cfg"

    def restarted(number: int) -> None:
        """A replica asks for the new key from now on."""
        replica = gate.replicas[number]
        replica.key = new
        gate.proofs[replica.port] = MemberProof(ready=True, key=mark(new))
        gate.follow()

    for replica in gate.replicas:
        gate.proofs[replica.port] = MemberProof(ready=True, key=mark(CLUSTER_KEY))
    gate.follow()
    gate.paths.api_key.write_text(new)
    await_value(lambda: gate.post(new).status_code == 200, "the new key is accepted")
    assert [gate.post(CLUSTER_KEY).status_code for _ in range(6)] == [200] * 6
    assert new not in config.read_text(), "the replicas ask for the old one"

    restarted(0)
    await_value(lambda: new in config.read_text(), "the new key for replicas")
    members = await_value(
        lambda: [m for m in gate.state().members if not m.admitted], "one that gets nothing"
    )
    assert [member.why for member in members] == ["it was started with another api.key"]
    answers = [gate.post(key).status_code for key in (new, CLUSTER_KEY) * 5]
    assert set(answers) <= {200, 401}
    restarted(1)
    await_value(lambda: all(m.admitted for m in gate.state().members), "both replicas")
    assert [gate.post(new).status_code for _ in range(6)] == [200] * 6
    await_value(lambda: gate.post(CLUSTER_KEY).status_code == 401, "the old key is refused")


def test_a_standby_that_started_with_a_replaced_key_takes_nothing_from_one_that_serves(
    gate: GatewayBench,
) -> None:
    first, standby = gate.replicas
    member = Member(1, "a", "127.0.0.1", first.port, standby_port=standby.port)
    gate.documents = {"tiny": replace(gate.documents["tiny"], members=[member])}
    ready = {each.port: MemberProof(ready=True, key=mark(CLUSTER_KEY)) for each in gate.replicas}
    gate.proofs = ready
    gate.follow()
    await_value(lambda: any(one.standby for one in gate.state().members), "the standby")

    new = "n" * 64
    gate.proofs = {**ready, standby.port: MemberProof(ready=True, key=mark(new))}
    gate.paths.api_key.write_text(new)
    gate.follow()
    await_value(lambda: gate.post(new).status_code == 200, "the new key is accepted")

    def admitted() -> list[bool]:
        return [one.standby for one in gate.state().members if one.admitted]

    await_value(lambda: admitted() == [False], "the first engine alone")
    gate.proofs[first.port] = MemberProof(ready=False, why="it is backing-off")
    gate.follow()
    await_value(lambda: admitted() == [True], "the standby, whose key counts now")


def test_an_emptied_key_changes_nothing_for_clients(gate: GatewayBench) -> None:
    gate.paths.api_key.write_text("")
    assert [gate.post().status_code for _ in range(5)] == [200] * 5
    found, problems = marks(gate.paths)
    assert "api.key" not in found
    assert "is empty; clusterctl bootstrap repairs that" in problems[0]


def test_requests_end_before_a_gateway_that_is_stopped(gate: GatewayBench) -> None:
    slow = [ModelServer(CLUSTER_KEY, words=20, pause=0.1) for _ in gate.replicas]
    gate.documents = {"tiny": gate.service("tiny", slow)}
    gate.proofs = {replica.port: READY for replica in slow}
    gate.follow()
    gate.await_up()
    url, found = f"http://127.0.0.1:{gate.port}", list[LoadReport]()
    load = Load(url, "tiny", rate=10, seconds=0.5, key=CLUSTER_KEY, streamed=1.0)
    asking = threading.Thread(target=lambda: found.append(run_load(load)))
    asking.start()
    time.sleep(1.0)

    gate.gateway.stop(30.0)

    asking.join()
    assert found[0].lost == 0
    assert gate.health() == 0
