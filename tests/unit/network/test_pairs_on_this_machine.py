"""The program that hosts run, for real: two hosts that are two addresses of this machine."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from clusterctl.engine.events import ignore
from clusterctl.errors import CommandFailed, Problems
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, RayPorts
from clusterctl.network.gate import GateScope, require_links
from clusterctl.network.pairs import orders
from clusterctl.network.pairs.judgement import problems
from clusterctl.network.pairs.model import PairResults
from clusterctl.network.pairs.probe import PairProbeSession, probe_pairs
from clusterctl.ray_cluster.topology import Node, Topology
from clusterctl.transport.local import LocalTransport
from tests.fakes.host_facts import host_facts, nic

pytestmark = pytest.mark.skipif(not shutil.which("python3"), reason="runs python3, as hosts do")

PID = os.getpid()
NET = f"127.{PID >> 14}.{PID >> 6 & 255}"
"""Of this process alone: Ray's ports are the same in all tests, and several may run at once."""

IPS = {"a": f"{NET}.{(PID & 63) * 4 + 1}", "b": f"{NET}.{(PID & 63) * 4 + 2}"}
PORTS = RayPorts(
    gcs=26379, node_manager=26380, object_manager=26381, runtime_env_agent=26382,
    dashboard_agent_listen=26383, dashboard_agent_grpc=26384, metrics_export=26385,
    min_worker=21000, max_worker=21010,
)  # fmt: skip


def inventory() -> Inventory:
    hosts = tuple(
        Host(name=name, address="localhost", role="worker" if number else "head")
        for number, name in enumerate(IPS)
    )
    return Inventory(cluster="demo", image="vllm:1", hosts=hosts, ray_ports=PORTS)


def facts(ip: str, **changes: object) -> HostFacts:
    root = os.geteuid() == 0
    return host_facts(nic("lo0", f"{ip}/8", kind="virtual"), root=root, **changes)


def topology() -> Topology:
    return Topology(
        tuple(Node(name, "worker", ip, "lo0", ("lo0",), "lo0", (), 0) for name, ip in IPS.items())
    )


@contextmanager
def transports() -> Iterator[dict[str, LocalTransport]]:
    with ExitStack() as stack:
        made = {host.name: LocalTransport(host) for host in inventory().hosts}
        for transport in made.values():
            stack.callback(transport.close)
        yield made


def seen(**changes: object) -> PairResults:
    with transports() as reached:
        return probe_pairs(
            inventory(),
            topology(),
            {name: facts(ip, **changes) for name, ip in IPS.items()},
            reached,
        )


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Throughput is measured for longer than a busy machine keeps a program waiting."""
    monkeypatch.setattr(orders, "WINDOW", 2.5)
    monkeypatch.setattr(orders, "SLOT", 3.0)


@pytest.mark.usefixtures("unhurried")
def test_two_hosts_try_everything_both_ways() -> None:
    found = seen()
    assert found.unverified == {}
    assert [(link.sender.host, link.receiver.host) for link in found.links] == [
        ("a", "b"),
        ("b", "a"),
    ]
    for link in found.links:
        assert link.lane.purposes == ("control", "nccl", "gloo")
        assert set(link.tcp.values()) == {"ok"}
        assert link.rate  # how much depends on what else this machine does
        if os.geteuid() == 0:
            assert link.echo is not None
            assert None not in link.echo.values()
    assert 26379 in found.links[1].tcp
    assert all(abs(clock.offset) <= clock.error + 0.01 for clock in found.clocks.values())


def test_the_loopback_is_found_out() -> None:
    """Both addresses are this machine's: packets leave through lo, whatever the facts say."""
    kinds = {problem.summary.split(",")[0] for problem in problems(seen(), {})}
    assert kinds == {
        f"packets to b ({IPS['b']}) leave through lo",
        f"packets to a ({IPS['a']}) leave through lo",
    }


def test_the_gate_names_a_broken_link_before_anything_else() -> None:
    by_name = {name: facts(ip) for name, ip in IPS.items()}
    with transports() as reached, pytest.raises(Problems) as caught:
        require_links(GateScope(inventory(), topology(), reached, by_name), ignore)
    assert all("leave through lo" in str(error) for error in caught.value.errors)


def test_a_host_without_python_is_told_and_tried_by_the_others() -> None:
    with transports() as reached:
        by_name = {"a": facts(IPS["a"]), "b": facts(IPS["b"], python3=None)}
        found = probe_pairs(inventory(), topology(), by_name, reached)
    assert list(found.unverified) == ["b"]
    assert "no Python 3.9" in found.unverified["b"]
    (there,) = found.links
    assert (there.sender.host, there.tcp, there.route) == ("a", {}, "lo")


@pytest.mark.parametrize("answer", ["[]", "7", '{"routes": [[1, 2, 3]]}', '{"routes": null}'])
def test_an_answer_that_is_none_is_noticed(answer: str) -> None:
    with pytest.raises((TypeError, ValueError, LookupError)):
        orders.read_links(orders.Table([], [], {}, ""), "a", json.loads(answer))


def test_one_host_alone_has_no_ways() -> None:
    with transports() as reached:
        found = probe_pairs(inventory(), topology(), {"a": facts(IPS["a"])}, reached)
    assert found.links == ()


def test_a_program_that_breaks_says_why() -> None:
    with transports() as reached:
        session = PairProbeSession(reached["a"], sudo=False)
        with pytest.raises(CommandFailed, match="KeyError") as caught:
            session.ask("open", {"nonsense": 1})
        session.close()
    assert "Traceback" in (caught.value.detail or "")
