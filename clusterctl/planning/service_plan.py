"""Turn a request and a survey into a service's documents: all decisions of `serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from clusterctl.errors import RayNotFormed, UsageError
from clusterctl.facts.network_requirements import public_ips
from clusterctl.models.location import ModelLocation
from clusterctl.models.name import Model
from clusterctl.node.documents import Member, MembersDocument, ServiceDocument, replica_name
from clusterctl.node.gateway_config import LOOPBACK
from clusterctl.node.rank_placement import NODE_IPS
from clusterctl.planning.asking import asked as ask_engine
from clusterctl.planning.forecast import MemoryForecast, forecast_memory, layout_env
from clusterctl.planning.free_gpus import hosts_on
from clusterctl.planning.question import Question, question
from clusterctl.planning.replicas import (
    ReplicaPorts,
    Seats,
    Sizes,
    free_numbers,
    members_of,
    replica_layout,
    require_replicas,
    seats_for,
    sizes_of,
)
from clusterctl.planning.report import FitReport
from clusterctl.ray_cluster.topology import base_url, client_address, reached_at
from clusterctl.serving.arguments import Launch, Layout
from clusterctl.serving.endpoint import ServiceEndpoint
from clusterctl.serving.request import ServiceRequest
from clusterctl.serving.service import PlannedReplica, build_service, choose_port
from clusterctl.survey.gateways import hosts_with_gateway
from clusterctl.survey.services import Replica, Service
from clusterctl.survey.survey import Survey, require_formed


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """A service that is ready to be declared, with the reasons for its plan."""

    replicas: tuple[PlannedReplica, ...]
    location: ModelLocation | None = None  # None: every host downloads it from the Hub
    notes: tuple[str, ...] = ()
    fit: FitReport | None = None  # predicted memory and speed; None if they cannot be predicted
    surplus: tuple[Replica, ...] = ()  # Declared replicas that are to stop
    members: MembersDocument | None = None  # None for a service that was never asked for replicas
    gateway_url: str = ""  # Of the gateway before its replicas; empty without one
    trust: str = ""  # The file that its users keep its certificate in, if that was made for it

    @property
    def service(self) -> str:
        return self.document.service

    @property
    def document(self) -> ServiceDocument:
        """The document of the first replica."""
        return self.replicas[0].document

    @property
    def layout(self) -> Layout:
        return self.replicas[0].layout

    @property
    def endpoint(self) -> ServiceEndpoint:
        own = self.replicas[0].endpoint
        return replace(own, url=self.gateway_url, trust=self.trust) if self.gateway_url else own


@dataclass(frozen=True)
class _Draft:
    """What is decided before the replicas are."""

    asked: Question
    launch: Launch  # With its layout
    forecast: MemoryForecast
    location: ModelLocation | None
    address: str  # Of the head, for clients

    @property
    def service(self) -> Service:
        return self.asked.service

    @property
    def chat(self) -> bool:
        return self.location is None or self.location.chat_template


def plan_service(
    survey: Survey, request: ServiceRequest, model: Model, leaving: Collection[str] = ()
) -> ServicePlan:
    """Decide everything about the service. Every host must have answered the survey. Raises
    UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed.

    `leaving`: replicas that will have stopped by then, whose GPUs count as free.
    """
    require_formed(survey)
    asked = question(survey, request, model, leaving=leaving)
    _require_same_share(asked)
    location = asked.require_location()
    address = _client_address(survey)
    _refuse_public(asked, address)

    launch = replace(
        asked.launch,
        port=_choose_port(asked),
        host=request.host or address,
        random_weights=bool(location and location.random_weights),
        shape=(location and location.shape) or (model.entry.shape if model.entry else None),
    )
    build_service(launch)  # first of all, refuse flags that this vLLM lacks

    files = asked.model_files
    ask = partial(ask_engine, survey, model=files) if files else None
    forecast = forecast_memory(launch, model, asked.config, asked.hardware, asked.served, ask=ask)
    if forecast.sequences and launch.limits:
        launch = replace(launch, limits=replace(launch.limits, sequences=forecast.sequences))
    layout = forecast.layout
    if forecast.places:
        layout = replica_layout(layout, forecast.places)
    draft = _Draft(asked, replace(launch, layout=layout), forecast, location, address)
    if _placed_by_ray(draft):
        return _one_placed_by_ray(draft)
    return _with_replicas(draft)


def _require_same_share(asked: Question) -> None:
    """Raise UsageError for a service that runs with another part of its GPU, which others may have
    the rest of."""
    for replica in asked.service.replicas:
        if replica.gpu_share != asked.request.gpu_share:
            now, wanted = f"{replica.gpu_share:g}", f"{asked.request.gpu_share:g}"
            raise UsageError(
                f"{replica.name} runs on {now} of a GPU, and would run on {wanted} of it",
                hint=f"--gpu-share {now}"
                if replica.gpu_share < 1
                else f"clusterctl stop {replica.document.service}, then serve again",
            )


def _client_address(survey: Survey) -> str:
    head = survey.inventory.head
    return client_address(head, survey.facts[head.name], survey.topology.head.node_ip)


def _choose_port(asked: Question) -> int:
    """Return the port that clients know. Raises UsageError if the one asked for is taken."""
    survey, own = asked.survey, asked.service.name
    ports = {}
    for replica in survey.replicas.values():
        if replica.document.service != own or replica.placed_by_ray:
            ports[replica.name] = replica.document.port
    for name, service in survey.services.items():
        if service.listed:
            ports[name] = service.listed.port

    gateways = [one.name for one in survey.inventory.gateways if one.name in survey.facts]
    listening = {port for name in gateways for port in survey.facts[name].listening_ports}
    low = survey.inventory.gateway.low_ports
    return choose_port(own, asked.request.port, ports, listening, low=low)


def _refuse_public(asked: Question, address: str) -> None:
    """Raise UsageError for all addresses where one of the service's doors has one of the Internet:
    the hosts with a gateway, or the head for a service without replicas."""
    survey, request = asked.survey, asked.request
    if request.host not in ("0.0.0.0", "::") or survey.inventory.network.public:  # noqa: S104
        return
    doors = [one.name for one in survey.inventory.gateways if one.name in survey.facts]
    if request.replicas is None and asked.service.listed is None:
        doors = doors[:1]
    for host in doors:
        for nic, ip in public_ips(survey.facts[host]):
            raise UsageError(
                f"--host {request.host} would answer on {ip} ({nic}) of {host} too, an address of "
                "the Internet, and vLLM's paths outside of /v1 need no key",
                hint=f"leave it out: the service answers at {address}; or name one address; or, "
                "where something in front closes the port, network.public: true",
            )


def _placed_by_ray(draft: _Draft) -> bool:
    """Whether Ray chooses the hosts: of a service that was never asked for replicas. Raises
    UsageError for vLLM's own copies where it was, RayNotFormed for these while a host is dead."""
    service, request, survey = draft.service, draft.asked.request, draft.asked.survey
    copies = draft.launch.layout.data_parallel
    # The list of members may be lost, with a directory that was deleted on the head.
    has_hosts = any(not replica.placed_by_ray for replica in service.replicas)
    if service.listed or has_hosts or request.on or request.gpu_share < 1:
        if copies > 1:
            raise UsageError(
                f"{service.name} has replicas on their own hosts, and Ray places the ranks of --dp",
                hint=f"clusterctl stop {service.name}, then serve again; or --replicas N in place "
                "of --dp",
            )
        return False

    stays_one = bool(service.replicas) and request.replicas == 1
    if request.replicas is not None and not stays_one:
        return False
    if survey.left_out and copies > 1:
        raise RayNotFormed(
            "vLLM's own copies need every host, and it does not answer",
            host=min(survey.left_out),
            hint="clusterctl status",
        )
    # What Ray places waits for all hosts of the inventory; a replica needs only its own.
    return not survey.left_out


