"""What `serve` knows of memory before it starts anything: a layout that fits, or a refusal.

A prediction that fails never keeps from serving: vLLM has the last word, and a note says that
nothing was planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterctl.errors import ClusterctlError, DoesNotFit, Problems, UsageError, raise_all
from clusterctl.models.config_files import parse_config
from clusterctl.models.counts import Shape
from clusterctl.models.describe import describe
from clusterctl.models.figures import figures_of
from clusterctl.models.name import Model
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.forecast import PARTITION, Forecast, forecast_notes, partition_env
from clusterctl.planning.options import UnknownValue, parse_options
from clusterctl.planning.outcome import Verdict
from clusterctl.planning.request import FitReport
from clusterctl.serving.arguments import Launch
from clusterctl.serving.layout import Fits, HostGpus, Layout, plan_layout
from clusterctl.serving.request import Request
from clusterctl.workflows.fit import Hardware, forecast_of

NOT_PLANNED = "memory is not planned"


@dataclass(frozen=True)
class Foretold:
    """A forecast, or in one sentence why there is none."""

    forecast: Forecast | None
    note: str = ""


@dataclass(frozen=True)
class Decided:
    """What the forecast says of one layout. `env`: what vLLM needs for it."""

    report: FitReport | None
    env: Mapping[str, str]
    notes: tuple[str, ...]


def foretell(launch: Launch, model: Model, config: str | None, hardware: Hardware) -> Foretold:
    """The forecast of a launch whose layout may be undecided.

    `config`: text of the config.json that the hosts have. Raises UsageError, or Problems, for
    values of flags that vLLM refuses.
    """
    found = _guarded(lambda: _forecast(launch, model, config, hardware))
    if found.forecast is None:
        return found
    refused = _refused_values(found.forecast)
    if refused and all(isinstance(one, UnknownValue) for one in refused):
        return Foretold(None, f"{NOT_PLANNED}: {refused[0]}")
    raise_all(refused)
    return _guarded(lambda: _tried(found.forecast))


def _guarded(make: Callable[[], Forecast | None]) -> Foretold:
    """What `make` makes; whatever goes wrong there, vLLM may know better, so it is a note."""
    try:
        forecast = make()
    except Exception as error:
        return Foretold(None, _unplanned(error))
    return Foretold(forecast, "" if forecast else f"{NOT_PLANNED}: no figures of this model here")


def _unplanned(error: Exception) -> str:
    own = isinstance(error, ClusterctlError)
    return f"{NOT_PLANNED}: {error if own else repr(error)}"


def _forecast(
    launch: Launch, model: Model, config: str | None, hardware: Hardware
) -> Forecast | None:
    if not hardware.sites:
        raise UsageError("what GPUs the hosts have could not be read")
    parsed = parse_config(config) if config else figures_of(model.hub_id or model.asked)
    if parsed is None:
        return None
    return forecast_of(launch, describe(parsed, model.hub_id or model.served_name), hardware)


def _refused_values(forecast: Forecast) -> tuple[ClusterctlError, ...]:
    try:
        parse_options(forecast.question.arguments, forecast.question.env)
    except Problems as problems:
        return problems.errors
    except UsageError as error:
        return (error,)
    return ()


def _tried(forecast: Forecast | None) -> Forecast | None:
    """The forecast, once it has given an answer: later questions are of the same kind."""
    if forecast:
        with suppress(ClusterctlError):  # `plan_layout` tells of too few GPUs
            forecast.report(forecast.question.tp or 1, forecast.question.pp or 1)
    return forecast


def choose_layout(
    shape: Shape | None,
    gpus: Sequence[HostGpus],
    request: Request,
    forecast: Forecast | None,
    own: ServiceDocument | None = None,
) -> Layout:
    """The layout asked for; else the one that is served already, else the smallest that fits,
    with the margin of error to spare if there is one.

    Raises UsageError and DoesNotFit as `plan_layout`, and DoesNotFit where nothing holds the
    model, with the nearest settings that would.
    """
    tp, pp, dp = request.tensor_parallel, request.pipeline_parallel, request.data_parallel
    if tp is not None or pp is not None or forecast is None:
        return plan_layout(shape, gpus, tensor_parallel=tp, pipeline_parallel=pp, data_parallel=dp)
    for accepted in _ACCEPTED:
        if own and forecast.verdict(own.tensor_parallel, own.pipeline_parallel) in accepted:
            with suppress(ClusterctlError):
                return _as_served(shape, gpus, own, dp)
        with suppress(DoesNotFit):
            return plan_layout(shape, gpus, data_parallel=dp, fits=_fits(forecast, accepted))
    return _least_bad(shape, gpus, forecast, dp)


_ACCEPTED: tuple[tuple[Verdict, ...], ...] = (("fits",), ("fits", "tight"))


def _fits(forecast: Forecast, accepted: Sequence[Verdict]) -> Fits:
    return lambda tp, pp: forecast.verdict(tp, pp) in accepted


def _as_served(
    shape: Shape | None, gpus: Sequence[HostGpus], own: ServiceDocument, copies: int
) -> Layout:
    """Else what an earlier start taught could move a service that runs well."""
    layout = plan_layout(
        shape,
        gpus,
        tensor_parallel=own.tensor_parallel,
        pipeline_parallel=own.pipeline_parallel,
        data_parallel=copies,
    )
    return replace(layout, reason="as it is served already")


def _least_bad(
    shape: Shape | None, gpus: Sequence[HostGpus], forecast: Forecast, copies: int
) -> Layout:
    """By the forecast nothing fits: refused, or with doubts spread over all there is."""
    layout = plan_layout(shape, gpus, data_parallel=copies)
    refusal = None
    with suppress(ClusterctlError):
        report = forecast.report(layout.tensor_parallel, layout.pipeline_parallel)
        refusal = forecast.refusal(report)
    if refusal is not None:
        raise refusal
    return layout


def decide(
    foretold: Foretold,
    layout: Layout,
    own: ServiceDocument | None = None,
    given: Mapping[str, str] | None = None,
) -> Decided:
    """The whole plan of that layout. `given`: what the inventory sets in vLLM's environment.

    Raises DoesNotFit for what surely cannot work, with the nearest settings that would.
    """
    forecast = foretold.forecast
    if forecast is None:
        return Decided(None, {}, (foretold.note,))
    try:
        report = _report(forecast, layout, own)
        notes = forecast_notes(forecast, report)
    except Exception as error:
        return Decided(None, {}, (_unplanned(error),))
    refusal = forecast.refusal(report)
    if refusal is not None:
        raise refusal
    offered = sum(len(site.gpus) for site in forecast.question.sites)
    env = partition_env(report, offered, tuple(given or ()))
    return Decided(report, env, (*notes, *_partition_note(env)))


def _report(forecast: Forecast, layout: Layout, own: ServiceDocument | None) -> FitReport:
    """With the split of layers that is served already where that still fits: what an earlier
    start taught must not restart a service that is asked for again."""
    tp, pp = layout.tensor_parallel, layout.pipeline_parallel
    split = own.env.get(PARTITION) if own else None
    if own and split and (own.tensor_parallel, own.pipeline_parallel) == (tp, pp):
        env = {PARTITION: split, **forecast.question.env}
        kept = replace(forecast, question=replace(forecast.question, env=env))
        with suppress(ClusterctlError):
            report = kept.report(tp, pp)
            if report.plan.verdict != "does not fit":
                return report
    return forecast.report(tp, pp)


def _partition_note(env: Mapping[str, str]) -> tuple[str, ...]:
    if PARTITION not in env:
        return ()
    return (f"layers per stage {env[PARTITION]}: the GPUs differ, and an even split holds less",)
