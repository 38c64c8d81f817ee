"""Turn a request and a survey into a service's documents: all decisions of `serve`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from clusterctl.errors import UsageError
from clusterctl.facts.network_requirements import public_ips
from clusterctl.kinds.known import kind_named, planned_kind
from clusterctl.models.config_json import architecture_of
from clusterctl.models.location import ModelLocation
from clusterctl.models.name import Model
from clusterctl.models.shape import ModelShape
from clusterctl.node.documents import Member, MembersDocument, ServiceDocument, replica_name
from clusterctl.node.gateway_config import LOOPBACK
from clusterctl.planning.asking import asked as ask_engine
from clusterctl.planning.forecast import MemoryForecast, forecast_memory, layout_env
from clusterctl.planning.free_gpus import hosts_on
from clusterctl.planning.placement import PARTITION
from clusterctl.planning.question import Question, question, release_of
from clusterctl.planning.replicas import (
    ReplicaPorts,
    Seats,
    Sizes,
    free_numbers,
    members_of,
    require_replicas,
    seats_for,
    sizes_of,
)
from clusterctl.planning.report import FitReport
from clusterctl.planning.rules import require_served
from clusterctl.planning.sleepers import (
    last_awake,
    require_one_replica,
    require_room_to_sleep,
    scaling_note,
    turns_note,
)
from clusterctl.planning.swaps import (
    require_same_pair,
    require_together,
    require_whole,
    seats_of,
)
from clusterctl.ray_cluster.topology import REPLICA_PORTS, base_url, client_address
from clusterctl.serving.arguments import Launch, Layout, serve_arguments
from clusterctl.serving.endpoint import ServiceEndpoint
from clusterctl.serving.request import ServiceRequest
from clusterctl.serving.service import PlannedReplica, build_service, choose_port
from clusterctl.survey.formation import require_formed
from clusterctl.survey.gateways import gateway_url, hosts_with_gateway
from clusterctl.survey.services import Replica, Service
from clusterctl.survey.survey import Survey


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """A service that is ready to be declared, with the reasons for its plan."""

    replicas: tuple[PlannedReplica, ...]
    members: MembersDocument
    location: ModelLocation | None = None  # None: every host downloads it from the Hub
    notes: tuple[str, ...] = ()
    fit: FitReport | None = None  # predicted memory and speed; None if they cannot be predicted
    surplus: tuple[Replica, ...] = ()  # Declared replicas that are to stop
    gateway_url: str = ""  # Empty without a gateway
    other_urls: tuple[str, ...] = ()  # Of the gateways of other hosts, unless all share one
    trust: str = ""  # The file that its users keep its certificate in, if that was made for it

    @property
    def service(self) -> str:
        return self.members.service

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
    """The decisions that precede those about replicas."""

    asked: Question
    launch: Launch  # With its layout
    forecast: MemoryForecast
    location: ModelLocation | None

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
    require_served(release_of(survey))
    asked = question(survey, request, model, leaving=leaving)
    require_same_pair(survey, asked.service.name, asked.request)
    _require_same_share(asked)
    location = asked.require_location()
    _refuse_public(asked)

    launch = replace(
        asked.launch,
        port=_choose_port(asked),
        random_weights=bool(location and location.random_weights),
        shape=(location and location.shape) or _catalogued_shape(model),
    )
    _refuse_kind(asked, launch)
    serve_arguments(launch)  # first of all, refuse flags that this vLLM lacks

    files = asked.model_files
    ask = partial(ask_engine, survey, model=files) if files else None
    forecast = forecast_memory(launch, model, asked.config, asked.hardware, asked.served, ask=ask)
    if forecast.sequences and launch.limits:
        launch = replace(launch, limits=replace(launch.limits, sequences=forecast.sequences))
    draft = _Draft(asked, replace(launch, layout=forecast.layout), forecast, location)
    return _with_replicas(draft)


def _require_same_share(asked: Question) -> None:
    """Raise UsageError for a service that runs with a different share of its GPU, since others may
    have the rest."""
    request = asked.request
    for replica in asked.service.replicas:
        # With its partner, one that swaps has whole GPUs
        if replica.swaps or (request.swap and replica.gpu_share == 1):
            continue
        if replica.gpu_share != request.gpu_share:
            now, wanted = f"{replica.gpu_share:g}", f"{request.gpu_share:g}"
            raise UsageError(
                f"{replica.name} runs on {now} of a GPU, and would run on {wanted} of it",
                hint=f"--gpu-share {now}"
                if replica.gpu_share < 1 and not request.swap
                else f"clusterctl stop {replica.document.service}, then serve again",
            )


def _client_address(survey: Survey) -> str:
    head = survey.inventory.head
    return client_address(head, survey.facts[head.name], survey.topology.head.node_ip)


def _choose_port(asked: Question) -> int:
    """Return the port for clients. Raises UsageError if the requested one is taken."""
    survey, own = asked.survey, asked.service.name
    ports = {name: service.port for name, service in survey.services.items() if service.port}
    gateways = [one.name for one in survey.inventory.gateways if one.name in survey.facts]
    listening = {port for name in gateways for port in survey.facts[name].listening_ports}
    low = survey.inventory.gateway.low_ports
    return choose_port(own, asked.request.port, ports, listening, low=low)


def _refuse_public(asked: Question) -> None:
    """Raise UsageError for `--host 0.0.0.0` if a gateway without TLS has a public address."""
    survey, request = asked.survey, asked.request
    if request.host not in ("0.0.0.0", "::") or survey.inventory.network.public:  # noqa: S104
        return
    if survey.inventory.gateway.tls:
        return
    for host in (one.name for one in survey.inventory.gateways if one.name in survey.facts):
        for nic, ip in public_ips(survey.facts[host]):
            raise UsageError(
                f"--host {request.host} would also answer on {ip} ({nic}) of {host}, a public "
                "address, to which keys and prompts would travel unencrypted",
                hint=f"leave it out: the service answers at {_client_address(survey)}; or set "
                "gateway.tls: true; or, where something in front closes the port, "
                "network.public: true",
            )


def _notes(draft: _Draft, layout: Layout) -> tuple[str, ...]:
    """Return the reasons for the layout, and what users should know about it."""
    model, dead = draft.asked.model, sorted(draft.asked.survey.left_out)
    notes = [f"{host} has left Ray: planned without it" for host in dead]
    notes.append(f"TP {layout.tensor_parallel}, PP {layout.pipeline_parallel}: {layout.reason}")
    if not layout.keeps_tp_in_host:
        notes.append(
            "tensor parallel ranks are on different hosts and exchange data in every layer: "
            "on ordinary networks --pp is several times faster"
        )
    if draft.location is None:
        notes.append(f"{model.hub_id} is on no host: every host downloads it from the Hub")
    elif draft.location.note:
        notes.append(draft.location.note)
    if draft.launch.request.standby or draft.launch.request.swaps:
        notes.append(turns_note(draft.launch.request, draft.service.name))
    return (*notes, *draft.forecast.notes)


def _with_replicas(draft: _Draft) -> ServicePlan:
    """Return the plan with all replicas: running ones keep their hosts, ports and numbers.

    Raises DoesNotFit if not all fit, UsageError for sizes that differ from those of running
    replicas.
    """
    survey, service, request = draft.asked.survey, draft.service, draft.asked.request
    layout, forecast = draft.launch.layout, draft.forecast
    sizes = Sizes(layout.tensor_parallel, layout.pipeline_parallel, layout.data_parallel)
    before = len(service.members) if service.listed else len(service.replicas)
    wanted = request.replicas or max(before, 1)
    most = None if wanted == "max" else wanted
    require_one_replica(request, service.name, most or 2)

    kept = kept_seats(survey, service, sizes, hosts_on(survey, request.on or ""))
    if request.swap:
        require_together(survey, service, stays=bool(kept))
        require_whole(service.name, chain.from_iterable(kept.values()), draft.asked.hardware)
    if draft.asked.first:
        kept = {1: seats_of(survey, draft.asked.first)}
    kept = dict(sorted(kept.items())[:most])
    # The first replica of a service is where the report has it.
    first = [forecast.places] if forecast.places and not kept else []
    seated = [*kept.values(), *first]
    new = first + seats_for(draft.asked.hardware, sizes, seated, most, forecast.request)
    possible = len(kept) + len(new)

    # Where there is no room for replicas of a dead host, they stay members, until it is back.
    waiting = service.lost if most is None else service.lost[: max(0, most - possible)]
    if not possible or possible + len(waiting) < (most or 1):
        require_replicas(service.name, most or 1, possible, sizes.gpus)

    seats = {**kept, **dict(zip(free_numbers(service, len(new)), new, strict=True))}
    ports, least = ReplicaPorts(survey), last_awake(request.least, seats)
    replicas = [_seated(draft, number, seats[number], ports, least) for number in sorted(seats)]
    require_room_to_sleep(survey, replicas)
    members = _list_of(draft, replicas, waiting)
    url = _url_of(survey, members)
    _require_gateway(request, url, len(replicas))
    made = url.startswith("https:") and not survey.inventory.gateway.certificate
    others = other_urls(survey, url, members) if url else ()

    notes = [_where_note(replicas), *door_notes(url, others)]
    if waiting:
        notes.append(_waiting_note(waiting, possible))
    if request.scales:
        notes.append(scaling_note(request, len(replicas)))
    return ServicePlan(
        replicas=tuple(replicas),
        location=draft.location,
        notes=(*notes, *_notes(draft, replicas[0].layout)),
        # The forecast counts the replicas that could be started; these are the ones that will be.
        fit=draft.forecast.report,
        surplus=tuple(each for each in service.replicas if each.number not in kept),
        members=members,
        gateway_url=url,
        other_urls=others,
        trust=f"{survey.inventory.cluster}.crt" if made else "",
    )


def _url_of(survey: Survey, members: MembersDocument) -> str:
    """Return the URL of the service at the head's gateway; "" without a gateway."""
    node_ip, gateway = survey.topology.head.node_ip, survey.require_supervised_head().gateway
    return gateway_url(survey, gateway, members, node_ip, _client_address(survey))


