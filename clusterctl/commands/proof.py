"""The proof that a service serves: an answer came back, and the ranks sit as planned."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from clusterctl import deadlines
from clusterctl.commands.launch import Prepared
from clusterctl.engine.events import EventSink, StepFinished, StepStarted
from clusterctl.engine.step import Change
from clusterctl.errors import StepFailed
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState, Rank, ServiceDocument, ServiceState
from clusterctl.node.paths import NodePaths
from clusterctl.node.tasks import Task, task_of
from clusterctl.ray_cluster.topology import base_url
from clusterctl.serving.endpoint import Answer, ask
from clusterctl.serving.placement import check_placement
from clusterctl.transport.base import Transport
from clusterctl.transport.tunnel import Tunnel


@dataclass(frozen=True)
class Proof:
    """What was seen."""

    answer: Answer
    task: Task
    ranks: tuple[Rank, ...]
    placement: str  # Where the ranks run, in words
    # From the start of vLLM to its own first answer, as the supervisor measured it
    ready_seconds: float


def prove(
    inventory: Inventory,
    head: Transport,
    prepared: Prepared,
    read: Callable[[], NodeState | None],
    sink: EventSink,
) -> Proof:
    """Ask as a client would for what the supervisor found it to serve, and compare the ranks with
    the plan. Raises StepFailed when no answer comes, or the ranks are not where they should be.
    """
    document, host = prepared.document, head.host.name
    title = "prove it: an answer, and where the ranks run"
    sink(StepStarted(host, title, Change(title)))
    started = time.monotonic()
    key = read_key(inventory, head)
    state, service = _ranked(document, read)
    task = task_of(service.task)
    with Tunnel(head, document.host, document.port) as tunnel:
        url = base_url("127.0.0.1", tunnel.port)
        answer = ask(
            replace(prepared.endpoint, url=url, task=task), key, deadline=deadlines.FIRST_ANSWER
        )
    placement = _place(prepared, state, service.ranks, host)
    sink(StepFinished(host, title, "changed", time.monotonic() - started))
    return Proof(answer, task, tuple(service.ranks), placement, service.ready_seconds)


def read_key(inventory: Inventory, head: Transport) -> str:
    """The API key, from its file on the head; it travels over SSH only."""
    result = head.run(["cat", str(NodePaths(inventory.cluster).api_key)], sudo=True)
    if not result.ok:
        raise StepFailed(
            "the API key cannot be read",
            host=head.host.name,
            hint=f"clusterctl bootstrap {inventory.file}",
            detail=result.last_lines(),
        )
    return result.stdout.strip()


def _ranked(
    document: ServiceDocument, read: Callable[[], NodeState | None]
) -> tuple[NodeState, ServiceState]:
    """The service, once the head reports all its ranks."""
    deadline = time.monotonic() + deadlines.RANKS
    while True:
        state = read()
        service = (
            next((s for s in state.services if s.name == document.name), None) if state else None
        )
        if state and service and len(service.ranks) >= document.gpus:
            return state, service
        if time.monotonic() > deadline:
            seen = len(service.ranks) if service else 0
            where = (
                ", ".join(f"{rank.rank} on {rank.host}" for rank in service.ranks)
                if service
                else ""
            )
            raise StepFailed(
                f"Ray reports {seen} of {document.gpus} ranks within {deadlines.RANKS:.0f} s"
                + (f": {where}" if where else ""),
                hint=f"clusterctl logs {document.name}",
            )
        time.sleep(0.3)


def _place(prepared: Prepared, state: NodeState, ranks: Sequence[Rank], host: str) -> str:
    addresses = {node.name: node.node_ip for node in state.nodes if node.alive}
    placement = check_placement(prepared.layout, addresses, ranks)
    if not placement.proven:
        raise StepFailed(
            "the ranks are not where the plan puts them",
            host=host,
            detail="\n".join(placement.problems),
            hint=f"clusterctl stop {prepared.document.name}, then serve again",
        )
    return placement.sentence
