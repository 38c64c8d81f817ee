"""One call from what a user typed to a report: everything that `fit` and `serve` need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.models.catalogue import by_alias, by_directory
from clusterctl.models.config_files import checkpoint_bytes, read_config
from clusterctl.models.describe import describe
from clusterctl.models.figures import figures_of, known_models
from clusterctl.models.name import did_you_mean
from clusterctl.models.shape import ModelShape
from clusterctl.planning.advice import Advice, advise
from clusterctl.planning.foreseen import Foreseen, foresee
from clusterctl.planning.hardware import Gpu, parse_gpus
from clusterctl.planning.layouts import Proposal, best_seated, propose
from clusterctl.planning.options import ServeOptions, parse_options
from clusterctl.planning.outcome import FitPlan
from clusterctl.planning.overheads import Fabric
from clusterctl.planning.placement import Site
from clusterctl.planning.rules import Rules, rules_for
from clusterctl.planning.speed import NETWORK, Link, Speed, speed_of
from clusterctl.planning.weights import Stage, weight_bytes
from clusterctl.serving.vllm_flags import Argument, parse_arguments

_CHECKPOINT_TOLERANCE = 0.02
"""A checkpoint that differs more from the count of config.json has parts unknown here."""


@dataclass(frozen=True, slots=True)
class Question:
    """What to plan: a model on hosts with options, for a vLLM version.

    `tp` and `pp` None: propose layouts. `arguments`: everything that goes to vLLM.
    """

    shape: ModelShape
    sites: tuple[Site, ...]
    tp: int | None = None
    pp: int | None = None
    arguments: tuple[Argument, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    vllm: str | None = None
    network: Link = NETWORK
    linked: bool = False
    """`network` is what these hosts have, not an assumption."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """The answer. `plan` is what was asked for, or the best proposal when nothing was.

    `proposals` are all layouts that fit, best first (empty when TP or PP was given).
    `faster`: what the cluster offers that is estimated at least half faster than the plan.
    """

    plan: FitPlan
    speed: Speed
    foreseen: tuple[Foreseen, ...]
    advice: tuple[Advice, ...]
    proposals: tuple[Proposal, ...] = ()
    faster: Proposal | None = None

    @property
    def refused(self) -> bool:
        """Whether vLLM surely cannot start like this."""
        return any(item.fatal for item in self.foreseen)

    def to_json(self) -> dict[str, Any]:
        """The stable form of `fit --json`."""
        return {
            **self.plan.to_json(),
            "speed": self.speed.to_json(),
            "foreseen": [item.to_json() for item in self.foreseen],
            "advice": [item.to_json() for item in self.advice],
            "proposals": [item.to_json() for item in self.proposals],
            "faster": self.faster.to_json() if self.faster else None,
        }


def fit_request(
    model: str | Path,
    *,
    gpus: str | None = None,
    hosts: int = 1,
    sites: Sequence[Site] = (),
    tp: int | None = None,
    pp: int | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    vllm: str | None = None,
    network: Link = NETWORK,
) -> FitReport:
    """Plan `model` (alias, Hub id, or a path to config.json or its directory).

    `gpus` are those of each of `hosts` hosts ("2xH200"); without it `sites` are the cluster's.
    Raises UsageError (or Problems) for input that cannot be understood, DoesNotFit when there
    are fewer GPUs than TP x PP or no layout at all holds the model.
    """
    found = tuple(sites) if gpus is None else sites_of(gpus, hosts)
    found = tuple(site for site in found if site.gpus)
    if not found:
        raise UsageError("no GPUs to plan for", hint="--gpus 2xH200, or an inventory with GPUs")
    return answer(
        Question(
            shape=load_shape(model),
            sites=found,
            tp=tp,
            pp=pp,
            arguments=parse_arguments(args),
            env=env or {},
            vllm=vllm,
            network=network,
        )
    )


def sites_of(gpus: str, hosts: int = 1) -> tuple[Site, ...]:
    """`hosts` hosts with the GPUs that `--gpus` names each. Raises UsageError."""
    if not 1 <= hosts <= 1024:
        raise UsageError(f"--hosts {hosts}: from 1 to 1024", hint="--hosts 2")
    each = parse_gpus(gpus)
    return tuple(Site(f"host{number}", each, usual_fabric(each)) for number in range(1, hosts + 1))


def usual_fabric(gpus: Sequence[Gpu]) -> Fabric:
    """What servers with those GPUs usually join them by."""
    joined = ("A100", "A800", "H100", "H800", "H20", "B200", "V100")
    return "nvlink" if len(gpus) > 1 and gpus[0].name.startswith(joined) else "pcie"


def load_shape(model: str | Path) -> ModelShape:
    """The shape of a catalogue entry, a Hub id of it, or a local path. Raises UsageError."""
    name = str(model)
    entry = by_alias(name) or by_directory(name)
    figures = figures_of(entry.hub_id if entry else name)
    if figures is not None:
        return describe(figures, entry.hub_id if entry else name)
    path = Path(name)
    if not path.exists():
        raise UsageError(
            f"no figures of {name} are known, and there is no such path{did_you_mean(name)}",
            hint=f"give a directory with config.json, or one of: {', '.join(known_models())}",
        )
    shape = describe(read_config(path), path.resolve().name)
    return _checked(shape, checkpoint_bytes(path)) if path.is_dir() else shape


def _checked(shape: ModelShape, stored: int | None) -> ModelShape:
    """Compare the count of weights with the files on disk; a difference is an assumption."""
    if not stored:
        return shape
    whole = Stage(0, len(shape.layers), 1, has_embedding=True, has_head=True)
    plain = replace(shape, rotary=())
    counted = weight_bytes(plain, whole, shape.quantization)
    if abs(counted / stored - 1) <= _CHECKPOINT_TOLERANCE:
        return shape
    note = (
        f"the files hold {stored / 2**30:.2f} GiB of tensors, config.json counts "
        f"{counted / 2**30:.2f} GiB"
    )
    return replace(shape, assumptions=(*shape.assumptions, note))


def answer(question: Question) -> FitReport:
    """The report for a question. Pure. Raises as `fit_request`."""
    rules = rules_for(question.vllm)
    options = parse_options(question.arguments, question.env)
    tp, pp = question.tp or options.tp, question.pp or options.pp
    proposals = propose(question.shape, question.sites, options, rules, question.network)
    if tp is None and pp is None:
        return _best(question, options, rules, proposals)
    plan = best_seated(question.shape, tp or 1, pp or 1, question.sites, options, rules)
    plan = replace(plan, placement=replace(plan.placement, replicas=options.dp or 1))
    report = _report(question, plan, rules)
    return replace(report, faster=_faster(report, proposals))


def _best(
    question: Question, options: ServeOptions, rules: Rules, proposals: tuple[Proposal, ...]
) -> FitReport:
    if proposals:
        return replace(_report(question, proposals[0].plan, rules), proposals=proposals)
    plan = best_seated(question.shape, 1, 1, question.sites, options, rules)
    return _report(question, plan, rules)


def _report(question: Question, plan: FitPlan, rules: Rules) -> FitReport:
    speed = speed_of(question.shape, plan.placement, plan.settings.quantization, question.network)
    return FitReport(
        plan=plan,
        speed=speed,
        foreseen=foresee(question.shape, plan, rules, question.arguments),
        advice=advise(question.shape, plan, question.sites, rules),
    )


_MUCH_FASTER = 1.5


def _faster(report: FitReport, proposals: tuple[Proposal, ...]) -> Proposal | None:
    best = proposals[0] if proposals else None
    if best and best.speed.loaded >= _MUCH_FASTER * report.speed.loaded:
        return best
    return None
