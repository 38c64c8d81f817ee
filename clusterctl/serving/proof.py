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
from clusterctl.kinds.kind import ModelKind
from clusterctl.kinds.known import kind_named
from clusterctl.node.documents import (
    GatewayState,
    NodeState,
    Rank,
    ServiceDocument,
    ServiceState,
    is_standby,
)
from clusterctl.ray_cluster.topology import base_url
from clusterctl.serving.arguments import Layout
from clusterctl.serving.declaration import followed
from clusterctl.serving.endpoint import ServiceAnswer, ask
from clusterctl.serving.service import PlannedReplica
from clusterctl.transport.base import Transport
from clusterctl.transport.tcp import Tunnel


@dataclass(frozen=True)
class Proof:
    """The answer and the placement of a proven service."""

    answer: ServiceAnswer
    kind: ModelKind
    ranks: tuple[Rank, ...]
    placement: str  # the hosts of the ranks, for display
    # From the start of vLLM to its first answer, as the supervisor measured it
    ready_seconds: float
    stages: Mapping[str, float]  # Seconds of it by stage, in order


def prove(
    service: PlannedReplica,
    key: str,
    api: Transport,
    read: Callable[[], NodeState | None],
    sink: EventSink,
    addresses: Mapping[str, str],
) -> Proof:
    """Send a request like a client, for the kind of model that the supervisor found, and compare
    the ranks with the plan.

    api        the host that runs the API server
    read       returns the current state of that host
    addresses  the node IP of every host, by name

    Raises StepFailed if there is no valid answer, or if ranks are not where the plan puts them.
    """
    document, host = service.document, api.host.name
    title = "prove it: one request, and where the ranks run"
    sink(StepStarted(host, title, Change(title)))
    started = time.monotonic()
    ranks: list[Rank] = []

    def look() -> ServiceState | None:
        nonlocal ranks
        state = read()
        service = followed(state, document) if state else None
        ranks = service.ranks if service else []
        return service if service and len(ranks) >= document.gpus else None

    found = deadlines.wait_until(look, deadlines.RANKS, every=0.3)
    if not found:
        where = ", ".join(f"{rank.rank} on {rank.host}" for rank in ranks)
        raise StepFailed(
            f"Ray reported only {len(ranks)} of {document.gpus} ranks within "
            f"{deadlines.RANKS:.0f} s" + (f": {where}" if where else ""),
            host=host,
            hint=f"clusterctl logs {document.name}",
        )
    running = found
    kind = kind_named(running.kind)
    port = document.standby_port if is_standby(running.name) else document.port
    with Tunnel(api, document.host, port) as tunnel:
        endpoint = replace(service.endpoint, url=base_url("127.0.0.1", tunnel.port), kind=kind)
        answer = ask(endpoint, key, deadline=deadlines.FIRST_ANSWER)
    problems = placement_problems(service.layout, addresses, ranks)
    if problems:
        raise StepFailed(
            "the ranks are not where the plan puts them",
            host=host,
            detail="\n".join(problems),
            hint=f"clusterctl stop {document.service}, then serve again",
        )
    if document.adapters:
        _await_adapters(document, host, read)
    sink(StepFinished(host, title, "changed", time.monotonic() - started))
    return Proof(answer, kind, tuple(ranks), describe(ranks), running.ready_seconds, running.start)


def _await_adapters(
    document: ServiceDocument, host: str, read: Callable[[], NodeState | None]
) -> None:
    """Wait until the replica offers its adapters. Raises StepFailed, with the reason, if not."""
    found: dict[str, str] = {}

    def offered() -> bool | None:
        nonlocal found
        state = read()
        service = state.service(document.name) if state else None
        found = service.adapters if service else {}
        known = found.keys() == document.adapters.keys()
        return (known and not any(found.values())) or any(found.values()) or None

    deadlines.wait_until(offered, deadlines.ADAPTERS, every=0.3)
    missing = {name: found.get(name, "not loaded") for name in document.adapters}
    problems = [f"{name}: {why}" for name, why in missing.items() if why]
    if problems:
        raise StepFailed(
            f"{document.name} does not offer all of its adapters",
            host=host,
            detail="\n".join(problems),
            hint=f"clusterctl logs {document.name}; to copy what a host lacks: "
            f"clusterctl adapter add {document.service} NAME=DIRECTORY",
        )