def _require_gateway(request: ServiceRequest, url: str, replicas: int) -> None:
    """Raise UsageError for a range without a gateway: each replica would sleep and wake for its own
    requests alone, and nothing would keep the target."""
    if request.scales and not url:
        raise UsageError(
            "a range of replicas needs the gateway, which asks no more of them than are needed, "
            "and the node image has no HAProxy",
            hint=f"--replicas {replicas}, or an image with HAProxy: docs/gateway.md",
        )


def _seated(
    draft: _Draft, number: int, seats: Seats, ports: ReplicaPorts, least: int
) -> PlannedReplica:
    """Return the replica with ranks on these hosts. One already running there keeps its port."""
    survey, launch = draft.asked.survey, draft.launch
    first = survey.topology.node(seats[0])
    name = replica_name(draft.service.name, number)
    old = survey.documents[first.host].get(name)
    port = old.port if old else 0
    if port not in REPLICA_PORTS:
        port = ports.new(first.host, launch.api_port)
    standby_port = old.standby_port if old else 0
    if not launch.request.standby:
        standby_port = 0
    elif standby_port not in REPLICA_PORTS:
        standby_port = ports.new(first.host, launch.api_port)

    layout = replace(launch.layout, seats=seats)
    document = build_service(
        replace(launch, layout=layout, host=first.node_ip, port=port),
        env={**layout_env(layout, draft.asked.hardware), **_partition(draft, seats, old)},
    )
    node_ips = [survey.topology.node(host).node_ip for host in seats]
    document = replace(
        document,
        name=name,
        replica=number,
        least=least,
        node_ips=node_ips,
        kind=_kind(draft.asked, launch),
        adapters=_adapters(draft.asked),
        standby_port=standby_port,
    )
    if document.sleeps and draft.forecast.report:
        parked = max(rank.weights_gib for rank in draft.forecast.report.plan.ranks)
        document = replace(document, parked_gib=round(parked, 2))
    return PlannedReplica(
        document=document,
        layout=layout,
        host=first.host,
        chat=draft.chat,
        old=old,
    )