def _one_placed_by_ray(draft: _Draft) -> ServicePlan:
    survey, forecast = draft.asked.survey, draft.forecast
    env = dict(forecast.env)
    if forecast.places:
        node_ips = [survey.topology.node(host).node_ip for host in forecast.places]
        env[NODE_IPS] = ",".join(node_ips)
    head = survey.inventory.head.name
    document = build_service(draft.launch, env=env)
    one = PlannedReplica(
        document=document,
        layout=draft.launch.layout,
        host=head,
        head_address=draft.address,
        chat=draft.chat,
        old=survey.documents[head].get(document.name),
    )
    return ServicePlan(
        replicas=(one,), location=draft.location, notes=_notes(draft), fit=forecast.report
    )


def _notes(draft: _Draft) -> tuple[str, ...]:
    """Return the reasons for the layout, and what users should know of it."""
    layout, model = draft.launch.layout, draft.asked.model
    dead = sorted(draft.asked.survey.left_out)
    notes = [f"{host} has left Ray: planned without it" for host in dead]
    notes.append(f"TP {layout.tensor_parallel}, PP {layout.pipeline_parallel}: {layout.reason}")
    notes += layout.notes
    if draft.location is None:
        notes.append(f"{model.hub_id} is on no host: every host downloads it from the Hub")
    elif draft.location.note:
        notes.append(draft.location.note)
    return (*notes, *draft.forecast.notes)


