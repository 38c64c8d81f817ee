"""What an engine says about a start, as queried by `ask_vllm.py`. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any

from clusterctl.errors import MALFORMED
from clusterctl.planning.rules import rules_for
from clusterctl.planning.weights import allocated_bytes
from clusterctl.units import GIB

# What vLLM raises on purpose; other exceptions say that it could not be asked
_REFUSALS = frozenset({"ValueError", "ValidationError", "NotImplementedError", "AssertionError"})


@dataclass(frozen=True)
class CacheGroup:
    """Layers that share a block table. `kind` is vLLM's word: FullAttention, SlidingWindow, Mamba,
    MLAAttention, ...; `blocks`: those of a request of full length."""

    layers: int
    kind: str
    block_size: int  # Tokens
    page_bytes: int  # Bytes of a block of one layer
    blocks: int

    @property
    def keeps_state(self) -> bool:
        return self.kind == "Mamba"


@dataclass(frozen=True)
class BlocksAt:
    """The total blocks that a request of `length` tokens takes in all groups."""

    length: int
    blocks: int


@dataclass(frozen=True)
class EngineAnswer:
    """An engine's own figures for one layout; either `refusal` or the rest is empty."""

    vllm: str
    architecture: str = ""
    weights_gib: tuple[float, ...] = ()  # Per rank asked for
    hosted_gib: tuple[float, ...] = ()  # Tables in the host's memory, likewise
    groups: tuple[CacheGroup, ...] = ()
    block_bytes: tuple[int, ...] = ()  # Per rank asked for
    requests: tuple[BlocksAt, ...] = ()  # By length
    max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    cache_dtype: str = ""
    memory_refusal: str | None = None  # The engine's sentence, if the memory given is too small
    refusal: str | None = None  # The engine's sentence, if it would not start at all

    def blocks_for(self, length: int) -> int:
        """Return the blocks of a request of that length; between computed lengths, interpolated and
        rounded up."""
        for below, above in pairwise((BlocksAt(0, 0), *self.requests)):
            if length <= above.length:
                share = (length - below.length) / (above.length - below.length)
                return below.blocks + -int(-(above.blocks - below.blocks) * share // 1)
        return self.requests[-1].blocks if self.requests else 0

    def tokens(self, rank: int, cache_bytes: int) -> int:
        """Return the tokens that vLLM logs for a cache of that size on every rank."""
        return self.tokens_in(cache_bytes // self.block_bytes[rank]) if self.block_bytes else 0

    def tokens_in(self, blocks: int) -> int:
        """Return the tokens that vLLM logs for that many blocks."""
        if not self.requests:
            return 0
        return int(blocks / self.blocks_for(self.max_model_len) * self.max_model_len)

    def longest_in(self, blocks: int) -> int:
        """Return the longest request that fits into that many blocks, up to the model's longest."""
        low, high = 0, self.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks_for(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low


def read_answer(text: str) -> EngineAnswer:
    """Parse a line of the program's output. Raises ValueError."""
    try:
        found: dict[str, Any] = json.loads(text)
        version = str(found["vllm"])
        if found.get("refusal"):
            if found["kind"] not in _REFUSALS:
                raise ValueError(f"{found['kind']}: {found['refusal'][:200]}")
            return EngineAnswer(version, refusal=" ".join(str(found["refusal"]).split()))
        return EngineAnswer(
            vllm=version,
            architecture=str(found["architecture"]),
            weights_gib=tuple(_weights_gib(runs, version) for runs in found["stages"]),
            hosted_gib=tuple(each / GIB for each in found.get("hosted", ())),
            groups=tuple(
                CacheGroup(
                    layers=int(group["layers"]),
                    kind=str(group["kind"]),
                    block_size=int(group["block_size"]),
                    page_bytes=int(group["page_bytes"]),
                    blocks=int(group["blocks"]),
                )
                for group in found["groups"]
            ),
            block_bytes=tuple(map(int, found.get("block_bytes", ()))),
            requests=tuple(
                BlocksAt(int(length), int(blocks)) for length, blocks in found.get("requests", ())
            ),
            max_model_len=int(found["max_model_len"]),
            max_num_seqs=int(found["max_num_seqs"]),
            max_num_batched_tokens=int(found["max_num_batched_tokens"]),
            cache_dtype=str(found["cache_dtype"]),
            memory_refusal=found.get("memory_refusal"),
        )
    except MALFORMED as failed:
        raise ValueError(f"not an answer: {failed!r}") from failed


def _weights_gib(runs: list[list[int]], version: str) -> float:
    """Return what the engine will log for tensors of these sizes, in the order of creation."""
    sizes = chain.from_iterable(repeat(size, count) for size, count in runs)
    return allocated_bytes(sizes, unsplit=rules_for(version).unsplit_weights) / GIB
