"""The arguments of `fit`, and its report for GPUs given only by name.

Uses the same planner and flags as `serve`. Imports nothing that only a cluster needs, so that it
answers at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.models.catalogue import CatalogueEntry, by_alias, by_directory, by_hub_id
from clusterctl.models.config_files import checkpoint_bytes, not_planned, read_config
from clusterctl.models.config_json import describe
from clusterctl.models.name import did_you_mean, is_hub_id
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import parse_version, show_version
from clusterctl.planning.editions import edition_note, model_of
from clusterctl.planning.options import common_class, own_limits
from clusterctl.planning.placement import sites_of
from clusterctl.planning.planner import plan, request_for
from clusterctl.planning.problems import possible_tp
from clusterctl.planning.report import FitReport, Hardware
from clusterctl.planning.rules import NEWEST, rules_for
from clusterctl.planning.sleepers import parked_by_two, with_room_for_sleeper
from clusterctl.planning.speed import LinkSpeed, parse_network
from clusterctl.planning.weights import compared_with_files
from clusterctl.serving.arguments import UNDECIDED, Launch
from clusterctl.serving.request import Options, ServiceRequest, read_request
from clusterctl.serving.vllm_flags import Argument, parse_arguments

# Reads the shape of a model on the Hub, by its Hub id.
HubShapes = Callable[[str], ModelShape]


@dataclass(frozen=True)
class FitArguments:
    """The command line. `arguments`: vLLM's flags, those after -- and those from our options;
    `config`: those of a config file, which may name the model too."""

    model: str
    tp: int | None = None
    pp: int | None = None
    gpus: str | tuple[str, ...] | None = None  # several: one for each host
    hosts: int = 1
    vllm: str | None = None
    network: str | None = None
    arguments: tuple[str, ...] = ()
    on: str | None = None  # hosts of the cluster; None: those that `serve` would use
    ask: bool = False  # ask the image's own vLLM, even where the formulas are proven
    config: tuple[Argument, ...] = ()
    standby: bool = False  # With a second engine that sleeps on the same GPUs

    def request(self) -> ServiceRequest:
        """Return the same request that `serve` would read. Raises UsageError."""
        if not self.model and not self.config:
            raise UsageError("no model given", hint="clusterctl fit qwen3-8b")
        if self.vllm is not None and parse_version(self.vllm) is None:
            raise UsageError(
                f"--vllm {self.vllm!r} is not a version of vLLM",
                hint=f"--vllm {show_version(NEWEST)}, the newest one known here",
            )
        options = Options(self.model or None, self.tp, self.pp, standby=self.standby)
        return read_request(options, self.config, parse_arguments(self.arguments))

    def link(self) -> LinkSpeed | None:
        """Return the link given by --network, or None. Raises UsageError."""
        return parse_network(self.network) if self.network else None


def without_cluster(asked: FitArguments, hub: HubShapes | None = None) -> FitReport:
    """Return the report for the GPUs of --gpus. Raises UsageError, DoesNotFit and what `hub`
    raises, which looks up Hub IDs that are not in the catalogue."""
    request = asked.request()
    if asked.gpus is None:
        raise UsageError("no GPUs to plan for", hint="--gpus 2xH200")
    hardware = Hardware(sites_of(asked.gpus, asked.hosts), asked.link(), vllm=asked.vllm)
    request = with_room_for_sleeper(request, hardware)
    shape = load_shape(request.model, hub)
    report = plan(request_for(launch_for(request, shape, hardware), shape, hardware))
    report = with_edition_note(report, request.model, hardware)
    report = with_standby_note(report, asked)
    if asked.network and len(hardware.sites) == 1:
        alone = "--network is not used, since all GPUs are in one host: give --gpus for each host"
        report = replace(report, notes=(*report.notes, alone))
    if any(gpu.name == "H20" for site in hardware.sites for gpu in site.gpus):
        twin = "H20 is planned with 96 GB: the one with 141 GB is H20-3e"
        report = replace(report, notes=(*report.notes, twin))
    sizes = [[gpu.memory_gib for gpu in site.gpus] for site in hardware.sites]
    if any(each != sorted(each, reverse=True) for each in sizes):
        order = "the ranks on a host take its GPUs in the order of --gpus: name the largest first"
        report = replace(report, notes=(*report.notes, f"{order} to plan with them"))
    if report.unproven:
        asking = f"vLLM's own answer, where hosts have the model: clusterctl fit {request.model}"
        report = replace(report, notes=(*report.notes, asking))
    return report


def with_edition_note(report: FitReport, model: str, hardware: Hardware) -> FitReport:
    """Add a note about the precisions of a model in the catalogue on these GPUs."""
    entry, gpus = entry_of(model), [gpu for site in hardware.sites for gpu in site.gpus]
    fits = report.plan.verdict != "does not fit"
    note = edition_note(entry, gpus, fits=fits) if entry else None
    return replace(report, notes=(*report.notes, note)) if note else report


def with_standby_note(report: FitReport, asked: FitArguments) -> FitReport:
    """Add what the hosts need for a standby, which `serve` compares with what they have."""
    if not asked.standby:
        return report
    most = parked_by_two(sum(rank.weights_gib for rank in report.plan.ranks))
    note = (
        f"--standby: its two engines may take up to {most:.0f} GiB of host memory while they sleep"
    )
    return replace(report, notes=(*report.notes, note))


def launch_for(request: ServiceRequest, shape: ModelShape, hardware: Hardware) -> Launch:
    """Return the launch that `serve` would make, limited to fields that affect planned flags."""
    gpus = [gpu for site in hardware.sites for gpu in site.gpus]
    return Launch(
        request=request,
        model_argument=request.model,
        served_names=(),
        layout=UNDECIDED,
        host="",
        shape=shape,
        entry=entry_of(request.model),
        defaults=hardware.defaults,
        version=parse_version(hardware.vllm) if hardware.vllm else None,
        limits=own_limits(rules_for(hardware.vllm), gpus),
        capability=common_class(gpus),
    )


def exists(path: Path) -> bool:
    """Return whether the path exists; a name that is too long does not."""
    try:
        return path.exists()
    except OSError:
        return False


def entry_of(model: str) -> CatalogueEntry | None:
    """Return the catalogue entry with this alias, Hub id or directory name."""
    return by_alias(model) or by_hub_id(model) or by_directory(model.rstrip("/").rpartition("/")[2])


# What editions of a precision have in config.json, but for what they leave unquantised
_USUAL: dict[str, dict[str, object]] = {
    "bf16": {},
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "mxfp8": {"quant_method": "modelopt", "quant_algo": "MXFP8"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
    "fp4": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
    "mxfp4": {"quant_method": "modelopt", "quant_algo": "MXFP4"},
    "int8": {
        "quant_method": "compressed-tensors",
        "config_groups": {"all": {"weights": {"num_bits": 8, "type": "int"}}},
    },
    "int4": {"quant_method": "awq", "bits": 4, "group_size": 128},
}

_ANOTHER_FILE = "pass its config.json: clusterctl fit ./config.json"


def _shape_of(entry: CatalogueEntry, hub: HubShapes | None) -> ModelShape:
    """Return the shape by its config.json: of the catalogue, else of the Hub. An edition of which
    none says how it is stored is assumed to be its model, with every matrix in the edition's
    precision. Raises UsageError, and what `hub` raises."""
    stored, model = _USUAL.get(entry.precision), model_of(entry)
    if entry.config and (entry.shape.quantization or not stored):
        return entry.shape

    try:
        if hub:
            return hub(entry.hub_id)
        unknown: ClusterctlError = UsageError("there was no asking the Hub", hint=_ANOTHER_FILE)
    except ClusterctlError as failed:
        unknown = failed
    if stored is None or not model.config:
        raise _unplannable(entry, model, unknown)

    shape = describe({**model.config, "quantization_config": stored}, entry.hub_id, whole=False)
    if not possible_tp(shape, 1):  # Its widths are no multiples of a block
        plain = {key: value for key, value in stored.items() if key != "weight_block_size"}
        shape = describe({**model.config, "quantization_config": plain}, entry.hub_id, whole=False)
    like = "" if model is entry else f"as {model.hub_id} "
    guess = (
        f"no config.json says how {entry.hub_id} is stored: planned {like}with all weights of the "
        f"layers in {entry.precision}"
    )
    return replace(shape, assumptions=(*shape.assumptions, guess))


def _unplannable(
    entry: CatalogueEntry, model: CatalogueEntry, unknown: ClusterctlError
) -> ClusterctlError:
    """Return `unknown`, why the Hub did not answer, as the reason why there is no plan."""
    least = ", ".join(f"{each.precision} {each.least_gb} GB" for each in model.editions)
    unknown.summary = (
        f"the memory of {entry.alias} cannot be planned: the catalogue has no config.json of "
        f"{entry.hub_id}, and {unknown.summary}"
    )
    unknown.detail = f"its recipe names as minimum: {least}" if model.least_gb else None
    return unknown


def load_shape(model: str | Path, hub: HubShapes | None = None) -> ModelShape:
    """Return the shape of a catalogue entry, a local path, or a Hub ID that `hub` looks up. Raises
    UsageError."""
    name = str(model)
    entry = by_alias(name) or by_directory(name) or by_hub_id(name)
    if entry is not None:
        return _shape_of(entry, hub)
    path = Path(name)
    if exists(path):
        shape = describe(read_config(path), path.resolve().name)
        return compared_with_files(shape, checkpoint_bytes(path)) if path.is_dir() else shape
    if path.is_absolute() and (entry := by_directory(path.name)):  # a directory on the hosts
        return entry.shape
    if name.endswith(".gguf") or re.search(r"[-_]GGUF(:|$)", name, re.IGNORECASE):
        raise not_planned(name)
    if hub is not None and is_hub_id(name):
        return hub(name)
    raise UsageError(
        f"{name} is not in the catalogue, and there is no such path{did_you_mean(name)}",
        hint="give a Hub id (ORGANIZATION/NAME), a directory with config.json or that file; "
        "clusterctl model ls shows the catalogue",
    )
