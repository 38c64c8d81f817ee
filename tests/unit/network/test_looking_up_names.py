"""Which hosts are asked what looking up names costs, and what becomes of those that do not say."""

from __future__ import annotations

import json
from dataclasses import replace

from clusterctl.errors import CommandTimedOut
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.network.lookups import FOREIGN, lookup_notes
from clusterctl.transport.base import CommandResult
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.transport import Call, FakeTransport, starts

INVENTORY = Inventory(
    cluster="demo", image="i", accelerator="cpu",
    hosts=(Host(name="a", address="10.0.0.1", role="head"), Host(name="b", address="10.0.0.2")),
)  # fmt: skip
WITH_PYTHON = "/usr/bin/python3"


def probes(**python: str | None) -> dict[str, HostFacts]:
    def facts(host: str, ip: str) -> HostFacts:
        found = host_facts(nic("eth0", ip))
        return replace(found, hostname=host, python3=python.get(host, WITH_PYTHON))

    return {host.name: facts(host.name, host.address) for host in INVENTORY.hosts}


def order_in(call: Call) -> dict[str, list[str]]:
    """The argument that follows the program."""
    size, _, rest = call.stdin.partition(b"\n")
    found: dict[str, list[str]] = json.loads(rest[int(size) :])
    return found


def with_a_dead_server(call: Call) -> CommandResult:
    """What the program says where nothing but the hosts file answers."""
    order = order_in(call)
    names = dict.fromkeys((*order["names"], order["made_up"], FOREIGN))
    said = {
        "own": "a", "search": [], "names": {**names, "a": (["127.0.1.1"], 0.001)},
        "addresses": dict.fromkeys(order["addresses"]), "servers": {"10.0.0.53": None},
    }  # fmt: skip
    return CommandResult(call.argv, 0, json.dumps(said), "")


def test_every_host_with_a_python_is_asked_in_one_round_trip() -> None:
    facts = probes(b=None)
    topology = resolve(INVENTORY, facts)
    a = FakeTransport().on(starts("sh"), answer=with_a_dead_server)
    b = FakeTransport()
    (note,) = lookup_notes(INVENTORY, topology, facts, {"a": a, "b": b})
    assert note.startswith("a: the name server 10.0.0.53 does not answer")
    assert (len(a.calls), len(b.calls)) == (1, 0)
    assert {"10.0.0.2", "::ffff:10.0.0.2"} <= set(order_in(a.calls[0])["addresses"])


def test_hosts_that_do_not_say_are_passed_over() -> None:
    late = FakeTransport().on(starts("sh"), raises=CommandTimedOut("late", host="a"))
    odd = FakeTransport().on(starts("sh"), stdout="who are you\n")
    assert lookup_notes(INVENTORY, None, probes(), {"a": late, "b": odd}) == ()
