"""Bytes that vLLM sets aside on a rank for adapters, from its start on (`--enable-lora`).

Each slot has two matrices for each matrix of the model: `rank` x what that takes, and what it gives
x `rank`, of 16 bits (vllm/lora/layers of 0.32). Where ranks divide the model's matrix, one of the
two is divided as well; with --fully-sharded-loras the other is, too. Towers get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from clusterctl.models.shape import (
    Attention,
    DecoderLayer,
    Experts,
    Latent,
    ModelShape,
    State,
    projections_of,
)
from clusterctl.planning.weights import PipelineStage, groups_for, kv_heads_on_rank, vocabulary_rows
from clusterctl.serving.release_flags import NEWEST_RELEASE

_ELEMENT = 2  # Bytes; --lora-dtype has 16 bits always
_INDEX = 8  # Bytes; ranks that divide the vocabulary have a table of its order

_DIVIDED_INPUT = ("o_proj", "down_proj")  # Matrices that ranks divide by what they take


@dataclass(frozen=True, slots=True)
class AdapterRoom:
    """For how many adapters in a batch, and of which rank (`--max-loras`, `--max-lora-rank`)."""

    slots: int = 1
    rank: int = 16
    sharded: bool = False  # --fully-sharded-loras


@dataclass(frozen=True, slots=True)
class _Pair:
    """The two matrices of a slot, for each unit of rank: elements on a rank. `first` is divided by
    --fully-sharded-loras if the model's matrix is divided by what it gives, else `second`."""

    first: int
    second: int
    divided: str = ""  # "gives", "takes"

    def elements(self, tp: int, *, sharded: bool) -> int:
        first, second = self.first, self.second
        if sharded and self.divided == "gives":
            first //= tp
        elif sharded and self.divided == "takes":
            second //= tp
        return first + second


@lru_cache(maxsize=1024)
def adapter_bytes(
    shape: ModelShape, stage: PipelineStage, room: AdapterRoom, *, by_number: bool = False
) -> int:
    """Return the bytes on a rank. `by_number`: --enable-expert-parallel keeps experts whole."""
    elements = more = 0
    joined = shape.architecture in NEWEST_RELEASE["joined_experts"]
    for layer, count in Counter(shape.layers[stage.first : stage.last]).items():
        for pair in _pairs(shape, layer, stage.tp, joined=joined, by_number=by_number):
            elements += count * pair.elements(stage.tp, sharded=room.sharded)
    if stage.has_embedding and shape.architecture in NEWEST_RELEASE["adapted_embeddings"]:
        elements += shape.vocab + shape.hidden
    if stage.has_head and shape.architecture in NEWEST_RELEASE["adapted_heads"]:
        elements += shape.vocab + shape.hidden
        more = vocabulary_rows(shape.vocab, 1) * _INDEX if stage.tp > 1 else 0
    return elements * room.slots * room.rank * _ELEMENT + more


def is_compared(shape: ModelShape) -> bool:
    """Return whether the bytes of all its layers were compared with those that vLLM makes."""
    return not any(
        layer.experts
        or (layer.state and layer.state.kind != "delta")
        or (layer.attention and (layer.attention.latent or layer.attention.compressed))
        for layer in shape.layers
    )


def _pairs(
    shape: ModelShape, layer: DecoderLayer, tp: int, *, joined: bool, by_number: bool
) -> Iterator[_Pair]:
    hidden, attention, mlp = shape.hidden, layer.attention, layer.mlp
    here = layer
    if attention:
        heads, kv_heads = attention.heads // tp, kv_heads_on_rank(attention, tp)
        here = replace(here, attention=replace(attention, heads=heads, kv_heads=kv_heads))
    if mlp:
        here = replace(here, mlp=replace(mlp, width=-(-mlp.width // tp)))
    for name, each in projections_of(here, hidden).items():
        divided = "takes" if name.endswith(_DIVIDED_INPUT) else "gives"
        yield _Pair(each.takes, each.gives, divided)
    if attention and attention.latent:
        yield from _latent(hidden, attention, attention.latent, tp)
    if layer.state:
        yield from _state(hidden, layer.state, tp)
    if layer.experts:
        yield from _experts(hidden, layer.experts, tp, joined=joined, by_number=by_number)


def _latent(hidden: int, attention: Attention, latent: Latent, tp: int) -> Iterator[_Pair]:
    heads, head_dim = attention.heads // tp, latent.nope_dim + latent.rope_dim
    if latent.query_rank:
        yield _Pair(hidden, latent.query_rank)
        yield _Pair(latent.query_rank, heads * head_dim, "gives")
    else:
        yield _Pair(hidden, heads * head_dim, "gives")
    yield _Pair(hidden, latent.kv_rank + latent.rope_dim)
    yield _Pair(latent.kv_rank, heads * (latent.nope_dim + latent.value_dim), "gives")
    yield _Pair(heads * latent.value_dim, hidden, "takes")


def _state(hidden: int, state: State, tp: int) -> Iterator[_Pair]:
    inner = state.heads * state.head_dim // tp
    mixed = 2 * groups_for(state, tp) * state.state_size // tp
    if state.kind == "delta":  # queries, keys, values and the gate; beta and alpha
        yield from [_Pair(hidden, mixed // 2, "gives")] * 2
        yield from [_Pair(hidden, inner, "gives")] * 2
        yield from [_Pair(hidden, state.heads // tp, "gives")] * 2
    else:
        yield _Pair(hidden, 2 * inner + mixed + state.heads // tp, "gives")
    yield _Pair(state.kernel, mixed + inner, "gives")  # the convolution is a matrix, too
    yield _Pair(inner, hidden, "takes")


def _experts(
    hidden: int, experts: Experts, tp: int, *, joined: bool, by_number: bool
) -> Iterator[_Pair]:
    width = experts.width if by_number else -(-experts.width // tp)
    count = -(-experts.count // tp) if by_number else experts.count
    within = experts.latent or hidden
    yield _Pair(hidden, experts.count)  # the router
    ups = 2 if experts.gated else 1
    firsts = 1 if joined else ups
    yield _Pair(count * firsts * within, count * ups * width, "gives")
    yield _Pair(count * width, count * within, "takes")