def _with_replicas(draft: _Draft) -> ServicePlan:
    """Return the plan with all replicas: those that run keep their hosts, ports and numbers.

    Raises DoesNotFit if not all fit, UsageError for another TP or PP than that of the replicas that
    run.
    """
    survey, service, request = draft.asked.survey, draft.service, draft.asked.request
    sizes = sizes_of(draft.launch.layout)
    before = len(service.members) if service.listed else len(service.replicas)
    wanted = request.replicas or max(before, 1)
    most = None if wanted == "max" else wanted

    kept = kept_seats(survey, service, sizes, hosts_on(survey, request.on or ""))
    kept = dict(sorted(kept.items())[:most])
    new = seats_for(draft.asked.hardware, sizes, list(kept.values()), most, draft.forecast.request)
    possible = len(kept) + len(new)

    # Where there is no room for replicas of a dead host, they stay members, until it is back.
    waiting = service.lost if most is None else service.lost[: max(0, most - possible)]
    if not possible or possible + len(waiting) < (most or 1):
        require_replicas(service.name, most or 1, possible, sizes.gpus)

    seats = {**kept, **dict(zip(free_numbers(service, len(new)), new, strict=True))}
    ports = ReplicaPorts(survey)
    replicas = [_seated(draft, number, seats[number], ports) for number in sorted(seats)]
    members = _list_of(draft, replicas, waiting)
    door, trust = gateway_door(survey, members, draft.address)
    notes = [_where_note(replicas), *door_notes(survey, door, members.port)]
    if waiting:
        notes.append(_waiting_note(waiting, possible))
    return ServicePlan(
        replicas=tuple(replicas),
        location=draft.location,
        notes=(*notes, *_notes(draft)),
        # The forecast counts the replicas that could be started; these are the ones that will be.
        fit=draft.forecast.report,
        surplus=tuple(each for each in service.replicas if each.number not in kept),
        members=members,
        gateway_url=door,
        trust=trust,
    )


