"""Bytes that vLLM sets aside on a rank for adapters, from its start on (`--enable-lora`).

Each slot has two matrices for each matrix of the model: `rank` x what that takes, and what it gives
x `rank`, of 16 bits (vllm/lora/layers of 0.32). Where ranks divide the model's matrix, one of the
two is divided as well; with --fully-sharded-loras the other is, too. Towers get none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from clusterctl.models.shape import Attention, DecoderLayer, Experts, Latent, ModelShape, State
from clusterctl.planning.weights import PipelineStage, groups_for, kv_heads_on_rank, vocabulary_rows

_ELEMENT = 2  # Bytes; --lora-dtype has 16 bits always
_INDEX = 8  # Bytes; ranks that divide the vocabulary have a table of its order

# Models whose tables of tokens adapters may change (`embedding_modules` of their classes)
_CHANGES_TABLES = (
    "Apertus", "Exaone", "FalconH1", "Granite", "HyperCLOVAX", "Jamba", "Lfm2", "Llama", "MiniCPM",
    "Mixtral", "Nemotron", "DeciLM", "Phi3", "PhiMoE", "Qwen3", "Solar", "Ernie4_5For", "TeleFLM",
)  # fmt: skip

# Models whose experts are adapted with one matrix for gate and up (`is_3d_moe_weight`)
_JOINED_EXPERTS = ("GptOss", "InternS1Pro", "Qwen3_5Moe", "Qwen3OmniMoe", "Qwen3VLMoe")


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
    elements = 0
    joined = shape.architecture.startswith(_JOINED_EXPERTS)
    for layer, count in Counter(shape.layers[stage.first : stage.last]).items():
        for pair in _pairs(shape, layer, stage.tp, joined=joined, by_number=by_number):
            elements += count * pair.elements(stage.tp, sharded=room.sharded)
    more = 0
    if shape.architecture.startswith(_CHANGES_TABLES):
        table = shape.vocab + shape.hidden
        elements += table * (stage.has_embedding + stage.has_head)
        if stage.has_head and stage.tp > 1:
            more = vocabulary_rows(shape.vocab, 1) * _INDEX
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
    hidden, attention = shape.hidden, layer.attention
    if attention and attention.latent:
        yield from _latent(hidden, attention, attention.latent, tp)
    elif attention and not attention.compressed:
        kv = 0 if attention.shares_cache else kv_heads_on_rank(attention, tp)
        queries = attention.heads // tp
        values = attention.value_dim or attention.head_dim
        gate = 2 if attention.gated else 1
        yield _Pair(hidden, queries * attention.head_dim * gate, "gives")
        yield _Pair(hidden, kv * attention.head_dim, "gives")
        yield _Pair(hidden, kv * values, "gives")
        yield _Pair(queries * values, hidden, "takes")
    if layer.state:
        yield from _state(hidden, layer.state, tp)
    if layer.mlp:
        width = -(-layer.mlp.width // tp)
        yield from [_Pair(hidden, width, "gives")] * (2 if layer.mlp.gated else 1)
        yield _Pair(width, hidden, "takes")
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
