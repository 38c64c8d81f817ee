"""Turn a request and a survey into a service document: all decisions of `serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import RayNotFormed, UsageError, raise_all
from clusterctl.facts.network_requirements import public_ips
from clusterctl.models.location import ModelLocation, locate
from clusterctl.models.name import Model
from clusterctl.models.probe import look_for
from clusterctl.models.version import parse_version
from clusterctl.node.documents import Member, MembersDocument, replica_name
from clusterctl.node.gateway_config import LOOPBACK
from clusterctl.node.rank_placement import NODE_IPS
from clusterctl.planning.cluster_hardware import gpus_of, hardware_of, hardware_of_unknown_gpus
from clusterctl.planning.forecast import MemoryForecast, forecast_memory, layout_env
from clusterctl.planning.free_gpus import gpus_held, hosts_on, on_of
from clusterctl.planning.options import own_limits
from clusterctl.planning.planner import fits_on
from clusterctl.planning.replicas import (
    Seats,
    require_replicas,
    seat_replicas,
    sites_of_unknown_gpus,
)
from clusterctl.planning.report import FitReport, Hardware
from clusterctl.planning.rules import rules_for
from clusterctl.ray_cluster.topology import base_url, client_address, reached_at
from clusterctl.serving.arguments import UNDECIDED, Launch, Layout
from clusterctl.serving.endpoint import ServiceEndpoint
from clusterctl.serving.request import ANY_HOST, ServiceRequest
from clusterctl.serving.service import (
    PlannedService,
    build_service,
    choose_port,
    document_name,
    replica_port,
    served_names,
)
from clusterctl.survey.gateways import hosts_with_gateway
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey, require_formed
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True, kw_only=True)
class ServicePlan(PlannedService):
    """A service that is ready to be declared, with the reasons for its plan. Its document and
    layout are those of the first replica."""

    location: ModelLocation | None = None  # None: every host downloads it from the Hub
    notes: tuple[str, ...] = ()
    fit: FitReport | None = None  # predicted memory and speed; None if they cannot be predicted
    others: tuple[PlannedService, ...] = ()  # All replicas but the first
    surplus: tuple[Replica, ...] = ()  # Declared replicas that are to stop
    members: MembersDocument | None = None  # None for a service that was never asked for replicas
    gateway_url: str = ""  # Of the gateway before its replicas; empty without one
    trust: str = ""  # The file that its users keep its certificate in, if that was made for it

    @property
    def endpoint(self) -> ServiceEndpoint:
        own = super().endpoint
        return replace(own, url=self.gateway_url, trust=self.trust) if self.gateway_url else own

    @property
    def replicas(self) -> tuple[PlannedService, ...]:
        return (self, *self.others)


def plan_service(
    survey: Survey,
    request: ServiceRequest,
    model: Model,
    leaving: Collection[str] = (),
) -> ServicePlan:
    """Decide everything about the service. Every host must have answered the survey. Raises
    UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed.

    `leaving`: replicas that will have stopped by then, whose GPUs count as free.
    """
    inventory, answers = survey.inventory, survey.answers
    state = require_formed(survey)
    topology = survey.topology
    names = served_names(request, model)
    name = document_name(request, names)
    service = survey.service(name)
    own = service.documents
    asked_on = on_of(survey, name) if request.on is None else request.on
    request = replace(request, on="" if asked_on == ANY_HOST else asked_on)
    hosts = hosts_on(survey, request.on or "")
    # None for a Hub id that none of these hosts has
    location: ModelLocation | None = None
    transports = {host: survey.transports[host] for host in hosts}
    looked = fan_out(transports, lambda transport: look_for(transport, model.candidates))
    raise_all(failures(looked))
    findings = values(looked)
    if any(findings.values()) or request.model != model.hub_id:
        location = locate(
            model,
            findings,
            random_weights=request.random_weights,
            head=inventory.head.name,
            models=inventory.models,
        )
    head = inventory.head
    address = client_address(head, survey.facts[head.name], topology.head.node_ip)
    gateways = [one.name for one in inventory.gateways if one.name in survey.facts]
    behind = request.replicas is not None or service.listed is not None
    _refuse_public(survey, request, gateways if behind else gateways[:1], address)
    listening = {port for one in gateways for port in survey.facts[one].listening_ports}
    ports = known_ports(survey, name)
    shape = location.shape if location else None
    launch = Launch(
        request=request,
        model_argument=location.path if location else request.model,
        served_names=names,
        layout=UNDECIDED,
        port=choose_port(name, request.port, ports, listening),
        shape=shape or (model.entry.shape if model.entry else None),
        host=request.host or address,
        entry=model.entry,
        defaults=accelerator_named(inventory.accelerator).defaults,
        version=parse_version(state.vllm_version),
        limits=own_limits(rules_for(state.vllm_version or None), gpus_of(answers)),
        random_weights=bool(location and location.random_weights),
    )
    build_service(launch)  # first of all, refuse flags that this vLLM lacks
    held = gpus_held(survey, state.nodes, [*(each.name for each in own), *leaving])
    held = held.without_drained(survey.drained).only_on(hosts, request.on or "")
    try:
        named = model.hub_id or model.served_name
        hardware = hardware_of(survey, held, state.vllm_version, named)
    except UsageError:  # GPUs whose memory is unknown
        hardware = hardware_of_unknown_gpus(inventory, held, state.vllm_version)
    same = own[0] if own and own[0].argv[2:3] == [launch.model_argument] else None
    config = location.config if location else None
    forecast = forecast_memory(launch, model, config, hardware, same)
    layout, env = forecast.layout, dict(forecast.env)
    if forecast.places:
        layout = replica_layout(layout, forecast.places)
        node_ips = [topology.node(host).node_ip for host in forecast.places]
        env |= {NODE_IPS: ",".join(node_ips)}
    notes = [
        *(f"{host} has left Ray: planned without it" for host in sorted(survey.left_out)),
        f"TP {layout.tensor_parallel}, PP {layout.pipeline_parallel}: {layout.reason}",
        *layout.notes,
    ]
    if location is None:
        notes.append(f"{model.hub_id} is on no host: every host downloads it from the Hub")
    elif location.note:
        notes.append(location.note)
    one = ServicePlan(
        document=build_service(replace(launch, layout=layout), env=env),
        layout=layout,
        head_address=address,
        chat=location is None or location.chat_template,
        location=location,
        notes=(*notes, *forecast.notes),
        fit=forecast.report,
    )
    if _placed_by_ray(survey, request, name, layout):
        return one
    return with_replicas(one, replace(launch, layout=layout), survey, hardware, forecast)


def known_ports(survey: Survey, own: str) -> dict[str, int]:
    """Return the ports that clients know, by service, with those of replicas of other services."""
    ports = {}
    for replica in survey.replicas.values():
        if replica.document.service != own or replica.placed_by_ray:
            ports[replica.name] = replica.document.port
    listed = {name: each.listed for name, each in survey.services.items()}
    return ports | {name: members.port for name, members in listed.items() if members}


def _refuse_public(
    survey: Survey, request: ServiceRequest, hosts: Sequence[str], address: str
) -> None:
    """Raise UsageError for all addresses where one of these hosts has one of the Internet."""
    if request.host not in ("0.0.0.0", "::") or survey.inventory.network.public:  # noqa: S104
        return
    for host in hosts:
        for nic, ip in public_ips(survey.facts[host]):
            raise UsageError(
                f"--host {request.host} would answer on {ip} ({nic}) of {host} too, an address of "
                "the Internet, and vLLM's paths outside of /v1 need no key",
                hint=f"leave it out: the service answers at {address}; or name one address; or, "
                "where something in front closes the port, network.public: true",
            )


def _placed_by_ray(survey: Survey, request: ServiceRequest, name: str, layout: Layout) -> bool:
    """Whether Ray chooses the hosts: of a service that was never asked for replicas. Raises
    UsageError for copies of vLLM's own where it was, RayNotFormed for these while a host is
    dead."""
    service = survey.service(name)
    # The list of members may be lost, with a directory that was deleted on the head.
    has_hosts = any(not replica.placed_by_ray for replica in service.replicas)
    if service.listed or has_hosts or request.on:
        if layout.data_parallel > 1:
            raise UsageError(
                f"{name} has replicas on hosts of their own, and Ray places the ranks of --dp",
                hint=f"clusterctl stop {name}, then serve again; or --replicas N in place of --dp",
            )
        return False
    if request.replicas is not None and not (service.replicas and request.replicas == 1):
        return False
    if survey.left_out and layout.data_parallel > 1:
        raise RayNotFormed(
            "vLLM's own copies need every host, and it does not answer",
            host=min(survey.left_out),
            hint="clusterctl status",
        )
    # What Ray places waits for all hosts of the inventory; a replica needs only its own.
    return not survey.left_out


def with_replicas(
    plan: ServicePlan,
    launch: Launch,
    survey: Survey,
    hardware: Hardware,
    forecast: MemoryForecast,
) -> ServicePlan:
    """Return the plan with all replicas: those that run keep their hosts, ports and numbers.

    Raises DoesNotFit if there is no room for all, UsageError for another TP or PP than that of the
    replicas that run.
    """
    topology, service, asked = survey.topology, plan.document.name, launch.request.replicas
    now = survey.service(service)
    own, known = now.documents, now.listed
    sizes = (launch.layout.tensor_parallel, launch.layout.pipeline_parallel)
    on = launch.request.on or ""
    kept = kept_seats(survey, now.replicas, sizes, hosts_on(survey, on))
    lost = now.lost
    before = len(now.members) if known else len(own)
    wanted = max(before, 1) if asked is None else None if asked == "max" else asked
    for replica in sorted(kept)[wanted:] if wanted is not None else ():
        del kept[replica]
    request = forecast.request
    sites = hardware.sites or sites_of_unknown_gpus(hardware.free)
    new = seat_replicas(
        sites,
        sizes,
        list(kept.values()),
        wanted,
        fits=(lambda placement: fits_on(request, placement)) if request else lambda _: True,
    )
    width = sizes[0] * sizes[1]
    possible = len(kept) + len(new)
    # Where there is no room for replicas of a dead host, they stay members, until it is back.
    waiting = lost if wanted is None else lost[: max(0, wanted - possible)]
    if not possible or possible + len(waiting) < (wanted or 1):
        require_replicas(service, wanted or 1, possible, width)
    numbers = (number for number in count(1) if number not in now.numbers)
    seated = sorted({**kept, **dict(zip(numbers, new, strict=False))}.items())
    public = launch.api_port
    # Where the service would be without replicas: its address stays when it gets some.
    listen = launch.request.host or (known.listen if known else launch.host)
    replicas: list[PlannedService] = []
    taken = {(host, one.port) for host, each in survey.documents.items()
             for one in each.values()}  # fmt: skip
    for number, seats in seated:
        first = topology.node(seats[0])
        name = replica_name(service, number)
        old = survey.documents[first.host].get(name)
        port = old.port if old and old.node_ips and old.port != public else None
        if port is None:
            there = {public, *(port for host, port in taken if host == first.host)}
            # Of gateways there
            there |= {each.listed.port for each in survey.services.values() if each.listed}
            port = replica_port(there, survey.facts[first.host].listening_ports)
        taken.add((first.host, port))
        layout = replica_layout(launch.layout, seats)
        document = build_service(
            replace(launch, layout=layout, host=first.node_ip, port=port),
            env=layout_env(layout, hardware),
        )
        node_ips = [topology.node(host).node_ip for host in seats]
        document = replace(document, name=name, replica=number, node_ips=node_ips)
        replicas.append(
            PlannedService(
                document=document, layout=layout, head_address=first.node_ip, chat=plan.chat
            )
        )
    members = MembersDocument(
        service=service,
        served_names=list(launch.served_names),
        port=public,
        members=members_of(replicas, waiting),
        stall_timeout=plan.document.stall_timeout,
        listen=listen if listen != topology.head.node_ip else "",
        on=on,
    )
    notes = plan.notes
    if waiting:
        notes = (_waiting_note(waiting, possible), *notes)
    door, trust = gateway_door(survey, members, plan.head_address)
    notes = (*door_notes(survey, door, public), *notes)
    first_replica, *others = replicas
    where = Counter(seats[0] for _, seats in seated)
    spread = ", ".join(f"{number} on {host}" for host, number in where.items())
    noun = f"{len(seated)} replica{'s' * (len(seated) > 1)}"
    # The forecast counts the replicas that could be started; these are the ones that will be.
    return replace(
        plan,
        document=first_replica.document,
        layout=first_replica.layout,
        head_address=first_replica.head_address,
        notes=(f"{noun}: {spread}", *notes),
        gateway_url=door,
        trust=trust,
        others=tuple(others),
        surplus=tuple(each for each in now.replicas if each.number not in kept),
        members=members,
    )


def gateway_door(survey: Survey, members: MembersDocument, head_address: str) -> tuple[str, str]:
    """Return the gateway's URL of a service, and the file that its users keep the certificate in
    if that was made for it. Both are empty without a gateway."""
    gateway = survey.require_supervised_head().gateway
    if gateway.state == "absent":
        return "", ""
    listens = members.listen or survey.topology.head.node_ip
    # Its own loopback has no TLS: that is for clients on the head.
    tls = gateway.tls and listens != LOOPBACK
    made = tls and not survey.inventory.gateway.certificate
    url = base_url(reached_at(listens, head_address), members.port, tls=tls)
    return url, f"{survey.inventory.cluster}.crt" if made else ""


def door_notes(survey: Survey, door: str, port: int) -> tuple[str, ...]:
    """Return what users must know of a gateway with this URL."""
    if not door:
        return ("this image has no gateway: clients use the replicas' own addresses",)
    others = hosts_with_gateway(survey)[1:]
    return (f"port {port} of {', '.join(others)} answers, too",) if others else ()


def members_of(planned: Sequence[PlannedService], away: Sequence[Member]) -> list[Member]:
    """Return the replicas as members, with those of dead hosts, by number. One that Ray placed is
    reached at the service's own port, and is none."""
    found = [
        Member(one.document.replica, one.layout.hosts[0], one.document.host, one.document.port)
        for one in planned
        if one.document.node_ips
    ]
    return sorted([*away, *found], key=lambda member: member.replica)


