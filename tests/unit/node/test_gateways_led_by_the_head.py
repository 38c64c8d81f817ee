"""Supervisors of a head and of a worker while `gateway.hosts` comes and goes."""

from __future__ import annotations

import time

import pytest

from clusterctl.node.documents import (
    GatewayMember,
    KeysDocument,
    Member,
    MembersDocument,
    NamedKey,
    SharedGateway,
    to_json,
)
from tests.fakes.node_bench import Bench, await_value
from tests.fakes.ports import listening

pytestmark = pytest.mark.usefixtures("haproxy")

MEMBERS = MembersDocument("tiny", ["tiny"], 8000, [Member(1, "a", "127.0.0.1", 8100)])
KEYS = KeysDocument([NamedKey("alice", "0" * 64, 1.0)])
SHARED = to_json(SharedGateway([MEMBERS], KEYS))


def test_a_head_that_leads_no_gateways_any_more_tells_them_nothing_old(bench: Bench) -> None:
    bench.paths.members.mkdir()
    (bench.paths.members / "tiny.json").write_text(to_json(MEMBERS))
    bench.paths.keys.write_text(to_json(KEYS))
    shared = bench.paths.shared_gateway
    bench.start()
    bench.await_ray("up")
    assert not shared.exists()

    def told() -> str:
        return shared.read_text() if shared.exists() else ""

    bench.declare_node(gateway="127.0.0.1")
    await_value(lambda: told() == SHARED, "the members and keys")
    bench.declare_node()
    await_value(lambda: told() == to_json(SharedGateway()), "the word that there are none")


def test_a_worker_that_gets_a_gateway_again_waits_for_the_heads_word(worker: Bench) -> None:
    def members() -> list[GatewayMember] | None:
        state = worker.state()
        return state.gateway.members if state and state.gateway.state != "absent" else None

    told = worker.root / "gateway.json"
    told.write_text(SHARED)
    worker.declare_node(gateway="127.0.0.1")
    with listening(worker.gcs_port):
        worker.start()
        await_value(members, "the members that the head told")

        worker.declare_node()
        await_value(lambda: members() is None, "no gateway")
        told.unlink()
        worker.declare_node(gateway="127.0.0.1")
        await_value(lambda: members() is not None, "a gateway")
        time.sleep(0.5)  # In which it follows 20 times what it knows
        assert members() == []
        told.write_text(SHARED)
        await_value(members, "the members that the head told")