def _seated(draft: _Draft, number: int, seats: Seats, ports: ReplicaPorts) -> PlannedReplica:
    """Return the replica with its ranks on these hosts. One that runs there keeps its port."""
    survey, launch = draft.asked.survey, draft.launch
    first = survey.topology.node(seats[0])
    name = replica_name(draft.service.name, number)
    old = survey.documents[first.host].get(name)
    public = launch.api_port
    if old and old.node_ips and old.port != public:
        port = old.port
    else:
        port = ports.new(first.host, public)

    layout = replica_layout(launch.layout, seats)
    document = build_service(
        replace(launch, layout=layout, host=first.node_ip, port=port),
        env=layout_env(layout, draft.asked.hardware),
    )
    node_ips = [survey.topology.node(host).node_ip for host in seats]
    return PlannedReplica(
        document=replace(document, name=name, replica=number, node_ips=node_ips),
        layout=layout,
        host=first.host,
        head_address=first.node_ip,
        chat=draft.chat,
        old=old,
    )


def _list_of(
    draft: _Draft, replicas: Sequence[PlannedReplica], waiting: Sequence[Member]
) -> MembersDocument:
    launch, listed, request = draft.launch, draft.service.listed, draft.asked.request
    # Where the service would be without replicas: its address stays when it gets some.
    listen = request.host or (listed.listen if listed else launch.host)
    head = draft.asked.survey.topology.head.node_ip
    return MembersDocument(
        service=draft.service.name,
        served_names=list(launch.served_names),
        port=launch.api_port,
        members=members_of(replicas, waiting),
        stall_timeout=replicas[0].document.stall_timeout,
        listen=listen if listen != head else "",
        on=request.on or "",
        asked=len(replicas) + len(waiting),
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
    virtual = "" if members.listen else str(survey.inventory.gateway.virtual_ip or "")
    url = base_url(virtual or reached_at(listens, head_address), members.port, tls=tls)
    return url, f"{survey.inventory.cluster}.crt" if made else ""


def door_notes(survey: Survey, door: str, port: int) -> tuple[str, ...]:
    """Return what users must know of a gateway with this URL."""
    if not door:
        return ("this image has no gateway: clients use the replicas' own addresses",)
    others = hosts_with_gateway(survey)[1:]
    return (f"port {port} of {', '.join(others)} answers, too",) if others else ()


def _where_note(replicas: Sequence[PlannedReplica]) -> str:
    where = Counter(replica.host for replica in replicas)
    spread = ", ".join(f"{number} on {host}" for host, number in where.items())
    return f"{len(replicas)} replica{'s' * (len(replicas) > 1)}: {spread}"


def _waiting_note(waiting: Sequence[Member], possible: int) -> str:
    away = ", ".join(sorted({member.host for member in waiting}))
    count = f"{len(waiting)} of {possible + len(waiting)}"
    return f"no room for {count} replicas until {away} is back"


def kept_seats(
    survey: Survey, service: Service, sizes: Sizes, allowed: Collection[str]
) -> dict[int, Seats]:
    """Return the hosts of the ranks of each declared replica that stays where it is, by number: on
    hosts that are `allowed` and not drained.

    Raises UsageError for a replica with another TP and PP than `sizes`.
    """
    hosts = {node.node_ip: node.host for node in survey.topology.nodes}
    usable = set(allowed) - set(survey.drained)
    kept: dict[int, Seats] = {}
    for replica in service.replicas:
        document = replica.document
        if sizes_of(document) != sizes:
            raise UsageError(
                f"{document.name} runs with TP {document.tensor_parallel} and PP "
                f"{document.pipeline_parallel}: replicas change one at a time, and to other GPUs "
                "only after a stop",
                hint=f"clusterctl stop {document.service}, then serve again",
            )

        if replica.placed_by_ray:
            seats = tuple(rank.host for rank in replica.ranks)
            in_place = seats[:1] == (survey.topology.head.host,)
        else:
            seats = tuple(hosts[ip] for ip in document.node_ips if ip in hosts)
            in_place = True
        if in_place and len(seats) == document.gpus and set(seats) <= usable:
            kept[replica.number] = seats
    return kept