def _waiting_note(waiting: Sequence[Member], possible: int) -> str:
    away = ", ".join(sorted({member.host for member in waiting}))
    count = f"{len(waiting)} of {possible + len(waiting)}"
    return f"no room for {count} replicas until {away} is back"


def kept_seats(
    survey: Survey,
    own: Sequence[Replica],
    sizes: tuple[int, int],
    allowed: Collection[str],
) -> dict[int, Seats]:
    """Return the hosts of the ranks of each declared replica that stays where it is, by number: on
    hosts that are `allowed` and not drained.

    Raises UsageError for a replica with another TP and PP than `sizes`.
    """
    topology = survey.topology
    hosts = {node.node_ip: node.host for node in topology.nodes}
    kept: dict[int, Seats] = {}
    for replica in own:
        document = replica.document
        if (document.tensor_parallel, document.pipeline_parallel) != sizes:
            raise UsageError(
                f"{document.name} runs with TP {document.tensor_parallel} and PP "
                f"{document.pipeline_parallel}: replicas change one at a time, and to other GPUs "
                "only after a stop",
                hint=f"clusterctl stop {document.service}, then serve again",
            )
        seats = tuple(hosts[node_ip] for node_ip in document.node_ips if node_ip in hosts)
        if replica.placed_by_ray:
            seats = tuple(rank.host for rank in replica.ranks)
        in_place = document.node_ips or seats[:1] == (topology.head.host,)
        if (
            in_place
            and len(seats) == document.gpus
            and set(seats) <= set(allowed) - set(survey.drained)
        ):
            kept[document.replica] = seats
    return kept


def replica_layout(layout: Layout, seats: Seats) -> Layout:
    """Return the layout of a replica whose ranks are placed on exactly these hosts."""
    tp = layout.tensor_parallel
    groups = [set(seats[start : start + tp]) for start in range(0, len(seats), tp)]
    hosts = tuple(dict.fromkeys(seats))
    inside = all(len(group) == 1 for group in groups)
    return replace(layout, hosts=hosts, least_hosts=len(hosts), keeps_tp_in_host=inside, notes=())
