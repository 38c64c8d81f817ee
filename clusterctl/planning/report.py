"""Input and result types of `planner`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from clusterctl.accelerators.engine_defaults import ON_GPUS, EngineDefaults
from clusterctl.models.shape import ModelShape
from clusterctl.planning.memory import FitPlan, rounded
from clusterctl.planning.options import ServeOptions, parse_options
from clusterctl.planning.placement import HostGpus, Site
from clusterctl.planning.problems import PredictedProblem
from clusterctl.planning.rules import Rules, rules_for
from clusterctl.planning.speed import NETWORK, LinkSpeed, Speed
from clusterctl.serving.vllm_flags import Argument

if TYPE_CHECKING:
    from clusterctl.node.documents import ServiceDocument


@dataclass(frozen=True)
class Hardware:
    """The hosts, link and environment to plan for."""

    sites: tuple[Site, ...]
    network: LinkSpeed | None = None  # None if unknown: an ordinary one is assumed
    measured: str = ""  # When the fabric gate measured `network`; empty if it did not
    defaults: EngineDefaults = ON_GPUS
    env: Mapping[str, str] = field(default_factory=dict)
    vllm: str | None = None
    # Number of free GPUs by host, even if nothing else is known about them; empty: those of
    # `sites`.
    gpus: tuple[HostGpus, ...] = ()
    held: tuple[str, ...] = ()  # Users of the GPUs that are not free, a line each
    as_if_free: bool = False  # GPUs in use are planned for too, since none is free

    @property
    def free(self) -> tuple[HostGpus, ...]:
        return self.gpus or tuple(HostGpus(site.host, len(site.gpus)) for site in self.sites)


@dataclass(frozen=True)
class PlanRequest:
    """A model to plan on hosts, with its options, for a vLLM version."""

    shape: ModelShape
    hardware: Hardware
    tp: int | None = None  # None: the planner chooses, as for `pp`
    pp: int | None = None
    arguments: tuple[Argument, ...] = ()  # All flags that are passed to vLLM
    served: ServiceDocument | None = None  # The same model as it is served now, to be replaced
    # Number asked for: a layout that leaves room for them comes first; 0 for as many as fit
    replicas: int = 1

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.hardware.sites

    @property
    def network(self) -> LinkSpeed:
        return self.hardware.network or NETWORK

    @cached_property
    def rules(self) -> Rules:
        return rules_for(self.hardware.vllm)

    @cached_property
    def options(self) -> ServeOptions:
        """The parsed options. Raises UsageError, or Problems, for values that vLLM refuses."""
        return parse_options(self.arguments, self.hardware.env)


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of flags that makes a plan fit."""

    flags: tuple[str, ...]
    text: str
    kv_cache_tokens: int
    max_concurrency: float


@dataclass(frozen=True)
class Proposal:
    """A layout with its plan (of one replica) and its estimated speed (of all)."""

    plan: FitPlan
    speed: Speed
    reason: str
    unproven: tuple[str, ...] = ()  # Why its figures are no verdict; empty if they are

    def to_json(self) -> dict[str, Any]:
        found = {**self.plan.to_json(), "speed": self.speed.to_json(), "reason": self.reason}
        return found | ({"fits": None, "verdict": "unproven"} if self.unproven else {})


@dataclass(frozen=True)
class FitReport(Proposal):
    """The result of planning: the requested sizes, else the current layout, else the best one."""

    problems: tuple[PredictedProblem, ...] = ()
    advice: tuple[Advice, ...] = ()
    proposals: tuple[Proposal, ...] = ()  # All that fit, best first; empty if TP or PP was given
    faster: Proposal | None = None  # A proposal estimated to be at least 1.5 times as fast
    doubts: tuple[str, ...] = ()  # Why nothing is refused; empty if the plan is reliable
    notes: tuple[str, ...] = ()  # How `serve` deviates from the plan

    @property
    def refused(self) -> bool:
        """Whether vLLM certainly cannot start like this."""
        return not self.doubts and any(problem.fatal for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return the stable form of `fit --json`."""
        # One verdict: a layout may fit, and vLLM not start on these GPUs or with these flags.
        starts = self.plan.verdict == "does not fit" or not self.refused
        return {
            **super().to_json(),
            **({} if starts else {"fits": False, "verdict": "cannot start"}),
            "notes": [*self.plan.notes, *self.notes],
            "foreseen": [rounded(problem) for problem in self.problems],
            "doubts": list(self.doubts),
            "advice": [rounded(item) for item in self.advice],
            "proposals": [item.to_json() for item in self.proposals],
            "faster": self.faster.to_json() if self.faster else None,
        }
