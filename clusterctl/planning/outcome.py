"""What a plan says: data with its stable JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from clusterctl.planning.options import ServeOptions
from clusterctl.planning.placement import Placement
from clusterctl.planning.settings import Settings

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True)
class RankMemory:
    """One rank. Sizes in GiB. `kv_cache_gib` may be negative: so much is missing.

    `usable_gib` is what vLLM may use: the GPU's memory times the utilisation. `cuda_graphs_gib`
    is taken from it from vLLM 0.21 on, and comes on top of it before.
    """

    host: str
    gpu: str
    stage: int
    place: int
    layers: int
    memory_gib: float
    usable_gib: float
    weights_gib: float
    activation_gib: float
    runtime_gib: float
    cuda_graphs_gib: float
    kv_cache_gib: float
    margin_gib: float
    blocks: int

    def to_json(self) -> dict[str, Any]:
        """Plain values, GiB rounded to 4 digits."""
        found = {name: getattr(self, name) for name in self.__slots__}
        return {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in found.items()
        }


@dataclass(frozen=True, slots=True)
class Limit:
    """The rank that decides how many blocks all ranks get, and what others leave unused."""

    rank: int
    host: str
    gpu: str
    reason: str
    unused_gib: float

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "rank": self.rank,
            "host": self.host,
            "gpu": self.gpu,
            "reason": self.reason,
            "unused_gib": round(self.unused_gib, 4),
        }


@dataclass(frozen=True)
class FitPlan:
    """A prediction for one replica. `longest_context`: the longest request that the cache holds.

    `verdict` is `tight` when the difference is smaller than the margin of error, whichever side
    the best estimate is on; `fits` is the best estimate.
    """

    model: str
    architecture: str
    vllm: str
    placement: Placement
    options: ServeOptions
    settings: Settings
    ranks: tuple[RankMemory, ...]
    kv_cache_tokens: int
    max_concurrency: float
    longest_context: int
    fits: bool
    verdict: Verdict
    limited_by: Limit
    partition: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The stable form of `fit --json`; docs/fit.md lists its keys."""
        return {
            "model": self.model,
            "architecture": self.architecture,
            "vllm": self.vllm,
            "fits": self.fits,
            "verdict": self.verdict,
            "kv_cache_tokens": self.kv_cache_tokens,
            "max_concurrency": round(self.max_concurrency, 2),
            "max_model_len": self.settings.max_model_len,
            "longest_context": self.longest_context,
            "limited_by": self.limited_by.to_json(),
            "tp": self.placement.tp,
            "pp": self.placement.pp,
            "dp": self.placement.replicas,
            "layer_partition": list(self.partition),
            "max_num_seqs": self.settings.batch.requests,
            "max_num_batched_tokens": self.settings.batch.tokens,
            "gpu_memory_utilization": self.settings.utilization,
            "reason": self.placement.reason,
            "ranks": [rank.to_json() for rank in self.ranks],
            "notes": list(self.notes),
        }
