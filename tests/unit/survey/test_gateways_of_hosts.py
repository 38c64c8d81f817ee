"""The gateways of several hosts add up to one; one that is not up is a problem of its host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import GatewayAccess, Host, Inventory
from clusterctl.node.documents import (
    GatewayMember,
    GatewayState,
    KeyUse,
    Member,
    MembersDocument,
    NodeState,
    to_json,
)
from clusterctl.operations.serving import keep_key
from clusterctl.survey.gateways import as_one, may_have_gateway
from clusterctl.survey.status import assess
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import Said, survey_of
from tests.fakes.transport import FakeTransport

HEAD = GatewayState(
    "up", listens=["10.0.0.1:8000"], served=3, failed=1,
    members=[GatewayMember("tiny", 1, "gpu1", False, "it is drained", 1, 3)],
    keys=[KeyUse("alice", 3, 10, 20, "2026-11-22", 30)],
)  # fmt: skip
OTHER = GatewayState(
    "up", listens=["10.0.0.2:8000"], served=4, refused=2,
    members=[GatewayMember("tiny", 1, "gpu1", True, in_flight=2, requests=4)],
    keys=[KeyUse("alice", 4, 1, 2, "2026-11-23", 3), KeyUse("bob", 1)],
)  # fmt: skip
INVENTORY = Inventory(
    cluster="demo",
    image="vllm:1",
    gateway=GatewayAccess(hosts=("all",)),
    hosts=(
        Host(name="gpu2", address="10.0.0.2"),
        Host(name="gpu1", address="10.0.0.1", role="head"),
    ),
)


def test_counts_are_summed_and_a_member_that_one_of_them_uses_is_admitted() -> None:
    one = as_one([HEAD, OTHER])

    assert one.listens == ["10.0.0.1:8000", "10.0.0.2:8000"]
    assert (one.served, one.failed, one.refused) == (7, 1, 2)
    assert one.members == [GatewayMember("tiny", 1, "gpu1", True, "", 3, 7)]
    assert one.keys == [KeyUse("alice", 7, 11, 22, "2026-11-23", 3), KeyUse("bob", 1)]


def test_a_gateway_that_is_not_up_is_named_with_its_host() -> None:
    members = MembersDocument("tiny", ["tiny"], 8000, [Member(1, "gpu1", "10.0.0.1", 8100)])
    files = {"/etc/clusterctl/demo/members/tiny.json": to_json(members).encode()}

    def problems(other: GatewayState) -> list[str]:
        said = {}
        for host, gateway in (("gpu1", HEAD), ("gpu2", other)):
            facts = replace(host_facts(nic("eth0", INVENTORY.host(host).address)), clock=1000.0)
            state = NodeState(host, "", 999.0, "1", "up", 0.0, 0, gateway=gateway)
            said[host] = Said(facts, state, "running", files=files if host == "gpu1" else {})
        found = assess(survey_of(INVENTORY, said))
        assert found.gateway
        assert found.gateway.served == 3 + other.served
        return [each for each in found.problems if "gateway" in each]

    assert problems(OTHER) == []
    taken = GatewayState("backing-off", "cannot bind socket")
    assert problems(taken) == ["gpu2: gateway: backing-off (cannot bind socket)"]
    assert "no HAProxy" in problems(GatewayState("absent"))[0]


def _said(host: str, container: str) -> Said:
    facts = host_facts(nic("eth0", INVENTORY.host(host).address))
    return Said(facts, NodeState(host, "", 999.0, "1", "up", 0.0, 0), container)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (_said("gpu2", "running"), ["gpu1", "gpu2"]),
        (_said("gpu2", "exited"), ["gpu1"]),
        (ConnectionFailed("no route", host="gpu2"), ["gpu1", "gpu2"]),
    ],
)
def test_keys_wait_for_no_host_whose_container_does_not_run(
    other: Said | ConnectionFailed, expected: list[str]
) -> None:
    said = {"gpu1": _said("gpu1", "running"), "gpu2": other}
    survey = survey_of(INVENTORY, said, {name: FakeTransport() for name in said})
    assert [*may_have_gateway(survey)] == expected


def test_a_new_key_is_written_wherever_there_is_a_gateway() -> None:
    said = {name: _said(name, "running") for name in ("gpu1", "gpu2")}
    transports = {name: FakeTransport() for name in said}
    keep_key(survey_of(INVENTORY, said, transports), "secret")
    path = "/etc/clusterctl/demo/api.key"
    assert [each.files[path] for each in transports.values()] == [(b"secret", 0o600, True)] * 2


def test_the_head_comes_first_and_hosts_may_be_named() -> None:
    assert [host.name for host in INVENTORY.gateways] == ["gpu1", "gpu2"]
    alone = INVENTORY.model_copy(update={"gateway": GatewayAccess()})
    assert [host.name for host in alone.gateways] == ["gpu1"]


def test_hosts_that_shared_an_address_are_known_from_the_one_look() -> None:
    unit = {"/etc/systemd/system/clusterctl-address-demo.service": b"[Unit]"}
    said = {name: _said(name, "running") for name in ("gpu1", "gpu2")}
    assert survey_of(INVENTORY, said).with_keepalived == frozenset()
    said["gpu2"] = replace(said["gpu2"], files=unit)
    assert survey_of(INVENTORY, said).with_keepalived == {"gpu2"}
