"""What vLLM said of models of the catalogue for which the formulas are not proven.

`scripts/prove_formula.py` asks, and writes answers.json: the weights of a rank by TP size, and
the blocks of the KV cache. They count for plans on one stage whose flags are the ones asked with,
for GPUs with the same kernels and a release that is the same but for its patches.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from clusterctl.models.version import parse_version
from clusterctl.planning.asked_plan import as_asked
from clusterctl.planning.engine_answer import BlocksAt, CacheGroup, EngineAnswer
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.options import ServeOptions
from clusterctl.planning.report import PlanRequest

ANSWERS = Path(__file__).with_name("answers.json")

_STATES = CacheGroup(layers=0, kind="Mamba", block_size=0, page_bytes=0, blocks=0)

# Options that the answers do not depend on
_FREE: dict[str, Any] = {
    name: getattr(ServeOptions(), name)
    for name in (
        "max_model_len", "utilization", "max_num_seqs", "max_num_batched_tokens", "enforce_eager",
        "kv_cache_bytes", "multicast", "adapters", "adapter_slots", "adapter_rank",
        "divides_adapters", "tp", "pp", "partition",
    )
}  # fmt: skip


@dataclass(frozen=True)
class StoredAnswers:
    """The answers about a model by TP size, and with what was asked."""

    vllm: str
    date: str
    gpu: str
    batch: int | None  # Tokens of a step, if the blocks of a request depend on them
    by_tp: dict[str, dict[str, Any]]

    def answer(self, tp: int, length: int) -> EngineAnswer:
        """Return the answer for a start with that context length."""
        found = self.by_tp[str(tp)]
        return EngineAnswer(
            vllm=self.vllm,
            weights_gib=(found["weights_gib"],),
            hosted_gib=(found["hosted_gib"],),
            groups=(_STATES,) if found["states"] else (),
            block_bytes=(found["block_bytes"],),
            requests=tuple(BlocksAt(*each) for each in found["requests"]),
            max_model_len=length,
        )


@cache
def _stored() -> dict[str, StoredAnswers]:
    document = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return {
        name: StoredAnswers(document["vllm"], document["date"], **each)
        for name, each in document["models"].items()
    }


def is_answered(model: str) -> bool:
    """Return whether there are answers about a model, for some plans."""
    return model in _stored()


def stored_for(plan: FitPlan, request: PlanRequest) -> StoredAnswers | None:
    """Return the answers that hold for this plan; None if there are none."""
    found, options = _stored().get(plan.model), plan.options
    if found is None or plan.placement.pp > 1 or str(plan.placement.tp) not in found.by_tp:
        return None
    if options.dp == 1:
        options = replace(options, dp=None)
    if replace(options, **_FREE) != ServeOptions() or request.hardware.env:
        return None
    if found.batch not in (None, plan.settings.batch.tokens):
        return None
    (asked_for,) = parse_gpus(found.gpu)
    if any(seat.gpu.capability != asked_for.capability for seat in plan.placement.seats):
        return None
    asked, planned = parse_version(found.vllm), request.rules.version
    return found if asked and asked[:2] == planned[:2] else None


def as_stored(plan: FitPlan, request: PlanRequest) -> FitPlan:
    """Return the plan with vLLM's own figures, where they hold for it."""
    found = stored_for(plan, request)
    if found is None:
        return plan
    answer = found.answer(plan.placement.tp, plan.settings.max_model_len)
    said = (
        f"weights and KV cache are those of vLLM {found.vllm}, asked on {found.date} for "
        f"{found.gpu}"
    )
    kept = tuple(note for note in plan.notes if note not in request.shape.assumptions)
    found_plan = as_asked(replace(plan, notes=kept), answer)
    return replace(found_plan, notes=(*found_plan.notes, said))
