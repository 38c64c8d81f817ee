"""The one question to the planner about a service on a cluster. `fit`, `serve`, `apply`, `drain`,
`remove` and `restart` all use it, so that they plan for the same model on the same GPUs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.models.config_files import parse_config
from clusterctl.models.config_json import describe
from clusterctl.models.location import Findings, ModelLocation, likeliest_path, locate
from clusterctl.models.name import Model, resolve
from clusterctl.models.probe import look_for
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import parse_version
from clusterctl.node.documents import ServiceDocument
from clusterctl.node.rank_placement import PER_WORKER
from clusterctl.planning.asking import ModelFiles
from clusterctl.planning.cluster_hardware import gpus_of, hardware_of, hardware_of_unknown_gpus
from clusterctl.planning.free_gpus import HeldGpus, gpus_held, hosts_on, on_of
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.options import common_class, own_limits
from clusterctl.planning.placement import HostGpus
from clusterctl.planning.planner import one_service, plan, request_for
from clusterctl.planning.report import Hardware, PlanRequest
from clusterctl.planning.rules import rules_for
from clusterctl.planning.sleepers import as_it_scales, with_room_for_sleeper
from clusterctl.planning.swaps import require_first, seats_of, sized_like
from clusterctl.serving.arguments import UNDECIDED, Launch
from clusterctl.serving.request import ANY_HOST, Options, ServiceRequest, read_request
from clusterctl.serving.service import document_name, served_names
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.services import Replica, Service, partner_of
from clusterctl.survey.survey import Survey
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True)
class Question:
    """A service, and the GPUs that it may use. Its layout, host and port are open."""

    survey: Survey
    request: ServiceRequest  # `on`: the hosts that it is limited to, also by an earlier run
    model: Model
    service: Service  # As it is now
    hosts: tuple[str, ...]  # That may have ranks
    findings: Findings  # The model's directories on these
    launch: Launch
    hardware: Hardware
    unreadable: UsageError | None = None  # Why nothing is known about the GPUs but their number
    first: Replica | None = None  # Whose GPUs it is to have in turn

    @property
    def config(self) -> str | None:
        """The text of config.json that most hosts have; None if no host has one."""
        found = [each for directories in self.findings.values() for each in directories]
        path = self.launch.model_argument
        texts = Counter(each.config for each in found if each.path == path and each.config)
        return texts.most_common(1)[0][0] if texts else None

    @cached_property
    def config_json(self) -> dict[str, Any] | None:
        """Raises UsageError for an unreadable config.json."""
        text = self.config
        return parse_config(text, f"{self.request.model}/config.json") if text else None

    @property
    def shape(self) -> ModelShape | None:
        """The model's shape, from the hosts, else from the catalogue. Raises UsageError."""
        if self.config_json is not None:
            return describe(self.config_json, self.model.hub_id or self.model.served_name)
        return self.model.entry.known_shape if self.model.entry else None

    @property
    def model_files(self) -> ModelFiles | None:
        """Where the engine finds the model's small files; None if no host has them."""
        path = self.launch.model_argument
        if not self.config or not path.startswith("/"):
            return None
        return ModelFiles(path, {}, self.config)

    @property
    def served(self) -> ServiceDocument | None:
        """The same model as currently served, whose layout is kept."""
        first = next(iter(self.service.documents), None)
        same = first is not None and first.argv[2:3] == [self.launch.model_argument]
        return first if same else None

    def require_location(self, hosts: Collection[str] | None = None) -> ModelLocation | None:
        """Return where all hosts have the model; None for a model that is on no host and that each
        host downloads from the Hub. Raises RequirementsNotMet for hosts (of `hosts`) that lack it.
        """
        if not any(self.findings.values()) and self.request.model == self.model.hub_id:
            return None
        needed = set(self.hosts if hosts is None else hosts)
        for host, found in self.findings.items():
            if any(directory.complete for directory in found):
                needed.add(host)  # Others can copy it from there.
        return locate(
            self.model,
            {host: found for host, found in self.findings.items() if host in needed},
            random_weights=self.request.random_weights,
            head=self.survey.inventory.head.name,
            models=self.survey.inventory.models,
        )

    def known_request(self) -> PlanRequest | None:
        """Return the request for the planner; None if too little is known, which does not prevent a
        start."""
        try:
            shape = self.shape
            if shape is None or shape.unplanned or not self.hardware.sites:
                return None
            request = self.to_plan(shape)
            _ = request.options
        except ClusterctlError:
            return None
        return request

    def to_plan(self, shape: ModelShape) -> PlanRequest:
        return request_for(replace(self.launch, shape=shape), shape, self.hardware, self.served)