def await_gateway(
    service: str, port: int, host: str, read: Callable[[], NodeState | None], sink: EventSink
) -> None:
    """Wait until the gateway listens on the service's port and admits one of its replicas.

    `read` returns the current state of `host`. Raises StepFailed, with the gateway's reason.
    """
    title = "wait for the gateway"
    sink(StepStarted(host, title, Change(title)))
    started, gateway = time.monotonic(), GatewayState()

    def passes_on() -> bool | None:
        nonlocal gateway
        state = read()
        gateway = state.gateway if state else gateway
        listens = any(each.endswith(f":{port}") for each in gateway.listens)
        admitted = any(one.admitted for one in gateway.members if one.service == service)
        return (gateway.state == "up" and listens and admitted) or None

    if not deadlines.wait_until(passes_on, deadlines.GATEWAY_UP, every=0.3):
        whys = [one.why for one in gateway.members if one.service == service and one.why]
        why = gateway.detail if gateway.state != "up" else "; ".join(dict.fromkeys(whys))
        raise StepFailed(
            f"the replicas of {service} are ready, but the gateway on port {port} passes nothing "
            f"on to them: it is {gateway.state}{f' ({why})' if why else ''}",
            host=host,
            hint="clusterctl status",
        )
    sink(StepFinished(host, title, "changed", time.monotonic() - started))


def placement_problems(
    layout: Layout, addresses: Mapping[str, str], ranks: Sequence[Rank]
) -> list[str]:
    """Return the differences between the ranks that Ray reports and the layout, a sentence each.

    `addresses`: the node IP of every inventory host, by name.
    """
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    problems = []
    numbers = Counter(rank.rank for rank in ranks)
    expected = set(range(layout.ranks))
    for what, found in (
        ("missing", sorted(expected - numbers.keys())),
        ("beyond the plan", sorted(numbers.keys() - expected)),
        ("reported twice", sorted(number for number, count in numbers.items() if count > 1)),
    ):
        if found:
            which = f"{', '.join(map(str, found))} {'is' if len(found) == 1 else 'are'} {what}"
            problems.append(f"of {layout.ranks} ranks, {which}")
    for rank in ranks:
        node_ip = addresses.get(rank.host)
        if node_ip is None:
            problems.append(
                f"rank {rank.rank} is on {rank.host or rank.node_ip}, which is not in the inventory"
            )
        elif node_ip != rank.node_ip:
            problems.append(
                f"rank {rank.rank} is on {rank.host} at {rank.node_ip}, "
                f"not at its node IP {node_ip}"
            )
    if layout.keeps_tp_in_host:
        # A group is a run of TP ranks: vLLM counts TP fastest, then PP, then DP.
        groups: dict[int, set[str]] = {}
        for rank in ranks:
            groups.setdefault(rank.rank // layout.tensor_parallel, set()).add(rank.host)
        problems += [
            f"the tensor parallel ranks of group {number} are spread over "
            f"{' and '.join(sorted(hosts))}"
            for number, hosts in sorted(groups.items())
            if len(hosts) > 1
        ]
    # Elsewhere than planned they take the GPUs of another replica, or others than they fit on.
    planned, used = Counter(layout.seats), Counter(rank.host for rank in ranks)
    problems += [
        f"{host} has {used[host]} of the ranks, and the plan puts {planned[host]} there"
        for host in sorted({*planned, *used})
        if used[host] != planned[host]
    ]
    return problems


def describe(ranks: Sequence[Rank]) -> str:
    """Return the ranks as text, with consecutive ranks on one host as a range:
    `rank 0 gpu1 (10.78.0.11), ranks 1-2 gpu2 (10.78.0.12)`."""
    runs: list[list[Rank]] = []
    for rank in sorted(ranks, key=lambda rank: rank.rank):
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
