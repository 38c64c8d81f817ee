"""From a request and what hosts report to a service document: everything `serve` decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.drivers import driver_for
from clusterctl.errors import ClusterctlError, RayNotFormed, UsageError, raise_all
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.models.location import ModelLocation, locate
from clusterctl.models.name import Model
from clusterctl.models.probe import look_for
from clusterctl.models.version import parse_version
from clusterctl.network.choice import resolve
from clusterctl.node.contract import breaches
from clusterctl.node.documents import NodeState, ServiceDocument
from clusterctl.planning.cluster_hardware import (
    hardware_of,
    hardware_of_unknown_gpus,
    smallest_gpu,
    with_image_env,
)
from clusterctl.planning.forecast import forecast_memory
from clusterctl.planning.gpu_holders import Held, gpus_held
from clusterctl.planning.planner import FitReport, Hardware, served_layout
from clusterctl.ray_cluster.nodes import expected_nodes
from clusterctl.ray_cluster.topology import Topology, base_url, head_address, reached_at
from clusterctl.serving.arguments import Launch
from clusterctl.serving.endpoint import Endpoint
from clusterctl.serving.layout import UNDECIDED, Layout
from clusterctl.serving.port import choose_port
from clusterctl.serving.request import ServiceRequest
from clusterctl.serving.service import build_service, document_name, served_names
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True)
class Prepared:
    """A service, ready to be declared."""

    document: ServiceDocument
    layout: Layout
    location: ModelLocation | None  # None for a model that every host downloads from the Hub
    notes: tuple[str, ...]
    # What memory and speed are predicted to be; None where that could not be said
    fit: FitReport | None = None
    head_address: str = ""  # Where clients reach the head

    @property
    def endpoint(self) -> Endpoint:
        """Where clients find it."""
        chat = self.location is None or self.location.chat_template
        address = reached_at(self.document.host, self.head_address)
        url = base_url(address, self.document.port)
        return Endpoint(url, self.document.served_name, chat)


def prepare(
    inventory: Inventory,
    request: ServiceRequest,
    model: Model,
    transports: Mapping[str, Transport],
    answers: Mapping[str, Probe],
    state: NodeState,
    declared: Mapping[str, ServiceDocument],
) -> Prepared:
    """Decide everything about the service.

    Raises UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed.
    """
    topology = resolve(inventory, {name: answer.facts for name, answer in answers.items()})
    _require_ray(inventory, topology, state)
    location = _locate(inventory, request, model, transports)
    launch = _launch(inventory, request, model, topology, answers, state, declared, location)
    build_service(launch)  # flags that this vLLM does not know are told before all else
    own = declared.get(document_name(request, launch.served_names))
    held = gpus_held(topology, state, declared, own)
    hardware = _hardware(inventory, topology, transports, answers, state, held)
    same = own if own and own.argv[2:3] == [launch.model_argument] else None
    forecast = forecast_memory(
        launch, model, location.config if location else None, hardware, served_layout(same)
    )
    document = build_service(replace(launch, layout=forecast.layout), env=forecast.env)
    notes = (*_notes(forecast.layout, location, model), *forecast.notes)
    address = _head_address(inventory, topology, answers)
    return Prepared(document, forecast.layout, location, notes, forecast.report, address)


def _hardware(
    inventory: Inventory,
    topology: Topology,
    transports: Mapping[str, Transport],
    answers: Mapping[str, Probe],
    state: NodeState,
    held: Held,
) -> Hardware:
    version, free, holders = state.vllm_version, held.free, held.holders
    try:
        hardware = hardware_of(inventory, topology, answers, free, version, holders)
    except UsageError:
        return hardware_of_unknown_gpus(inventory, free, version, holders)
    return with_image_env(hardware, driver_for(transports[inventory.head.name]), inventory.image)


def _launch(
    inventory: Inventory,
    request: ServiceRequest,
    model: Model,
    topology: Topology,
    answers: Mapping[str, Probe],
    state: NodeState,
    declared: Mapping[str, ServiceDocument],
    location: ModelLocation | None,
) -> Launch:
    """All that decides the command line, save the layout."""
    names = served_names(request, model)
    shape = location.shape if location else None
    listening = answers[inventory.head.name].facts.listening_ports
    return Launch(
        request=request,
        model_argument=location.path if location else request.model,
        served_names=names,
        layout=UNDECIDED,
        port=choose_port(document_name(request, names), request.port, declared.values(), listening),
        shape=shape or (model.entry.shape if model.entry else None),
        host=request.host or _head_address(inventory, topology, answers),
        entry=model.entry,
        defaults=accelerator_named(inventory.accelerator).defaults,
        version=parse_version(state.vllm_version),
        smallest_gpu=smallest_gpu(answers),
        random_weights=bool(location and location.random_weights),
    )


def _require_ray(inventory: Inventory, topology: Topology, state: NodeState) -> None:
    problems: list[ClusterctlError] = [
        RayNotFormed(
            breach.summary, host=breach.host, hint=f"clusterctl bootstrap {inventory.file}"
        )
        for breach in breaches(expected_nodes(topology), state.nodes)
    ]
    raise_all(problems)


def _locate(
    inventory: Inventory, request: ServiceRequest, model: Model, transports: Mapping[str, Transport]
) -> ModelLocation | None:
    found = fan_out(transports, lambda transport: look_for(transport, model.candidates))
    raise_all(failures(found))
    findings = values(found)
    nowhere = not any(findings.values())
    if nowhere and request.model == model.hub_id:
        return None
    return locate(
        model,
        findings,
        random_weights=request.random_weights,
        head=inventory.head.name,
        models=inventory.models,
    )


def _head_address(inventory: Inventory, topology: Topology, answers: Mapping[str, Probe]) -> str:
    head = inventory.head
    return head_address(head, answers[head.name].facts, topology.head.node_ip)


def _notes(layout: Layout, location: ModelLocation | None, model: Model) -> tuple[str, ...]:
    size = f"TP {layout.tensor_parallel}, PP {layout.pipeline_parallel}: {layout.reason}"
    notes = [size, *layout.notes]
    if location is None:
        notes.append(f"{model.hub_id} is on no host: every host downloads it from the Hub")
    elif location.note:
        notes.append(location.note)
    return tuple(notes)
