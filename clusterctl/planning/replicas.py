"""The places of a service's replicas: hosts for their ranks, numbers and ports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import NamedTuple

from clusterctl.errors import DoesNotFit
from clusterctl.node.documents import Member, ServiceDocument, replica_name, to_json
from clusterctl.planning.forecast import COPY_PLACEMENT, SYMMETRIC_MEMORY, layout_env
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.placement import (
    PARTITION,
    HostGpus,
    Placement,
    Site,
    seat_ranks,
    sites_without,
)
from clusterctl.planning.planner import fits_on
from clusterctl.planning.report import Hardware, PlanRequest
from clusterctl.serving.arguments import COPIES_THERE, Layout
from clusterctl.serving.declaration import service_file
from clusterctl.serving.service import PlannedReplica, fingerprint, replica_port
from clusterctl.serving.vllm_flags import (
    Argument,
    last_value,
    lay_over,
    parse_arguments,
    render,
)
from clusterctl.survey.services import Replica, Service
from clusterctl.survey.survey import Survey

Seats = tuple[str, ...]  # The host of each rank of one replica, in vLLM's order

# What a replica's environment says of the hosts and GPUs that it was planned for
_OF_A_PLACE = frozenset({SYMMETRIC_MEMORY, PARTITION, COPY_PLACEMENT})


class Sizes(NamedTuple):
    """How each replica is divided over its GPUs."""

    tp: int
    pp: int
    dp: int = 1

    @property
    def width(self) -> int:
        """GPUs of a data parallel rank."""
        return self.tp * self.pp

    @property
    def gpus(self) -> int:
        return self.width * self.dp

    def __str__(self) -> str:
        return f"TP {self.tp}, PP {self.pp}" + (f", DP {self.dp}" if self.dp > 1 else "")


def sizes_of(document: ServiceDocument) -> Sizes:
    tp, pp = document.tensor_parallel, document.pipeline_parallel
    return Sizes(tp, pp, document.gpus // (tp * pp))


def seats_for(
    hardware: Hardware,
    sizes: Sizes,
    kept: Sequence[Seats],
    most: int | None,
    request: PlanRequest | None,
) -> list[Seats]:
    """Return the seats of replicas beyond those `kept`, until there are `most` in all, or for as
    many as fit. `request`: the planner's request for each; None if it cannot plan them."""
    sites = hardware.sites or sites_of_unknown_gpus(hardware.free)

    def fits(placement: Placement) -> bool:
        return request is None or fits_on(request, placement)

    return seat_replicas(sites, sizes, kept, most, fits)


def seat_replicas(
    sites: Sequence[Site],
    sizes: Sizes,
    kept: Sequence[Seats],
    most: int | None,
    fits: Callable[[Placement], bool] = lambda _: True,
) -> list[Seats]:
    """Return the seats of replicas beyond those `kept`, until there are `most` in all, or for as
    many as fit.

    sites  hosts with their free GPUs; those of the replicas in `kept` are among them
    fits   whether a replica can start on the GPUs of this placement

    A replica gets GPUs of one host if a host has enough, so that its ranks exchange nothing over
    the network; hosts with fewer replicas of this service come first, so that losing a host costs
    as few as possible.
    """
    largest = max((len(site.gpus) for site in sites), default=0)
    used = Counter(host for seats in kept for host in set(seats))
    left = sites_without(sites, [host for seats in kept for host in seats])
    found: list[Seats] = []

    while most is None or len(kept) + len(found) < most:
        groups = [[site] for site in sorted(left, key=lambda site: used[site.host])]
        if largest < sizes.gpus:
            groups = [left]
        placements = (_copies_on(group, sizes, largest) for group in groups)
        copies = next((each for each in placements if each and all(map(fits, each))), None)
        if copies is None:
            break

        seats = tuple(seat.host for placement in copies for seat in placement.seats)
        left = sites_without(left, seats)
        used.update(set(seats))
        found.append(seats)
    return found


def _copies_on(sites: Sequence[Site], sizes: Sizes, largest: int) -> list[Placement]:
    """Return the places of a replica's data parallel ranks (usually one); none if they do not fit.
    vLLM starts them host by host, and splits one across hosts only if it needs more than the
    `largest` host has."""
    groups = [sites]
    if sizes.width <= largest:
        groups = [[site] for site in sorted(sites, key=lambda site: -len(site.gpus))]

    found: list[Placement] = []
    for group in groups:
        left = list(group)
        while len(found) < sizes.dp and sum(len(site.gpus) for site in left) >= sizes.width:
            placement = seat_ranks(left, sizes.tp, sizes.pp)
            left = sites_without(left, [seat.host for seat in placement.seats])
            found.append(placement)
    return found if len(found) == sizes.dp else []


