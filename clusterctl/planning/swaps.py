"""Two services that have the same GPUs in turn (`--swap`, `--swap-with`): what the second one gets
from the first, and what would part them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterctl.errors import DoesNotFit, RequirementsNotMet, UsageError
from clusterctl.planning.report import Hardware
from clusterctl.serving.request import ServiceRequest
from clusterctl.survey.services import Replica, Service, partner_of
from clusterctl.survey.survey import Survey

STATUS = "clusterctl status"


def require_first(survey: Survey, name: str, swap_with: str) -> Replica:
    """Return the replica whose GPUs the service `name` is to have, too. Raises UsageError for one
    that cannot be swapped with, RequirementsNotMet if one of its hosts is dead."""
    if name == swap_with:
        raise UsageError(f"{name} cannot swap with itself", hint="--name OTHER")
    service = survey.service(swap_with)
    if not service.replicas and not service.lost:
        have = ", ".join(sorted(survey.services)) or "none"
        raise UsageError(
            f"no service named {swap_with} to swap with; services: {have}",
            hint=f"clusterctl serve MODEL --name {swap_with} --swap",
        )
    first = next(iter(service.replicas), None)
    if first is None or len(seats_of(survey, first)) < first.document.gpus:
        raise RequirementsNotMet(f"{swap_with} has ranks on a host that is dead", hint=STATUS)
    document = first.document
    if document.swap_with:
        raise UsageError(
            f"{swap_with} itself swaps with {document.swap_with}, and two services share GPUs, "
            "not three",
            hint=STATUS,
        )
    if not document.swap:
        sizes = f"--tp {document.tensor_parallel} --pp {document.pipeline_parallel}"
        raise UsageError(
            f"{swap_with} does not share its GPUs: it was served without --swap",
            hint=f"add --swap, and keep its other flags: clusterctl serve {document.model} "
            f"--name {swap_with} {sizes} --swap",
        )
    other = partner_of(swap_with, survey.replicas.values())
    if other and other.document.service != name:
        taken = other.document.service
        raise UsageError(
            f"{swap_with} already swaps with {taken}, and two services share GPUs, not three",
            hint=f"clusterctl stop {taken}",
        )
    return first


def seats_of(survey: Survey, replica: Replica) -> tuple[str, ...]:
    """Return the host of each of its ranks, in order."""
    hosts = {node.node_ip: node.host for node in survey.topology.nodes}
    return tuple(hosts[node_ip] for node_ip in replica.document.node_ips if node_ip in hosts)


def sized_like(first: Replica, request: ServiceRequest, name: str) -> ServiceRequest:
    """Return the request for as many GPUs as the first service has. Raises UsageError if it is for
    more or fewer."""
    document = first.document
    own = document.tensor_parallel, document.pipeline_parallel
    tp, pp = request.tensor_parallel, request.pipeline_parallel
    if tp is None and pp is None:
        tp, pp = own
    tp = tp or document.gpus // (pp or 1) or 1
    pp = pp or document.gpus // tp or 1
    if tp * pp != document.gpus:
        raise UsageError(
            f"{document.service} has {document.gpus} GPUs, and {name} is to have the same, not "
            f"{tp * pp}",
            hint=f"--tp {own[0]} --pp {own[1]}, or leave both out",
        )
    return replace(request, tensor_parallel=tp, pipeline_parallel=pp)


def require_whole(name: str, hosts: Iterable[str], hardware: Hardware) -> None:
    """Raise DoesNotFit for a service that is to swap where others have shares of GPUs."""
    free = {each.host for each in hardware.free if each.free}
    for host in hosts:
        if host not in free:
            raise DoesNotFit(
                f"{name} cannot swap: other services share GPUs on this host",
                host=host,
                hint=f"clusterctl stop {name}, then serve it with --on and other hosts",
                detail="\n".join(hardware.held),
            )


def require_same_pair(survey: Survey, name: str, request: ServiceRequest) -> None:
    """Raise UsageError for a service that would have other GPUs, or leave its partner without."""
    partner = partner_of(name, survey.replicas.values())
    for replica in survey.service(name).replicas:
        now, wanted = replica.document.swap_with, request.swap_with
        if now != wanted:
            has = f"swaps with {now}" if now else "does not swap"
            gets = f"the GPUs of {wanted}" if wanted else "GPUs of its own"
            raise UsageError(
                f"{name} {has}, and would get {gets}",
                hint=f"clusterctl stop {name}, then serve again",
            )
    if partner and partner.document.swap_with and not request.swap:
        second = partner.document.service
        raise UsageError(
            f"{second} swaps with {name}, which would no longer share its GPUs",
            hint=f"add --swap; or first: clusterctl stop {second}",
        )


def require_together(survey: Survey, service: Service, *, stays: bool) -> None:
    """Raise RequirementsNotMet for a first service that leaves its hosts, and its partner there."""
    partner = partner_of(service.name, survey.replicas.values())
    if partner and partner.document.swap_with and service.replicas and not stays:
        raise pair_stays(partner.document.service, service.replicas[0], partner.host)


def pair_stays(name: str, first: Replica, host: str) -> RequirementsNotMet:
    """Return why the service `name`, which swaps with the `first`, is not moved from its host."""
    swap_with = first.document.service
    return RequirementsNotMet(
        f"{swap_with} and {name} take turns on the same GPUs, and such a pair cannot be moved",
        host=host,
        hint=f"clusterctl stop {name}; then try again, and serve it anew with --swap-with "
        f"{swap_with}",
    )


def require_no_second(survey: Survey, name: str) -> None:
    """Raise UsageError for a service with which another one swaps: that cannot do without it."""
    partner = partner_of(name, survey.replicas.values())
    if partner and partner.document.swap_with:
        second = partner.document.service
        raise UsageError(
            f"{second} swaps with {name}, and starts only where {name} has its GPUs",
            hint=f"clusterctl stop {second}",
        )
