"""The plan of a service that is about to start: what it refuses, and what it only says.

A forecast never keeps from starting what it does not understand: with an assumption in it, it
warns where it would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.errors import ClusterctlError, DoesNotFit
from clusterctl.planning.advice import Advice
from clusterctl.planning.foreseen import OF_MEMORY, possible_tp
from clusterctl.planning.layouts import Proposal, best_seated
from clusterctl.planning.options import parse_options
from clusterctl.planning.outcome import FitPlan, Verdict
from clusterctl.planning.request import FitReport, Question, answer
from clusterctl.planning.rules import rules_for
from clusterctl.serving.vllm_flags import Argument, lay_over, parse_arguments, render, without

PARTITION = "VLLM_PP_LAYER_PARTITION"

LONGER = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"

_CHANGES_THE_MODEL = ("hf-overrides", "hf-config-path", "config-format", "rope-scaling")

_ONE_FLAG = re.compile(r"^--(?!tp )[a-z-]+ [\w.]+$")

_LAYOUT_FLAGS = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


@dataclass(frozen=True, slots=True)
class Forecast:
    """A question, answers for any TP and PP, and what makes them uncertain."""

    question: Question
    typed: tuple[Argument, ...] = ()
    """Flags that the user gave, for the command that would work."""
    model: str = ""
    """As the user named it."""

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why nothing is refused; () when the plan is to be trusted."""
        changed = [a.flag for a in self.question.arguments if a.key in _CHANGES_THE_MODEL]
        overridden = [f"{flag} changes what config.json says" for flag in changed]
        if self.question.env.get(LONGER, "0") not in ("0", ""):
            overridden.append(f"{LONGER} lets the context be longer than the model's own")
        return (*self.question.shape.assumptions, *overridden, *self._untold())

    def _untold(self) -> tuple[str, ...]:
        """vLLM on CPUs has a cache of the size it is told, and that may be said in the image."""
        question = self.question
        on_cpu = any(gpu.is_cpu for site in question.sites for gpu in site.gpus)
        if not on_cpu or parse_options(question.arguments, question.env).kv_cache_bytes is not None:
            return ()
        return ("how large the KV cache is on CPUs was not told",)

    def verdict(self, tp: int, pp: int) -> Verdict:
        """Whether that layout would fit; one that vLLM cannot cut does not."""
        question = self.question
        if tp not in possible_tp(question.shape, tp):
            return "does not fit"
        options = parse_options(question.arguments, question.env)
        rules = rules_for(question.vllm)
        try:
            plan = best_seated(question.shape, tp, pp, question.sites, options, rules)
        except ClusterctlError:  # fewer GPUs than ranks, or a partition for other stages
            return "does not fit"
        return plan.verdict

    def report(self, tp: int, pp: int) -> FitReport:
        """The whole answer for one layout. Raises as `answer`."""
        return answer(replace(self.question, tp=tp, pp=pp))

    def refusal(self, report: FitReport) -> DoesNotFit | None:
        """Why this must not start, with the commands that would work; None when it may."""
        fatal = [item for item in report.foreseen if item.fatal]
        if not fatal or self.doubts:
            return None
        commands = [self.command(one) for one in report.advice]
        nearest = self._follow(fatal[0].hint)
        if all(item.name in OF_MEMORY for item in fatal):  # what advice is about
            nearest = next((text for text in commands if text), nearest)
        lines = [f"{item.name}: {item.text}" for item in fatal]
        lines += [
            f"would fit: {text}   ({one.text}; {one.kv_cache_tokens:,} tokens of KV cache)"
            for one, text in zip(report.advice, commands, strict=True)
            if text
        ]
        lines += [one.text for one, text in zip(report.advice, commands, strict=True) if not text]
        return DoesNotFit(
            f"{report.plan.model} cannot run like this: {fatal[0].text}",
            hint=nearest,
            detail="\n".join(lines),
        )

    def command(self, advice: Advice) -> str | None:
        """The `clusterctl serve` that follows a piece of advice; None when it needs other GPUs."""
        flags = [flag for flag in advice.flags if not flag.startswith(PARTITION)]
        return None if "--gpus" in flags else self._serve(flags)

    def _follow(self, hint: str) -> str:
        """A hint that is one flag with its value, as the command that has it."""
        return self._serve(hint.split()) if _ONE_FLAG.match(hint) else hint

    def _serve(self, flags: list[str]) -> str:
        sizes: list[str] = []
        if "--tp" in flags:
            sizes, flags = flags, []
        else:
            tp, pp = self.question.tp, self.question.pp
            sizes += ["--tp", str(tp)] if tp else []
            sizes += ["--pp", str(pp)] if pp else []
        rest = render(without(lay_over(self.typed, parse_arguments(flags)), _LAYOUT_FLAGS))
        return " ".join(
            ["clusterctl", "serve", self.model, *sizes, *(["--", *rest] if rest else [])]
        )


