"""Compare a plan with the calculations of the image's own vLLM. Pure.

vLLM can compute without a start: the tensors of every stage, the size of a KV cache block,
concurrent requests, and the GPU's memory. Quantities that only a start measures (activation peak,
runtime, CUDA graphs) come from the formulas here in both.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import chain, repeat
from typing import Any

from clusterctl.errors import MALFORMED
from clusterctl.planning.memory import FitPlan, rounded
from clusterctl.planning.placement import PARTITION
from clusterctl.planning.rules import rules_for
from clusterctl.planning.weights import allocated_bytes
from clusterctl.serving.vllm_flags import Argument, render, without
from clusterctl.units import GIB

NOTABLE = 0.01  # A larger relative difference is reported

_DECIDED = ("max-model-len", "tensor-parallel-size", "pipeline-parallel-size", "model", "tokenizer",
            "data-parallel-size", "distributed-executor-backend", "load-format")  # fmt: skip


def script() -> str:
    """Return the script for the image's Python, which reads `probe_question` from stdin."""
    return (
        resources.files(__package__).joinpath("image_probe_script.py").read_text(encoding="utf-8")
    )


def probe_question(
    plan: FitPlan,
    config: Mapping[str, Any],
    arguments: tuple[Argument, ...],
    env: Mapping[str, str],
) -> bytes:
    """Return the script's input for a plan of `arguments`, with the model's config.json."""
    placement, length = plan.placement, plan.settings.max_model_len
    split = {PARTITION: ",".join(map(str, plan.partition))} if placement.pp > 1 else {}
    flags = [*render(without(arguments, _DECIDED)), "--max-model-len", str(length)]
    asked = {
        "config": config,
        "arguments": flags,
        "env": {**env, **split},
        "tp": placement.tp,
        "pp": placement.pp,
    }
    return json.dumps(asked).encode()


@dataclass(frozen=True)
class ProbeAnswer:
    """The output of one host's vLLM. Sizes in GiB, one per pipeline stage."""

    vllm: str
    memory_gib: float | None  # Total of its GPU according to PyTorch; None on CPUs
    weights_gib: tuple[float, ...]
    block_gib: tuple[float, ...]
    blocks: int
    concurrency: float  # Concurrent requests of full length in that many blocks


def read_answer(text: str) -> ProbeAnswer:
    """Parse the script's output. Raises ValueError."""
    try:
        found = json.loads(text)
        unsplit = rules_for(found["vllm"]).unsplit_weights
        return ProbeAnswer(
            vllm=found["vllm"],
            memory_gib=found["memory"] / GIB if found["memory"] else None,
            weights_gib=tuple(
                allocated_bytes(chain.from_iterable(repeat(*run) for run in runs), unsplit=unsplit)
                / GIB
                for runs in found["stages"]
            ),
            block_gib=tuple(size / GIB for size in found["block_bytes"]),
            blocks=int(found["blocks"]),
            concurrency=float(found["concurrency"]),
        )
    except MALFORMED as failed:
        raise ValueError(f"not an answer: {failed!r}") from failed


@dataclass(frozen=True)
class ProbedRank:
    """A rank's memory as the image's vLLM computes it. Sizes in GiB."""

    host: str
    gpu: str
    memory_gib: float
    weights_gib: float
    kv_cache_gib: float
    blocks: int


@dataclass(frozen=True)
class Difference:
    """A figure that differs by more than NOTABLE. `off` is 0.02 if ours is 2 % higher."""

    what: str
    predicted: float
    asked: float

    @property
    def off(self) -> float:
        return self.predicted / self.asked - 1 if self.asked else 1.0

    def to_json(self) -> dict[str, Any]:
        return {**rounded(self), "off": round(self.off, 4)}


@dataclass(frozen=True)
class ProbeResult:
    """The plan's memory as the image's vLLM computes it."""

    vllm: str
    hosts: tuple[str, ...]  # The hosts that were asked, one per type of GPU
    kv_cache_tokens: int
    max_concurrency: float
    ranks: tuple[ProbedRank, ...]
    differences: tuple[Difference, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the value of `probe` in `fit --json`."""
        ranks = [rounded(rank) for rank in self.ranks]
        differences = [one.to_json() for one in self.differences]
        return {**rounded(self), "ranks": ranks, "differences": differences}


def hosts_to_ask(plan: FitPlan) -> dict[str, str]:
    """Map each type of GPU to the first host of the plan that has it."""
    found: dict[str, str] = {}
    for rank in plan.ranks:
        found.setdefault(rank.gpu, rank.host)
    return found


def probe_result(plan: FitPlan, answers: Mapping[str, ProbeAnswer]) -> ProbeResult:
    """Combine the plan with vLLM's answers, one for each GPU type."""
    ranks, pairs = [], {}
    for rank in plan.ranks:
        answer = answers[rank.gpu]
        memory, weights = answer.memory_gib or rank.memory_gib, answer.weights_gib[rank.stage]
        left = rank.kv_cache_gib
        if plan.options.kv_cache_bytes is None:
            more = (memory - rank.memory_gib) * plan.settings.utilization
            left += more + rank.weights_gib - weights
        blocks = max(0, int(left / answer.block_gib[rank.stage] + 1e-6))
        ranks.append(ProbedRank(rank.host, rank.gpu, memory, weights, left, blocks))
        where = f"stage {rank.stage} on {rank.gpu}" if plan.placement.pp > 1 else f"on {rank.gpu}"
        pairs[f"weights GiB {where}"] = (rank.weights_gib, weights)
        pairs[f"memory GiB {where}"] = (rank.memory_gib, memory)
    first = answers[plan.ranks[0].gpu]
    requests = first.concurrency / first.blocks * min(rank.blocks for rank in ranks)
    # vLLM's way of counting tokens changes every few releases, so our count is scaled.
    share = requests / plan.max_concurrency if plan.max_concurrency else 0.0
    tokens = int(plan.kv_cache_tokens * share)
    pairs = {"requests at once": (plan.max_concurrency, requests), **pairs}
    return ProbeResult(
        vllm=first.vllm,
        hosts=tuple(hosts_to_ask(plan).values()),
        kv_cache_tokens=tokens or int(requests * plan.settings.max_model_len),
        max_concurrency=requests,
        ranks=tuple(ranks),
        differences=tuple(
            Difference(what, round(ours, 4), round(theirs, 4))
            for what, (ours, theirs) in pairs.items()
            if abs(ours - theirs) > NOTABLE * theirs
        ),
    )