def _adapters(asked: Question) -> dict[str, str]:
    """Return the adapters that the service is to have: those asked for, else those that it has.
    Raises UsageError if it is to be served without --enable-lora."""
    kept = asked.service.listed.adapters if asked.service.listed else {}
    if asked.request.adapters is not None:
        kept = dict(asked.request.adapters)
    if kept and not any(each.name == "enable-lora" for each in asked.request.given):
        name = asked.service.name
        raise UsageError(
            f"{name} has adapters ({', '.join(sorted(kept))}), and would run without --enable-lora",
            hint=f"add -- --enable-lora; or first: clusterctl adapter rm {name} "
            + " ".join(sorted(kept)),
        )
    return dict(kept)


def _catalogued_shape(model: Model) -> ModelShape | None:
    """Return the shape that the catalogue knows; None for a model that cannot be planned, such as
    one of speech."""
    with suppress(UsageError):
        return model.entry.known_shape if model.entry else None
    return None


def _kind(asked: Question, launch: Launch) -> str:
    """Return the kind of model by its config.json, else by the catalogue; empty: ask vLLM."""
    shape, entry = launch.shape, launch.entry
    architecture = architecture_of(asked.config_json or (entry.config if entry else {}))
    found = planned_kind(architecture, pictures=bool(shape and shape.multimodal))
    return found or (entry.kind if entry else "")