def question(
    survey: Survey,
    request: ServiceRequest,
    model: Model,
    *,
    leaving: Collection[str] = (),
    without: Collection[str] = (),
    vllm: str | None = None,
    as_if_free: bool = False,
) -> Question:
    """Ask about a service. Looks for its model on the hosts; changes nothing.

    leaving     replicas that will have stopped by then: their GPUs count as free
    without     hosts to plan without, while the service's own replicas keep their GPUs; else these
                count as free, too
    vllm        a release in place of the cluster's
    as_if_free  plan for all GPUs if no GPU is free

    Raises UsageError for hosts that are not in the inventory, RequirementsNotMet if all that are
    left are dead, and the errors of hosts that do not answer.
    """
    names = served_names(request, model)
    service = survey.service(document_name(request, names))
    asked_on = on_of(survey, service.name) if request.on is None else request.on
    on = "" if asked_on == ANY_HOST else asked_on
    request = replace(request, on=on)
    request = as_it_scales(request, service)
    hosts = tuple(host for host in hosts_on(survey, on) if host not in without)
    first = None
    if request.swap_with:
        first = require_first(survey, service.name, request.swap_with)
        request = sized_like(first, request, service.name)
        hosts = tuple(dict.fromkeys(seats_of(survey, first)))

    findings = _look_for(survey, model, hosts)
    path = likeliest_path(model, findings)

    release = vllm or release_of(survey)
    gone = set(leaving)
    if not without:
        partner = partner_of(service.name, survey.replicas.values())
        gone |= {replica.name for replica in (*service.replicas, *filter(None, [first, partner]))}
    held = _free_gpus(survey, gone, request)
    if first:
        own = Counter(seats_of(survey, first))
        held = HeldGpus([HostGpus(host, number) for host, number in own.items()])
    as_if_free = as_if_free and not any(host.free for host in held.free)
    if as_if_free:
        held = replace(held, free=_all_gpus(survey))
    held = held.without_drained(survey.drained).only_on(hosts, on)
    hardware, unreadable = _hardware(survey, held, release, model)
    if not first:
        hardware = _own_hosts_first(hardware, survey, service)
    hardware = replace(hardware, as_if_free=as_if_free)
    request = with_room_for_sleeper(request, hardware)
    launch = Launch(
        request=request,
        model_argument=path or request.model,
        served_names=names,
        layout=UNDECIDED,
        host="",
        entry=model.entry,
        defaults=accelerator_named(survey.inventory.accelerator).defaults,
        version=parse_version(release) if release else None,
        limits=own_limits(rules_for(release), gpus_of(survey.answers)),
        capability=common_class(gpus_of(survey.answers)),
    )
    return Question(
        survey, request, model, service, hosts, findings, launch, hardware, unreadable, first
    )


def question_again(
    survey: Survey,
    document: ServiceDocument,
    *,
    without: Collection[str] = (),
    vllm: str | None = None,
) -> Question:
    """Ask about a service as declared: the same flags and sizes. Raises what `question` raises, and
    UsageError for a document that no run has written."""
    if len(document.argv) < 3:  # A host may have any document
        raise UsageError(f"{document.name} has no command line that can be planned")
    sizes = document.tensor_parallel, document.pipeline_parallel
    own = {name: value for name, value in document.env.items() if name == PER_WORKER}
    options = Options(
        document.argv[2],
        *sizes,
        name=document.service,
        env=own,
        standby=bool(document.standby_port),
        swap=document.swap,
        swap_with=document.swap_with or None,
    )
    request = read_request(options, (), parse_arguments(document.argv[3:]))
    model = resolve(request.model, survey.inventory.models)
    return question(survey, request, model, without=without, vllm=vllm)


def plan_as_served(survey: Survey, document: ServiceDocument) -> tuple[PlanRequest, FitPlan] | None:
    """Return what was planned, and the plan; None if the planner has none."""
    try:
        request = question_again(survey.require_answers(), document).known_request()
        return (request, one_service(plan(request), request).plan) if request else None
    except ClusterctlError:
        return None


def release_of(survey: Survey) -> str | None:
    """Return vLLM's release in the cluster, else the one in the image's tag."""
    state, image = survey.states.get(survey.inventory.head.name), survey.inventory.image
    reported = state.vllm_version if state else ""
    return reported or (image if parse_version(image) else None)


def _own_hosts_first(hardware: Hardware, survey: Survey, service: Service) -> Hardware:
    """Put the hosts of the service's first replica first, since it stays where it is."""
    ips = service.replicas[0].document.node_ips if service.replicas else []
    places = {node.host: ips.index(node.node_ip) for node in survey.topology.nodes
              if node.node_ip in ips}  # fmt: skip
    sites = sorted(hardware.sites, key=lambda site: places.get(site.host, len(ips)))
    return replace(hardware, sites=tuple(sites))


def _look_for(survey: Survey, model: Model, hosts: Collection[str]) -> Findings:
    """Look for the model on these hosts; a model on this machine is nowhere else."""
    if not model.candidates:
        return {}
    transports = {host: survey.transports[host] for host in hosts}
    looked = fan_out(transports, lambda host: look_for(host, model.candidates))
    raise_all(failures(looked))
    return values(looked)


def _free_gpus(survey: Survey, leaving: Collection[str], request: ServiceRequest) -> HeldGpus:
    """Return the GPUs that have its share free: all of them if the cluster is not up yet."""
    state = survey.states.get(survey.inventory.head.name)
    if state is None:
        return HeldGpus(_all_gpus(survey))
    return gpus_held(survey, state.nodes, leaving, request)


def _all_gpus(survey: Survey) -> list[HostGpus]:
    return [HostGpus(node.host, node.gpus) for node in survey.topology.nodes]


def _hardware(
    survey: Survey, held: HeldGpus, release: str | None, model: Model
) -> tuple[Hardware, UsageError | None]:
    try:
        named = model.hub_id or model.served_name
        return hardware_of(survey, held, release, named), None
    except UsageError as error:  # GPUs whose memory is unknown
        return hardware_of_unknown_gpus(survey.inventory, held, release), error
