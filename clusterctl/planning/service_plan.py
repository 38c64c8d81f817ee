"""Turn a request and a survey into a service document: all decisions of `serve`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import UsageError, raise_all
from clusterctl.models.location import ModelLocation, locate
from clusterctl.models.name import Model
from clusterctl.models.probe import look_for
from clusterctl.models.version import parse_version
from clusterctl.planning.cluster_hardware import (
    gpus_held,
    gpus_of,
    hardware_of,
    hardware_of_unknown_gpus,
)
from clusterctl.planning.forecast import forecast_memory
from clusterctl.planning.options import step_tokens
from clusterctl.planning.report import FitReport
from clusterctl.planning.rules import rules_for
from clusterctl.ray_cluster.topology import head_address
from clusterctl.serving.arguments import UNDECIDED, Launch
from clusterctl.serving.request import ServiceRequest
from clusterctl.serving.service import (
    PlannedService,
    build_service,
    choose_port,
    document_name,
    served_names,
)
from clusterctl.survey.survey import Survey, require_formed
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True, kw_only=True)
class ServicePlan(PlannedService):
    """A service that is ready to be declared, with the reasons for its plan."""

    location: ModelLocation | None = None  # None: every host downloads it from the Hub
    notes: tuple[str, ...] = ()
    fit: FitReport | None = None  # predicted memory and speed; None if they cannot be predicted


def plan_service(survey: Survey, request: ServiceRequest, model: Model) -> ServicePlan:
    """Decide everything about the service. Every host must have answered the survey. Raises
    UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed.
    """
    inventory, answers, declared = survey.inventory, survey.answers, survey.services
    state = require_formed(survey)
    topology = survey.topology
    # None for a Hub id that no host has
    location: ModelLocation | None = None
    looked = fan_out(survey.transports, lambda transport: look_for(transport, model.candidates))
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
    address = head_address(head, survey.facts[head.name], topology.head.node_ip)
    names = served_names(request, model)
    name = document_name(request, names)
    listening = survey.facts[head.name].listening_ports
    shape = location.shape if location else None
    launch = Launch(
        request=request,
        model_argument=location.path if location else request.model,
        served_names=names,
        layout=UNDECIDED,
        port=choose_port(name, request.port, declared.values(), listening),
        shape=shape or (model.entry.shape if model.entry else None),
        host=request.host or address,
        entry=model.entry,
        defaults=accelerator_named(inventory.accelerator).defaults,
        version=parse_version(state.vllm_version),
        step_tokens=step_tokens(rules_for(state.vllm_version or None), gpus_of(answers)),
        random_weights=bool(location and location.random_weights),
    )
    build_service(launch)  # first of all, refuse flags that this vLLM lacks
    own = declared.get(name)
    held = gpus_held(topology, state, declared, own)
    try:
        hardware = hardware_of(survey, held, state.vllm_version)
    except UsageError:  # GPUs whose memory is unknown
        hardware = hardware_of_unknown_gpus(inventory, held, state.vllm_version)
    same = own if own and own.argv[2:3] == [launch.model_argument] else None
    config = location.config if location else None
    forecast = forecast_memory(launch, model, config, hardware, same)
    layout = forecast.layout
    notes = [
        f"TP {layout.tensor_parallel}, PP {layout.pipeline_parallel}: {layout.reason}",
        *layout.notes,
    ]
    if location is None:
        notes.append(f"{model.hub_id} is on no host: every host downloads it from the Hub")
    elif location.note:
        notes.append(location.note)
    return ServicePlan(
        document=build_service(replace(launch, layout=layout), env=forecast.env),
        layout=layout,
        head_address=address,
        chat=location is None or location.chat_template,
        location=location,
        notes=(*notes, *forecast.notes),
        fit=forecast.report,
    )
