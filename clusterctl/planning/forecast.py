"""The planner's result for `serve` before it starts anything: a layout, or a refusal.

Uncertainty never prevents a start: in doubt, the forecast warns instead of refusing, and if nothing
can be planned, a note reports that and vLLM decides.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from clusterctl.errors import ClusterctlError, DoesNotFit, Problems, UsageError, raise_all
from clusterctl.kinds.known import planned_kind
from clusterctl.models.config_files import parse_config
from clusterctl.models.config_json import architecture_of, describe
from clusterctl.models.name import Model
from clusterctl.models.shape import ModelShape
from clusterctl.node.documents import ServiceDocument
from clusterctl.planning.options import UnknownValue, parse_options
from clusterctl.planning.placement import PARTITION
from clusterctl.planning.planner import (
    one_service,
    plan,
    planned_arguments,
    request_for,
    require_possible,
)
from clusterctl.planning.problems import OF_MEMORY, possible_tp
from clusterctl.planning.report import Advice, FitReport, Hardware, PlanRequest
from clusterctl.serving.arguments import Launch, Layout
from clusterctl.serving.vllm_flags import (
    EXPERT_PARALLEL,
    lay_over,
    parse_arguments,
    render,
    without,
)

# PyTorch's symmetric memory passes file descriptors between ranks over sockets of one host: a group
# that spans hosts waits there forever (vLLM 0.25, PyTorch 2.11).
SYMMETRIC_MEMORY = "VLLM_ALLREDUCE_USE_SYMM_MEM"

NOT_PLANNED = "memory is not planned"

# How vLLM places data parallel ranks: strict (equally many on every host), fill, or span (one over
# several hosts).
COPY_PLACEMENT = "VLLM_RAY_DP_PACK_STRATEGY"

Ask = Callable[[PlanRequest, FitReport], FitReport]

_ONE_FLAG = re.compile(r"^--(?!tp )[a-z-]+ [\w.]+$")

_LAYOUT_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


@dataclass(frozen=True)
class MemoryForecast:
    """The layout of a service, without seats, and the forecast of its memory."""

    layout: Layout
    report: FitReport | None = None  # None if nothing could be planned
    request: PlanRequest | None = None  # What `report` answers
    notes: tuple[str, ...] = ()  # For the user, a sentence each
    sequences: int | None = None  # --max-num-seqs, if it depends on the cache; else the default
    places: tuple[str, ...] = ()  # Where the report has the ranks of one replica; empty: anywhere
    partition: str = ""  # Layers per stage for GPUs that differ; empty: vLLM's own split


def forecast_memory(
    launch: Launch,
    model: Model,
    config: str | None,
    hardware: Hardware,
    served: ServiceDocument | None = None,
    ask: Ask | None = None,
) -> MemoryForecast:
    """Plan a launch whose layout is open. `config`: the text of the hosts' config.json; `ask`
    queries the engine if the formulas are not proven.

    Raises UsageError, or Problems, for sizes and values of flags that vLLM refuses, and DoesNotFit
    if the service certainly cannot work, with the nearest settings that would.
    """
    asked = launch.request
    sizes = (asked.tensor_parallel, asked.pipeline_parallel, asked.data_parallel)
    flags = planned_arguments(launch)  # the catalogue's too
    by_number = any(flag.key == EXPERT_PARALLEL and not flag.negated for flag in flags)
    require_possible(launch.shape, hardware, *sizes, by_number=by_number)
    try:
        parse_options(planned_arguments(launch), hardware.env)
    except (Problems, UsageError) as refused:
        errors = refused.errors if isinstance(refused, Problems) else (refused,)
        if not all(isinstance(error, UnknownValue) for error in errors):
            raise_all(errors)
        return _unplanned(launch, hardware, str(errors[0]))  # a newer vLLM may accept the value
    unplanned = partial(_unplanned, launch, hardware, speech=_is_speech(model, config))
    if not hardware.sites:
        return unplanned("the GPUs of the hosts could not be read")
    try:
        shape = model.entry.known_shape if model.entry else None
        if config:
            shape = describe(parse_config(config), model.hub_id or model.served_name)
        if shape is None:
            return unplanned("nothing is known about this model")
        request = request_for(launch, shape, hardware, served)
        report = one_service(plan(request), request)
        if report.unproven and ask is not None:
            report = ask(request, report)
        notes = (*report.notes, *memory_notes(report, launch, request))
    except ClusterctlError as error:
        return unplanned(str(error))
    except Exception as error:  # a bug in the forecast must not prevent a start
        return unplanned(repr(error))
    if report.refused:
        raise refusal(report, launch, hardware.held)
    placement = report.plan.placement
    layout = Layout(placement.tp, placement.pp, placement.replicas, report.reason)
    notes = (*_copied_heads(shape, placement.tp), *notes)
    sequences = report.plan.settings.batch.requests if report.plan.state_blocks else None
    if placement.replicas > 1:
        return MemoryForecast(layout, report, request, notes, sequences)

    partition = ",".join(map(str, placement.partition)) if PARTITION not in hardware.env else ""
    if partition:
        why = "the GPUs differ, and an even split would hold less"
        notes = (*notes, f"layers per stage {partition}: {why}")
    places = tuple(seat.host for seat in placement.seats)
    return MemoryForecast(layout, report, request, notes, sequences, places, partition)


def _is_speech(model: Model, config: str | None) -> bool:
    with suppress(UsageError):
        known = parse_config(config) if config else model.entry.config if model.entry else {}
        return planned_kind(architecture_of(known)) == "speech"
    return False


def _unplanned(
    launch: Launch, hardware: Hardware, why: str, *, speech: bool = False
) -> MemoryForecast:
    """Choose a layout without a forecast: the requested sizes, else one GPU for an encoder or a
    model of speech, else TP over the GPUs of a host and PP over hosts with the same number."""
    shape, asked, free = launch.shape, launch.request, hardware.free
    tp, pp, copies = asked.tensor_parallel, asked.pipeline_parallel, asked.data_parallel
    if tp is not None or pp is not None:
        tp, pp, reason = tp or 1, pp or 1, "as asked"
    elif shape and shape.encoder:
        tp, pp, reason = 1, 1, "an encoder is small, and vLLM does not split it into stages"
    elif speech:
        tp, pp, reason = 1, 1, "it writes down what is said: such models fit on one GPU"
    else:
        offered = [host.free for host in free if host.free]
        sizes = possible_tp(shape, min(offered)) if shape else range(1, min(offered) + 1)
        most = len(shape.layers) if shape else len(offered)
        tp, pp = max(sizes), max(1, min(len(offered) // copies, most))
        reason = f"TP over {tp} GPUs of each host, PP with {pp} hosts as stages"
    notes = (*_copied_heads(shape, tp), f"{NOT_PLANNED}: {why}")
    return MemoryForecast(Layout(tp, pp, copies, reason), notes=notes)


def _copied_heads(shape: ModelShape | None, tp: int) -> tuple[str, ...]:
    if shape is None or not shape.kv_heads or tp <= min(shape.kv_heads):
        return ()
    return (
        f"the model has {min(shape.kv_heads)} key/value heads: with --tp {tp} each is kept on "
        "several GPUs, so that its KV cache takes as much memory on each GPU as with fewer",
    )


def refusal(report: FitReport, launch: Launch, held: Sequence[str] = ()) -> DoesNotFit:
    """Return the error for a service that must not start, with commands that would work."""
    fatal = [problem for problem in report.problems if problem.fatal]
    hint = fatal[0].hint
    nearest = serve_command(launch, hint.split()) if _ONE_FLAG.match(hint) else hint
    lines = [f"{problem.name}: {problem.text}" for problem in fatal]
    commands = []
    for one in report.advice:
        text = command(one, launch)
        if text is None:
            lines.append(one.text)
        else:
            commands.append(text)
            lines.append(
                f"would fit: {text}   ({one.text}; {one.kv_cache_tokens:,} tokens of KV cache)"
            )
    if commands and all(problem.name in OF_MEMORY for problem in fatal):
        nearest = commands[0]  # which is what advice is for
    return DoesNotFit(
        f"{report.plan.model} cannot run like this: {fatal[0].text}",
        hint=nearest,
        detail="\n".join([*lines, *held]),
    )


def command(advice: Advice, launch: Launch) -> str | None:
    """Return the `clusterctl serve` that applies the advice; None if it needs other GPUs."""
    flags = [flag for flag in advice.flags if not flag.startswith(PARTITION)]
    return None if "--gpus" in flags else serve_command(launch, flags)


def serve_command(launch: Launch, flags: list[str]) -> str:
    """Return the user's command, with these flags replaced or added."""
    asked, sizes = launch.request, list[str]()
    if "--tp" in flags:
        sizes, flags = flags[:4], flags[4:]
    else:
        sizes += ["--tp", str(asked.tensor_parallel)] if asked.tensor_parallel else []
        sizes += ["--pp", str(asked.pipeline_parallel)] if asked.pipeline_parallel else []
    sizes += ["--on", shlex.quote(asked.on)] if asked.on else []
    rest = render(without(lay_over(asked.given, parse_arguments(flags)), _LAYOUT_FLAGS))
    return " ".join(["clusterctl", "serve", asked.model, *sizes, *(["--", *rest] if rest else [])])


