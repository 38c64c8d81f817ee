"""`fit`: does it fit, how many requests at once, on which GPUs. Needs no cluster to answer.

What is planned is what `serve` would start: the same flags from the same place
(`serving.arguments.engine_arguments`), so that both give the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from clusterctl.accelerators.engine_defaults import ON_GPUS, EngineDefaults
from clusterctl.errors import UsageError
from clusterctl.models.catalogue import Entry, by_alias, by_directory, by_hub_id
from clusterctl.models.counts import Shape
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import parse_version
from clusterctl.planning.forecast import Forecast
from clusterctl.planning.placement import Site
from clusterctl.planning.request import FitReport, Question, answer, load_shape, sites_of
from clusterctl.planning.speed import NETWORK, Link, parse_network
from clusterctl.serving.arguments import Launch, engine_arguments
from clusterctl.serving.layout import Layout
from clusterctl.serving.request import Options, Request, read_request
from clusterctl.serving.vllm_flags import Argument, last_value, parse_arguments

GIB = 2**30

UNDECIDED = Layout(1, 1, (), 1, keeps_tp_in_host=True, reason="")
"""In place of a layout where only flags that do not depend on it are asked for."""


@dataclass(frozen=True)
class Asked:
    """What the user typed. `arguments`: vLLM's, from what follows -- and from our own options."""

    model: str
    tp: int | None = None
    pp: int | None = None
    gpus: str | None = None
    hosts: int = 1
    vllm: str | None = None
    network: str | None = None
    arguments: tuple[str, ...] = ()
    probe: bool = False
    """Ask the image's own vLLM as well."""

    def request(self) -> Request:
        """The same request that `serve` would read. Raises UsageError."""
        options = Options(self.model, self.tp, self.pp)
        return read_request(options, (), parse_arguments(self.arguments))

    def link(self) -> Link | None:
        """What --network says. Raises UsageError."""
        return parse_network(self.network) if self.network else None


@dataclass(frozen=True)
class Hardware:
    """What a model would run on. `network` None: not known, an ordinary one is assumed."""

    sites: tuple[Site, ...]
    network: Link | None = None
    defaults: EngineDefaults = ON_GPUS
    env: Mapping[str, str] = field(default_factory=dict)
    vllm: str | None = None

    @property
    def smallest_gpu(self) -> int | None:
        """Bytes of the smallest GPU; None on CPUs."""
        memories = [gpu.memory_gib for site in self.sites for gpu in site.gpus]
        return int(min(memories) * GIB) or None if memories else None


def without_cluster(asked: Asked) -> FitReport:
    """The report for GPUs that `--gpus` names. Raises UsageError and DoesNotFit."""
    request, entry = asked.request(), entry_of(asked.model)
    if asked.gpus is None:
        raise UsageError("no GPUs to plan for", hint="--gpus 2xH200")
    hardware = Hardware(sites_of(asked.gpus, asked.hosts), asked.link(), vllm=asked.vllm)
    return answer_for(request, load_shape(asked.model), entry, hardware)


def entry_of(model: str) -> Entry | None:
    """The catalogue's entry for a name, a Hub id or a directory called like it."""
    return by_alias(model) or by_hub_id(model) or by_directory(model.rstrip("/").rpartition("/")[2])


def answer_for(
    request: Request, shape: ModelShape, entry: Entry | None, hardware: Hardware
) -> FitReport:
    """The report for a request. Raises UsageError and DoesNotFit as `fit.request.answer`."""
    return answer(forecast_for(request, shape, entry, hardware).question)


def forecast_for(
    request: Request, shape: ModelShape, entry: Entry | None, hardware: Hardware
) -> Forecast:
    """The forecast of a service with the flags that `serve` would give it."""
    launch = Launch(
        request=request,
        model_argument=request.model,
        served_names=(),
        layout=UNDECIDED,
        host="",
        shape=Shape(shape.heads, (), len(shape.layers), shape.context, shape.tower is not None),
        entry=entry,
        defaults=hardware.defaults,
        version=parse_version(hardware.vllm) if hardware.vllm else None,
        smallest_gpu=hardware.smallest_gpu,
    )
    return forecast_of(launch, shape, hardware)


def forecast_of(launch: Launch, shape: ModelShape, hardware: Hardware) -> Forecast:
    """The forecast of a launch whose layout may be undecided."""
    request = launch.request
    copies = Argument("data-parallel-size", (str(request.data_parallel),))
    question = Question(
        shape=_as_asked(shape, request),
        sites=hardware.sites,
        tp=request.tensor_parallel,
        pp=request.pipeline_parallel,
        arguments=(
            *engine_arguments(launch),
            *([copies] if request.data_parallel > 1 else []),
        ),
        env=hardware.env,
        vllm=hardware.vllm,
        network=hardware.network or NETWORK,
        linked=hardware.network is not None,
    )
    return Forecast(question, typed=request.given, model=request.model)


def _as_asked(shape: ModelShape, request: Request) -> ModelShape:
    if last_value(request.given, "runner") != "pooling":
        return shape
    counted = "a model that pools is counted as if it generated: its KV cache and speed are not so"
    return replace(shape, assumptions=(*shape.assumptions, counted))
