"""The gate's steps with real agents and real processes; only
Ray and torch are stood in for."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.node.fabric_agent import Agent
from clusterctl.node.fabric_documents import FabricReport, FabricSpec
from clusterctl.node.fabric_gate import AgentAnswer, Gate
from clusterctl.node.timing import GateTiming
from tests.fakes.fabric_agents import LocalAgents, agent, spec

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


def test_one_host_with_two_gpus_is_measured() -> None:
    asked = spec("a", gpus=2)
    with agents(asked) as found:
        report = gate(asked, found)
    assert [(one.backend, one.ranks, one.hosts) for one in report.collectives] == [
        ("gloo", 2, 1),
        ("nccl", 2, 1),
    ]


def test_only_variables_of_the_fabric_are_reported() -> None:
    env = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "secret", "VLLM_HOST_IP": "10.0.0.1", "PATH": "/bin"}
    assert Agent("a", env=env).look().env == {"NCCL_DEBUG": "INFO", "VLLM_HOST_IP": "10.0.0.1"}


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
