"""Who holds a cluster's GPUs: what Ray counts as used, and what declared services will take once
they start. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from clusterctl.node.documents import NodeState, ServiceDocument, ServiceState
from clusterctl.planning.placement import HostGpus
from clusterctl.ray_cluster.topology import Topology

# States in which a service may hold GPUs that none of its ranks is seen on yet: vLLM reserves
# them all before the first rank starts.
_WITH_PROCESS = frozenset({"starting", "loading", "ready", "stalled", "stopping"})


@dataclass(frozen=True)
class Held:
    """`free`: per host, the head first; what the service that is replaced holds is free.
    `holders`: who has the others, a line each."""

    free: Sequence[HostGpus]
    holders: tuple[str, ...]


def gpus_held(
    topology: Topology,
    state: NodeState,
    declared: Mapping[str, ServiceDocument],
    own: ServiceDocument | None,
) -> Held:
    """`own` is the service about to be replaced; all other declared ones keep their GPUs, also
    those that did not come up yet."""
    nodes = sorted(topology.nodes, key=lambda node: node.role != "head")
    gpus = {node.host: node.gpus for node in nodes}
    used = {node.name: ceil(node.gpus_used) for node in state.nodes if node.alive}
    running = {service.name: service for service in state.services}
    others = [document for document in declared.values() if not own or document.name != own.name]

    free = {host: max(0, count - used.get(host, 0)) for host, count in gpus.items()}
    with_rank = Counter(rank.host for service in state.services for rank in service.ranks)
    reserved = {host: max(0, used.get(host, 0) - with_rank[host]) for host in gpus}
    if own:
        ranks = running[own.name].ranks if own.name in running else []
        given_back = [rank.host for rank in ranks if rank.host in gpus]
        for host in given_back + _take(reserved, _without_rank(own, running)):
            free[host] = min(gpus[host], free[host] + 1)
    for document in others:
        _take(
            free,
            _to_come(document, running) - len(_take(reserved, _without_rank(document, running))),
        )
    return Held([HostGpus(*each) for each in free.items()], tuple(_holders(others, running)))


def _without_rank(document: ServiceDocument, running: Mapping[str, ServiceState]) -> int:
    """GPUs that Ray may count as used for this service, though no rank is seen on them."""
    service = running.get(document.name)
    has_process = service is not None and service.state in _WITH_PROCESS
    return _to_come(document, running) if has_process else 0


def _to_come(document: ServiceDocument, running: Mapping[str, ServiceState]) -> int:
    """GPUs of this service that no rank is seen on."""
    service = running.get(document.name)
    return max(0, document.gpus - (len(service.ranks) if service else 0))


def _take(gpus: dict[str, int], count: int) -> list[str]:
    """Take `count` GPUs, or as many as there are, from the first hosts that have some: vLLM seats
    ranks on the head first. The host of each."""
    taken = [host for host, number in gpus.items() for _ in range(number)][: max(0, count)]
    for host in taken:
        gpus[host] -= 1
    return taken


def _holders(
    others: Iterable[ServiceDocument], running: Mapping[str, ServiceState]
) -> Iterable[str]:
    for document in others:
        service = running.get(document.name)
        hosts = dict.fromkeys(rank.host for rank in service.ranks) if service else {}
        where = f" on {', '.join(hosts)}" if hosts else ""
        condition = service.state if service else "declared"
        count = f"{document.gpus} GPU{'s' * (document.gpus > 1)}"
        yield f"service {document.name} ({condition}) holds {count}{where}"