def forecast_notes(forecast: Forecast, report: FitReport) -> tuple[str, ...]:
    """What a user should hear of a service that will be started, a sentence each."""
    notes = [summary(report.plan)]
    doubts = forecast.doubts
    if doubts:
        notes.append(f"not certain, so nothing is refused: {'; '.join(doubts)}")
    notes += [note for note in report.plan.notes if note not in doubts]
    notes += [f"{item.text} ({item.hint})" for item in report.foreseen if _worth_a_note(item.name)]
    if report.plan.verdict == "tight" and report.advice:
        command = forecast.command(report.advice[0])
        notes += [f"more room: {command} ({report.advice[0].text})"] if command else []
    return (*notes, *speed_notes(report, linked=forecast.question.linked))


def _worth_a_note(name: str) -> bool:
    """The layout says itself that tensor parallel ranks sit on different hosts."""
    return name != "tp-spread"


def summary(plan: FitPlan) -> str:
    """The KV cache in one sentence."""
    limit = plan.limited_by
    decides = f"; rank {limit.rank} ({limit.host}, {limit.gpu}) decides"
    many = len({(rank.host, rank.gpu) for rank in plan.ranks}) > 1 and limit.unused_gib > 0.1
    return (
        f"memory ({plan.verdict}): {plan.kv_cache_tokens:,} tokens of KV cache, "
        f"{plan.max_concurrency:,.1f} requests of {plan.settings.max_model_len:,} tokens at once"
        f"{decides if many else ''}"
    )


def speed_notes(report: FitReport, *, linked: bool) -> tuple[str, ...]:
    """What the layout costs and what would be faster, where the link's speed is known."""
    placement = report.plan.placement
    crosses = placement.groups_cross_hosts or placement.stages_cross_hosts
    cpu = any(seat.gpu.is_cpu for seat in placement.seats)
    if not linked or not crosses or cpu or report.faster is None:
        return ()
    times = report.faster.speed.loaded / report.speed.loaded
    return (
        f"speed, an estimate: {report.speed.loaded:,.0f} tokens/s with 64 requests at once over "
        f"this network; {layout_flags(report.faster)} would give {times:.1f} times as much "
        f"({report.faster.reason})",
    )


def layout_flags(proposal: Proposal) -> str:
    """A proposal as flags of `clusterctl serve`."""
    placement = proposal.plan.placement
    words = [f"--tp {placement.tp}"]
    words += [f"--pp {placement.pp}"] if placement.pp > 1 else []
    words += [f"-- --data-parallel-size {placement.replicas}"] if placement.replicas > 1 else []
    return " ".join(words)


def partition_env(report: FitReport, gpus: int, given: Sequence[str]) -> dict[str, str]:
    """VLLM_PP_LAYER_PARTITION where an uneven split holds more; {} where vLLM's own does.

    `gpus`: those offered. With some to spare Ray chooses hosts, and which stage gets which GPU
    is not known. `given`: names of variables that the inventory sets, which win.
    """
    placement = report.plan.placement
    if not placement.partition or PARTITION in given or gpus != len(placement.seats):
        return {}
    return {PARTITION: ",".join(map(str, placement.partition))}
