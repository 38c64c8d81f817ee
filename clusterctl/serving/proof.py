"""The proof that a service works: it answers a request, and its ranks run where the plan says.

An answer does not show where the model runs: vLLM stays on one host whenever that has enough GPUs,
and answers just as well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl import deadlines
from clusterctl.engine.events import EventSink, StepFinished, StepStarted
from clusterctl.engine.step import Change
from clusterctl.errors import StepFailed
from clusterctl.node.documents import NodeState, Rank, ServiceDocument, ServiceState
from clusterctl.node.endpoint import Task, task_of
from clusterctl.ray_cluster.topology import base_url
from clusterctl.serving.endpoint import ServiceAnswer, ask
from clusterctl.serving.layout import Layout
from clusterctl.serving.service import PlannedService
from clusterctl.transport.base import Transport
from clusterctl.transport.tcp import Tunnel


@dataclass(frozen=True)
class Proof:
    """The answer and the placement of a proven service."""

    answer: ServiceAnswer
    task: Task
    ranks: tuple[Rank, ...]
    placement: str  # the hosts of the ranks, for display
    # From the start of vLLM to its first answer, as the supervisor measured it
    ready_seconds: float


def prove(
    service: PlannedService,
    key: str,
    head: Transport,
    read: Callable[[], NodeState | None],
    sink: EventSink,
) -> Proof:
    """Send a request as a client would, for the task that the supervisor found, and compare the
    ranks with the plan. `read` returns the head's current state.

    Raises StepFailed if there is no valid answer, or if ranks are not where the plan puts them.
    """
    document, host = service.document, head.host.name
    title = "prove it: one request, and where the ranks run"
    sink(StepStarted(host, title, Change(title)))
    started = time.monotonic()
    state, running = _with_ranks(document, read)
    task = task_of(running.task)
    with Tunnel(head, document.host, document.port) as tunnel:
        endpoint = replace(service.endpoint, url=base_url("127.0.0.1", tunnel.port), task=task)
        answer = ask(endpoint, key, deadline=deadlines.FIRST_ANSWER)
    addresses = {node.name: node.node_ip for node in state.nodes if node.alive}
    placement = check_placement(service.layout, addresses, running.ranks)
    if not placement.proven:
        raise StepFailed(
            "the ranks are not where the plan puts them",
            host=host,
            detail="\n".join(placement.problems),
            hint=f"clusterctl stop {document.name}, then serve again",
        )
    sink(StepFinished(host, title, "changed", time.monotonic() - started))
    ranks, seconds = tuple(running.ranks), running.ready_seconds
    return Proof(answer, task, ranks, placement.sentence, seconds)


def _with_ranks(
    document: ServiceDocument, read: Callable[[], NodeState | None]
) -> tuple[NodeState, ServiceState]:
    """Wait until the head reports all ranks of the service. Raises StepFailed on a timeout."""
    ranks: list[Rank] = []

    def look() -> tuple[NodeState, ServiceState] | None:
        nonlocal ranks
        state = read()
        services = state.services if state else []
        service = next((s for s in services if s.name == document.name), None)
        ranks = service.ranks if service else []
        return (state, service) if state and service and len(ranks) >= document.gpus else None

    if found := deadlines.wait_until(look, deadlines.RANKS, every=0.3):
        return found
    where = ", ".join(f"{rank.rank} on {rank.host}" for rank in ranks)
    raise StepFailed(
        f"Ray reports {len(ranks)} of {document.gpus} ranks within "
        f"{deadlines.RANKS:.0f} s" + (f": {where}" if where else ""),
        hint=f"clusterctl logs {document.name}",
    )


@dataclass(frozen=True)
class PlacementProof:
    """Placement of the ranks, and its differences from the plan."""

    sentence: str  # `rank 0 gpu1 (10.78.0.11), rank 1 gpu2 (10.78.0.12)`
    problems: tuple[str, ...]  # differences from the plan, a sentence each

    @property
    def proven(self) -> bool:
        return not self.problems


def check_placement(
    layout: Layout, addresses: Mapping[str, str], ranks: Sequence[Rank]
) -> PlacementProof:
    """Compare the ranks that Ray reports with the layout.

    `addresses`: the node IP of every inventory host, by name.
    """
    ordered = sorted(ranks, key=lambda rank: rank.rank)
    problems = [
        *_count_problems(layout, ordered),
        *_address_problems(addresses, ordered),
        *_group_problems(layout, ordered),
    ]
    hosts = sorted({rank.host for rank in ordered})
    if ranks and len(hosts) < layout.least_hosts:
        problems.append(
            f"all ranks are on {' and '.join(hosts)}, and {layout.ranks} ranks need "
            f"{layout.least_hosts} of {', '.join(layout.hosts)}: several ranks share a GPU"
        )
    return PlacementProof(describe(ordered), tuple(problems))


def describe(ranks: Sequence[Rank]) -> str:
    """Return the ranks as text, with consecutive ranks on one host as a range."""
    runs: list[list[Rank]] = []
    for rank in ranks:
        if runs and (runs[-1][-1].host, runs[-1][-1].rank + 1) == (rank.host, rank.rank):
            runs[-1].append(rank)
        else:
            runs.append([rank])
    found = []
    for run in runs:
        first, last = run[0], run[-1]
        which = f"rank {first.rank}" if first is last else f"ranks {first.rank}-{last.rank}"
        found.append(f"{which} {first.host} ({first.node_ip})")
    return ", ".join(found) or "no ranks"


def _count_problems(layout: Layout, ranks: Sequence[Rank]) -> list[str]:
    numbers = Counter(rank.rank for rank in ranks)
    expected = set(range(layout.ranks))
    missing = sorted(expected - numbers.keys())
    strange = sorted(numbers.keys() - expected)
    twice = sorted(number for number, count in numbers.items() if count > 1)
    lines = [
        ("missing", missing),
        ("beyond the plan", strange),
        ("reported twice", twice),
    ]
    return [
        f"of {layout.ranks} ranks, {', '.join(map(str, found))} "
        f"{'is' if len(found) == 1 else 'are'} {what}"
        for what, found in lines
        if found
    ]


def _address_problems(addresses: Mapping[str, str], ranks: Sequence[Rank]) -> list[str]:
    problems = []
    for rank in ranks:
        expected = addresses.get(rank.host)
        if expected is None:
            problems.append(
                f"rank {rank.rank} is on {rank.host or rank.node_ip}, which is not in the inventory"
            )
        elif expected != rank.node_ip:
            problems.append(
                f"rank {rank.rank} is on {rank.host} at {rank.node_ip}, "
                f"not at its node IP {expected}"
            )
    return problems


def _group_problems(layout: Layout, ranks: Sequence[Rank]) -> list[str]:
    """Return an error per tensor parallel group that the plan keeps in one host but spans several.

    A group is a run of TP ranks: vLLM counts TP fastest, then PP, then DP.
    """
    if not layout.keeps_tp_in_host:
        return []
    groups: dict[int, set[str]] = {}
    for rank in ranks:
        groups.setdefault(rank.rank // layout.tensor_parallel, set()).add(rank.host)
    return [
        f"the tensor parallel ranks of group {number} are spread over {' and '.join(sorted(hosts))}"
        for number, hosts in sorted(groups.items())
        if len(hosts) > 1
    ]
