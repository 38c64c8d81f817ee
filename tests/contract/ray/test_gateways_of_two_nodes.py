"""Gateways on both nodes, with a real Ray and HAProxy: the head's word reaches the worker's."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx2
import pytest

from clusterctl.node.documents import (
    KeysDocument,
    Member,
    MembersDocument,
    NamedKey,
    NodeDocument,
    from_json,
    to_json,
)
from clusterctl.node.haproxy import find_haproxy
from tests.contract.ray.conftest import RunningNode, TwoNodes
from tests.fakes.model_server import ModelServer
from tests.fakes.node_bench import await_value
from tests.fakes.ports import port_of, reserved

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
pytest.importorskip("ray")

OPEN = 120.0  # Seconds; on two busy cores Ray takes 10 to 30
REVOKED = 2.0  # Seconds
ALICE = "sk-alice"


class TwoGateways:
    """A service of one replica that is on neither node, behind the gateways of both."""

    def __init__(self, nodes: TwoNodes) -> None:
        self.head, self.worker = nodes.head, nodes.worker
        self.replica = ModelServer(self.head.paths.api_key.read_text())
        self._place = reserved()
        self.port = port_of(self._place)
        for node in (self.head, self.worker):
            path = node.paths.node_document
            document = from_json(NodeDocument, path.read_text())
            path.write_text(to_json(replace(document, gateway=node.node.node_ip)))
        self.head.paths.members.mkdir()
        self.declare()
        self.keys(NamedKey("alice", hashlib.sha256(ALICE.encode()).hexdigest(), 1.0))

    def declare(self, *, draining: bool = False) -> None:
        member = Member(1, "elsewhere", "127.0.0.1", self.replica.port, draining)
        fresh = self.head.paths.members / ".new"
        fresh.write_text(to_json(MembersDocument("tiny", ["tiny"], self.port, [member])))
        fresh.replace(self.head.paths.members / "tiny.json")

    def keys(self, *keys: NamedKey) -> None:
        fresh = self.head.paths.keys.with_suffix(".new")
        fresh.write_text(to_json(KeysDocument(list(keys))))
        fresh.replace(self.head.paths.keys)

    def asked(self, node: RunningNode, key: str = ALICE) -> int:
        """The status of an answer to a request; 0 without one."""
        try:
            return httpx2.post(
                f"http://{node.node.node_ip}:{self.port}/v1/completions",
                headers={"Authorization": f"Bearer {key}"},
                json={"model": "tiny"},
                trust_env=False,
                timeout=10,
            ).status_code
        except httpx2.HTTPError:
            return 0

    def both(self) -> tuple[int, int]:
        return self.asked(self.head), self.asked(self.worker)

    def close(self) -> None:
        self.replica.close()
        self._place.close()


@pytest.fixture
def gateways(two_nodes: TwoNodes) -> Iterator[TwoGateways]:
    if not find_haproxy()[0]:
        pytest.fail("no HAProxy: scripts/setup.sh --tests installs one")
    gateways = TwoGateways(two_nodes)
    yield gateways
    gateways.close()


def test_keys_and_members_of_the_head_hold_on_the_worker_and_outlive_the_head(
    gateways: TwoGateways, record_property: Callable[[str, object], None]
) -> None:
    head, worker = gateways.head, gateways.worker
    head.start()
    worker.start()
    await_value(lambda: gateways.both() == (200, 200), "two open gateways", OPEN)

    began = time.monotonic()
    gateways.keys()
    await_value(lambda: gateways.both() == (401, 401), "the key to be refused")
    took = time.monotonic() - began
    record_property("revoked on both after", took)
    assert took < REVOKED
    key = worker.paths.api_key.read_text()
    assert gateways.asked(worker, key) == 200

    gateways.declare(draining=True)
    await_value(lambda: gateways.asked(worker, key) == 503, "the drained replica to get nothing")
    gateways.declare()
    await_value(lambda: gateways.asked(worker, key) == 200, "the replica again")

    head.pull_the_plug()
    assert (gateways.asked(head, key), gateways.asked(worker, key)) == (0, 200)

    worker.pull_the_plug()  # What it was told may be old by now: it waits for the head
    worker.start()
    await_value(
        lambda: (state := worker.state()) and state.gateway.state == "idle", "a start", OPEN
    )
    assert gateways.asked(worker, key) == 0