def _refuse_kind(asked: Question, launch: Launch) -> None:
    """Raise UsageError for a kind of model that vLLM does not serve."""
    if refused := kind_named(_kind(asked, launch)).refused:
        raise UsageError(
            f"{launch.request.model}: {refused}",
            hint="clusterctl model search shows those it serves",
        )


def _partition(draft: _Draft, seats: Seats, old: ServiceDocument | None) -> dict[str, str]:
    """Return how layers are split over different GPUs: from the report for these hosts, else from
    the replica."""
    found = old.env.get(PARTITION) if old else None
    if seats == draft.forecast.places:
        found = draft.forecast.partition
    return {PARTITION: found} if found else {}


def _list_of(
    draft: _Draft, replicas: Sequence[PlannedReplica], waiting: Sequence[Member]
) -> MembersDocument:
    launch, listed, request = draft.launch, draft.service.listed, draft.asked.request
    listen = request.host or (listed.listen if listed else _client_address(draft.asked.survey))
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
        least=request.least,
        ttft=request.ttft,
        adapters=_adapters(draft.asked),
    )


def other_urls(survey: Survey, door: str, members: MembersDocument) -> tuple[str, ...]:
    """Return the URLs of the gateways on other hosts, for clients that can use more than the
    head's; none if they share an address, or clients are on these hosts (`--host 127.0.0.1`)."""
    if survey.inventory.gateway.virtual_ip or members.listen == LOOPBACK:
        return ()
    found = []
    for name in hosts_with_gateway(survey)[1:]:
        node_ip = survey.topology.node(name).node_ip
        address = client_address(survey.inventory.host(name), survey.facts[name], node_ip)
        found.append(base_url(address, members.port, tls=door.startswith("https:")))
    return tuple(found)


def door_notes(door: str, others: Sequence[str]) -> tuple[str, ...]:
    """Return what users must know about a gateway with this URL."""
    if not door:
        return ("this image has no gateway: clients use the replicas' own addresses",)
    return (f"clients can also use {', '.join(others)}",) if others else ()


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

    Raises UsageError for a replica with other sizes.
    """
    hosts = {node.node_ip: node.host for node in survey.topology.nodes}
    usable = set(allowed) - set(survey.drained)
    kept: dict[int, Seats] = {}
    for replica in service.replicas:
        document = replica.document
        if sizes_of(document) != sizes:
            raise UsageError(
                f"{document.name} runs with {sizes_of(document)}: replicas change one at a time, "
                "and to other GPUs only after a stop",
                hint=f"clusterctl stop {document.service}, then serve again",
            )

        seats = tuple(hosts[ip] for ip in document.node_ips if ip in hosts)
        if not document.node_ips:  # Ray placed it, for an older clusterctl
            seats = tuple(rank.host for rank in replica.ranks)
        if len(seats) == document.gpus and seats[0] == replica.host and set(seats) <= usable:
            kept[replica.number] = seats
    return kept