def require_replicas(
    service: str, asked: int, possible: int, width: int, fix: str = "--replicas {1}"
) -> None:
    """Raise DoesNotFit if more replicas were requested than fit."""
    if asked <= possible:
        return
    gpus = f"{width} GPU{'s' * (width > 1)} each"
    raise DoesNotFit(
        f"{asked} replicas of {service} need {gpus}, and {possible or 'none'} of them "
        f"{'fits' if possible == 1 else 'fit'} on the free GPUs",
        hint=fix.format(service, possible)
        if possible
        else "clusterctl status shows who uses the GPUs",
    )


def sites_of_unknown_gpus(free: Sequence[HostGpus]) -> list[Site]:
    """Return hosts of which only the number of GPUs is known, to place ranks on."""
    unknown = GpuModel("GPU", 0.0, 0, 0, 0, 0)
    return [Site(host.host, (unknown,) * host.free) for host in free if host.free]


def free_numbers(service: Service, many: int) -> list[int]:
    """Return the numbers of new replicas: the lowest unused ones."""
    numbers = (number for number in count(1) if number not in service.numbers)
    return list(islice(numbers, many))


@dataclass
class ReplicaPorts:
    """The ports of replicas on each host, while new ones are assigned."""

    survey: Survey
    _given: set[tuple[str, int]] = field(default_factory=set)

    def new(self, host: str, public: int) -> int:
        """Return a free port. `public`: the service's own, which no replica may have. Raises
        UsageError if all are taken."""
        declared = self.survey.documents[host].values()
        taken = {port for each in declared for port in (each.port, each.standby_port)}
        taken |= {port for where, port in self._given if where == host}
        # Gateways listen there.
        listed = [service.listed for service in self.survey.services.values()]
        taken |= {public, *(each.port for each in listed if each)}

        port = replica_port(taken, self.survey.facts[host].listening_ports)
        self.keep(host, port)
        return port

    def keep(self, host: str, port: int) -> None:
        self._given.add((host, port))


def as_declared(survey: Survey, replica: Replica) -> PlannedReplica:
    """Return a declared replica as a plan that changes nothing. A plain completion proves it, with
    any tokenizer."""
    document, hosts = replica.document, {n.node_ip: n.host for n in survey.topology.nodes}
    # A host that was taken out of the inventory is named by its address.
    seats = tuple(hosts.get(ip, ip) for ip in document.node_ips)
    layout = Layout(*sizes_of(document), seats=seats)
    return PlannedReplica(
        document=document, layout=layout, host=replica.host, chat=False, old=document
    )


def moved(
    survey: Survey,
    document: ServiceDocument,
    number: int,
    seats: Seats,
    port: int,
    hardware: Hardware,
    standby_port: int = 0,
) -> PlannedReplica:
    """Return a new replica with the same settings on these hosts, and the variables that vLLM needs
    there."""
    node_ips = [survey.topology.node(host).node_ip for host in seats]
    layout = Layout(*sizes_of(document), seats=seats)

    flags = parse_arguments(document.argv[3:])
    new = [Argument("host", (node_ips[0],)), Argument("port", (str(port),))]
    if last_value(flags, COPIES_THERE):
        new.append(Argument(COPIES_THERE, (str(layout.copies[0]),)))
    argv = [*document.argv[:3], *render(lay_over(flags, new))]
    kept = {name: value for name, value in document.env.items() if name not in _OF_A_PLACE}
    env = {**kept, **layout_env(layout, hardware)}
    placed = replace(
        document,
        name=replica_name(document.service, number),
        replica=number,
        argv=argv,
        env=env,
        host=node_ips[0],
        port=port,
        standby_port=standby_port,
        node_ips=node_ips,
        fingerprint=fingerprint(argv, env),
    )
    return PlannedReplica(document=placed, layout=layout, host=seats[0], chat=False)


def members_of(planned: Iterable[PlannedReplica], away: Sequence[Member]) -> list[Member]:
    """Return the replicas as members, including those of dead hosts, by number."""
    found = [
        Member(
            one.document.replica,
            one.host,
            one.document.host,
            one.document.port,
            standby_port=one.document.standby_port,
        )
        for one in planned
    ]
    return sorted([*away, *found], key=lambda member: member.replica)


def as_if_declared(survey: Survey, planned: Iterable[PlannedReplica]) -> Survey:
    """Return the survey as it would be once these replicas are declared."""
    written: dict[str, dict[str, bytes | None]] = {}
    for replica in planned:
        path = service_file(survey.inventory.cluster, replica.name)
        written.setdefault(replica.host, {})[path] = to_json(replica.document).encode()
    return survey.as_if_run_wrote(written)