def memory_notes(report: FitReport, launch: Launch, request: PlanRequest) -> tuple[str, ...]:
    """Return the notes about a service that will start, a sentence each: its KV cache, doubts,
    problems, more room, and, if the link's speed is known, a faster layout."""
    plan, limit = report.plan, report.plan.limited_by
    verdict = "unproven" if report.unproven else plan.verdict
    notes = [
        f"memory ({verdict}): {plan.kv_cache_tokens:,} tokens of KV cache, "
        f"{plan.max_concurrency:,.1f} requests of {plan.settings.max_model_len:,} tokens at once"
    ]
    if request.shape.encoder:
        notes[0] = f"memory ({verdict}): {limit.reason}, and an encoder has no KV cache"
    if len({(rank.host, rank.gpu) for rank in plan.ranks}) > 1 and limit.unused_gib > 0.1:
        notes[0] += f"; limited by rank {limit.rank} ({limit.host}, {limit.gpu})"
    if report.doubts:
        notes.append(
            f"the forecast is uncertain, so nothing is refused: {'; '.join(report.doubts)}"
        )
    notes += [note for note in plan.notes if note not in report.doubts]
    # The layout's own note already reports that tensor parallel ranks are on different hosts.
    found = (problem for problem in report.problems if problem.name != "tp-spread")
    notes += [f"{problem.text} ({problem.hint})" for problem in found]
    if plan.verdict == "may not fit" and report.advice:
        more = command(report.advice[0], launch)
        notes += [f"more room: {more} ({report.advice[0].text})"] if more else []
    placement, faster = plan.placement, report.faster
    crosses = placement.groups_cross_hosts or placement.stages_cross_hosts
    cpu = any(seat.gpu.is_cpu for seat in placement.seats)
    if request.hardware.network and crosses and not cpu and faster:
        other = faster.plan.placement
        flags = f"--tp {other.tp}" + (f" --pp {other.pp}" if other.pp > 1 else "")
        flags += f" -- --data-parallel-size {other.replicas}" if other.replicas > 1 else ""
        times = faster.speed.loaded / report.speed.loaded
        notes.append(
            f"estimated speed: {report.speed.loaded:,.0f} tokens/s with 64 requests at once over "
            f"this network; {flags} would give {times:.1f} times as much ({faster.reason})"
        )
    return tuple(notes)


def layout_env(layout: Layout, hardware: Hardware) -> dict[str, str]:
    """Return variables that vLLM needs for this layout, except those set in the inventory."""
    env = {}
    on_gpus = not any(gpu.is_cpu for site in hardware.sites for gpu in site.gpus)
    if on_gpus and not layout.keeps_tp_in_host:
        env[SYMMETRIC_MEMORY] = "0"
    if layout.data_parallel > 1 and layout.splits_copies:
        env[COPY_PLACEMENT] = "span"
    elif layout.data_parallel > 1 and len(set(layout.copies)) > 1:
        env[COPY_PLACEMENT] = "fill"
    return {name: value for name, value in env.items() if name not in hardware.env}
