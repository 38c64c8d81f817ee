"""The gate's steps with real agents, real sockets on loopback addresses and real processes; only
Ray and torch are stood in for."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.node.fabric_agent import Agent, cross
from clusterctl.node.fabric_documents import Crossing, FabricReport, FabricSpec
from clusterctl.node.fabric_gate import AgentAnswer, Gate
from clusterctl.node.timing import GateTiming
from tests.fakes.fabric_agents import Deaf, LocalAgents, Narrow, agent, spec

PATIENT = GateTiming(
    60, answer=60, importing=60, store=60, join=60, correct=60, measure=60, pairs=60, poll=0.02
)
HASTY = replace(PATIENT, join=0.2)
"""For ranks that hang: the agents hear out those that do not."""


@contextmanager
def agents(
    asked: FabricSpec, silent: tuple[str, ...] = (), **odd: Agent | None
) -> Iterator[LocalAgents]:
    """Sound agents for all nodes, but those that are given."""
    made = {node.host: odd.get(node.host) or agent(node) for node in asked.nodes}
    yield LocalAgents(made, silent)
    for one in made.values():
        one.close()


def gate(asked: FabricSpec, found: LocalAgents, limits: GateTiming = PATIENT) -> FabricReport:
    return Gate(asked, found, limits=limits).run()


@pytest.mark.parametrize(("gpus", "backends"), [(0, ["gloo"]), (2, ["gloo", "nccl"])])
def test_three_nodes_that_reach_each_other(gpus: int, backends: list[str]) -> None:
    asked = spec("a", "b", "c", gpus=gpus)
    with agents(asked) as found:
        report = gate(asked, found)
    assert (report.failed, report.error) == ("", "")
    assert len(report.crossings) == 6
    assert all(crossing.left_by.startswith("127.") for crossing in report.crossings)
    assert [one.backend for one in report.collectives] == backends
    assert report.collectives[-1].ranks == 3 * max(gpus, 1)
    assert report.collectives[-1].bandwidth == pytest.approx(4 / 3 * 2**20 / 0.01)
    assert {rank.phase for rank in report.ranks} == {"done"}
    assert report.ranks[0].tail == ["a line for people"]


def test_one_rank_has_nobody_to_reach() -> None:
    asked = spec("a")
    with agents(asked) as found:
        report = gate(asked, found)
    assert not report.failed
    assert not report.collectives
    assert found.asked.count("launch") == 0


def test_one_host_with_two_gpus_is_measured_without_crossings() -> None:
    asked = spec("a", gpus=2)
    with agents(asked) as found:
        report = gate(asked, found)
    assert [(one.backend, one.ranks, one.hosts) for one in report.collectives] == [
        ("gloo", 2, 1),
        ("nccl", 2, 1),
    ]
    assert not report.crossings


def test_an_interface_that_does_not_exist_is_told_before_anything_starts() -> None:
    asked = spec("a", "b")
    with agents(asked, b=agent(asked.nodes[1], GLOO_SOCKET_IFNAME="eth7")) as found:
        report = gate(asked, found)
    assert report.failed == "places"
    places = {node.host: node.places for node in report.seen}
    (wrong,) = [place for place in places["b"] if place.problem]
    assert (wrong.purpose, wrong.nic, wrong.problem) == ("gloo", "eth7", "missing")
    assert "launch" not in found.asked


def test_a_node_that_takes_no_connection_is_named_by_everybody_else() -> None:
    asked = spec("a", "b", "c")
    with agents(asked, c=agent(asked.nodes[2], Deaf)) as found:
        report = gate(asked, found)
    assert report.failed == "crossings"
    broken = [(one.source, one.target, one.error) for one in report.crossings if one.error]
    assert broken == [("a", "c", "Connection refused"), ("b", "c", "Connection refused")]


def test_a_node_that_large_messages_do_not_reach_is_named() -> None:
    asked = spec("a", "b")
    with agents(asked, b=agent(asked.nodes[1], Narrow)) as found:
        report = gate(asked, found)
    (broken,) = [one for one in report.crossings if one.error]
    assert (broken.source, broken.target) == ("a", "b")
    assert broken.error == "it answers, and 64 KiB do not arrive within 3 s"


def test_another_program_at_a_peers_address_is_quoted_whatever_it_sends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            with server.accept()[0] as peer:
                peer.sendall(b"\xffMySQL\n")

        threading.Thread(target=greet, daemon=True).start()
        found = cross(Crossing("a", "b", "gloo", "eth0", "127.0.0.1", server.getsockname()[1]))
    assert found.error == "\N{REPLACEMENT CHARACTER}MySQL answers there"


def test_a_node_on_which_ray_starts_nothing() -> None:
    asked = spec("a", "b")
    with agents(asked, silent=("b",)) as found:
        report = gate(asked, found)
    assert report.failed == "arrive"
    assert report.absent == {"b": "does not answer"}


def test_a_rank_that_never_joins_ends_in_time_and_pairs_name_its_node() -> None:
    asked = spec("a", "b", "c")
    with agents(asked, b=agent(asked.nodes[1], FAKE_RANK="hang")) as found:
        report = gate(asked, found, HASTY)
    assert (report.failed, report.error) == ("gloo", "not within 0.2 s")
    assert [(rank.host, rank.phase) for rank in report.ranks] == [
        ("a", "done"),
        ("b", "imported"),
        ("c", "done"),
    ]
    failed = {frozenset((pair.first, pair.second)) for pair in report.pairs if not pair.ok}
    assert failed == {frozenset("ab"), frozenset("bc")}


class Looking(LocalAgents):
    """Keeps what the gate would report, were it ended at that moment."""

    gate: Gate
    reports: dict[str, FabricReport]

    def ask(
        self, method: str, arguments: Mapping[str, Sequence[Any]], within: float
    ) -> dict[str, AgentAnswer]:
        self.reports[method] = self.gate.so_far(300)
        return super().ask(method, arguments, within)


def test_a_gate_that_is_ended_names_the_step_and_whom_it_waits_for() -> None:
    asked = spec("a", "b", gpus=2)
    slow = agent(asked.nodes[1], FAKE_RANK="hang")
    with agents(asked, b=slow) as found:
        looking = Looking(found.agents)
        looking.gate, looking.reports = Gate(asked, looking, limits=HASTY), {}
        report = looking.gate.run()
    first, last = looking.reports["look"], looking.reports["stop_ranks"]
    assert (first.failed, first.awaited) == ("time", {"a": [], "b": []})
    assert (last.failed, last.error) == ("time", "300 s (all-reduce over gloo)")
    assert last.awaited == {"b": [2, 3]}
    assert looking.gate.so_far(300) == report, "what is known to have failed stays"


@pytest.mark.parametrize(
    ("fault", "told"),
    [("wrong", "gave 7 wrong elements"), ("die", "its process ended with status 9")],
)
def test_a_rank_that_goes_wrong_is_told_at_once(fault: str, told: str) -> None:
    asked = spec("a", "b")
    with agents(asked, b=agent(asked.nodes[1], FAKE_RANK=fault)) as found:
        report = gate(asked, found)
    assert report.failed == "gloo"
    assert told in report.ranks[1].error
    assert report.seconds < PATIENT.join


def test_no_process_outlives_the_gate() -> None:
    asked = spec("a", "b")
    with agents(asked, b=agent(asked.nodes[1], FAKE_RANK="hang")) as found:
        started = []
        launch = Agent._start

        def remember(self: Agent, rank: int, device: int) -> object:
            process = launch(self, rank, device)
            started.append(process.process)
            return process

        for one in found.agents.values():
            one._start = remember.__get__(one)  # type: ignore[method-assign]
        gate(asked, found, HASTY)
    assert len(started) == 2
    assert all(process.wait(60) == -signal.SIGKILL for process in started)
