"""The properties of a model that determine its memory and how it may be split.

`config_json.describe` makes a `ModelShape` from config.json, also for the catalogue's models. Sizes
are numbers of elements or tokens; nothing here depends on GPUs, ranks or vLLM versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek V2 and later), which caches one latent vector."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    gated: bool = False  # a gate of the output beside the query
    expanded: bool = False  # the cache has keys and values, not the latent (MiniCPM 3)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Chooses the tokens that sparse attention reads (DeepSeek V3.2, GLM-5, MiniMax M3). It keeps
    its own key of `head_dim` elements for every token; `owned`: not shared with an earlier layer.
    """

    heads: int
    head_dim: int
    owned: bool = True


@dataclass(frozen=True, slots=True)
class Compressed:
    """DeepSeek V4's attention: a sliding window, and beyond it one row for every `ratio` tokens (0:
    only the window). Queries have rank `query_rank`, projections of the output are in `groups` of
    rank `out_rank`, and `streams` of hidden states are mixed around each block."""

    ratio: int
    query_rank: int
    groups: int
    out_rank: int
    streams: int


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention layer. `window` is its reach in tokens; None means all."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    chunk: int | None = None
    latent: Latent | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    shares_cache: bool = False  # reads the KV cache of an earlier layer, has no own K and V
    gated: bool = False  # the query projection has a gate of the output beside it
    indexer: Indexer | None = None
    compressed: Compressed | None = None
    value_dim: int = 0  # of each head, where it differs from that of keys


StateKind = Literal["delta", "mamba2", "mamba1", "conv", "linear", "kimi"]


@dataclass(frozen=True, slots=True)
class State:
    """A layer that keeps a state of fixed size instead of keys and values: a gated delta net
    (Qwen3-Next, Qwen3.5), Mamba 1 or 2, a short convolution (LFM2), linear attention, or Kimi's
    delta attention.

    The recurrent state has heads x head_dim x state_size elements of `state_bytes` each, and the
    convolution keeps its last `kernel` - 1 inputs.
    """

    kind: StateKind
    heads: int
    head_dim: int
    groups: int  # Heads of B and C, or of keys and queries
    state_size: int
    kernel: int
    state_bytes: int
    rank: int = 0  # of the time step in Mamba 1, of gates in Kimi's
    bias: bool = False  # of the projections
    bounded: bool = False  # Kimi's gates have a lower bound
    conv_bias: bool = False


@dataclass(frozen=True, slots=True)
class Mlp:
    """A feed-forward block of `width`; `gated` has three matrices, otherwise two."""

    width: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts of which each token uses `per_token`."""

    count: int
    per_token: int
    width: int
    bias: bool = False
    gated: bool = True
    latent: int = 0  # Width that experts work in, if it is not the model's (Nemotron 3)


# The parts of a layer that may be stored differently. `small`: narrow projections of a state, which
# vLLM quantises only where the checkpoint names them.
Part = Literal[
    "attention", "out", "indexer", "mlp", "shared", "experts", "latent", "state", "small",
    "state_out",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A decoder layer. `norms` is the number of its vectors of the hidden size, `mlp` its dense
    block or the shared expert. `stored` has the parts that are stored differently from the model's
    other weights; None: not quantised."""

    attention: Attention | None
    mlp: Mlp | None
    experts: Experts | None = None
    norms: int = 2
    per_layer_input: int = 0  # Gemma's per-layer embeddings: width of that input
    state: State | None = None
    stored: tuple[tuple[Part, Quantization | None], ...] = ()
    cross: Attention | None = None  # to the output of an encoder


@dataclass(frozen=True, slots=True)
class Projection:
    """A matrix of a layer: how wide the vectors are that it takes and gives."""

    takes: int
    gives: int


Divided = Literal["", "all", "attention", "mlp"]


@dataclass(frozen=True, slots=True)
class Tower:
    """An image or audio encoder."""

    hidden: int
    layers: int
    mlp_width: int
    heads: int
    gated: bool
    patch: int
    positions: int  # vectors in the position table
    inner: int = 0  # width of its attention, if it is not `hidden`
    projection: int = 0  # elements of the matrices to the language model, unless `merged`
    joining: int = 0  # elements of further ones, which are divided as the layers are
    merged: int = 0  # patches to a side that are joined before the projection (Qwen's merger)
    mergers: int = 1
    frames: int = 1  # pictures in a patch
    divided: Divided = ""  # over the tensor parallel ranks
    stored: Quantization | None = None


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """cos and sin for every position: `positions` x `width` elements of the model's dtype."""

    positions: int
    width: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are stored. `block` is the side of fp8 scale blocks; None means one scale per
    tensor."""

    method: str  # fp8, mxfp8, nvfp4, mxfp4, int8, awq, gptq, bitsandbytes
    bits: int
    group: int = 128
    block: int | None = None
    zeros: bool = True  # zero points: AWQ, GPTQ; not symmetric compressed-tensors
    channels: bool = False  # fp8: a scale for each row
    padded: bool = True  # mxfp4: experts padded for Marlin; not for Triton on Hopper


@dataclass(frozen=True)
class ModelShape:
    """A model's properties that affect memory, and whether vLLM recognizes it. `assumptions` lists
    guesses, one sentence each."""

    name: str
    architecture: str
    hidden: int
    vocab: int
    tied: bool
    context: int
    context_key: str
    dtype: str
    layers: tuple[DecoderLayer, ...]
    rotary: tuple[RotaryTable, ...] = ()
    quantization: Quantization | None = None
    head_stored: Quantization | None = None  # how lm_head is
    cache_dtype: str = "auto"  # of the KV cache, where the checkpoint says
    drafters: int = 0  # layers of multi-token prediction in the checkpoint
    splits_drafter: bool = False  # their first matrix is divided over the ranks
    tower: Tower | None = None
    ears: Tower | None = None  # the encoder of audio
    per_layer_vocab: int = 0  # rows of Gemma's per-layer embedding table
    multimodal: bool = False  # takes images, audio or video too
    encoder: bool = False  # like BERT: generates nothing, has no KV cache
    tables: tuple[int, ...] = ()  # rows of further tables of embeddings: positions, kinds of text
    scores: int = 0  # elements of a classifier, in float32
    attention_free: bool = False  # states alone, as in Mamba
    both_ways: bool = False  # attends in both directions, as encoders do
    assumptions: tuple[str, ...] = ()
    typed: bool = True  # config.json has a model_type, without which vLLM does not start

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """The hash, computed once: planning looks up shapes thousands of times."""
        return hash((self.name, self.hidden, self.vocab, self.layers, self.quantization))

    @cached_property
    def projections(self) -> tuple[Mapping[str, Projection], ...]:
        """The matrices of each layer by the names that checkpoints have for them; see
        `projections_of`."""
        of_kind = {layer: projections_of(layer, self.hidden) for layer in set(self.layers)}
        return tuple(of_kind[layer] for layer in self.layers)

    @cached_property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every layer that has one, in order."""
        return tuple(layer.attention for layer in self.layers if layer.attention)

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The state of every layer that keeps one, in order."""
        return tuple(layer.state for layer in self.layers if layer.state)

    @property
    def crosses(self) -> bool:
        """Whether it has an encoder and a decoder, as Whisper."""
        return any(layer.cross for layer in self.layers)

    @property
    def unplanned(self) -> bool:
        """Whether it is an encoder whose layers are not known: BERT's alone are."""
        return self.encoder and not self.tables

    @property
    def on_one_gpu(self) -> bool:
        """Whether one GPU is offered for it: it is small, and vLLM does not split it into
        stages."""
        return self.encoder or self.crosses

    @property
    def most_stages(self) -> int:
        return 1 if self.on_one_gpu else len(self.layers)

    @property
    def is_latent(self) -> bool:
        """Whether its cache holds latent vectors (MLA)."""
        latents = (attention.latent for attention in self.attentions)
        return any(latent and not latent.expanded for latent in latents)

    @property
    def heads(self) -> int:
        """Query heads of the first layer; vLLM requires the TP size to divide them."""
        return self.attentions[0].heads if self.attentions else 1

    @cached_property
    def kv_heads(self) -> tuple[int, ...]:
        """All distinct counts of key/value heads: Gemma 4's global layers have fewer. Latent
        attention is left out, since it keeps one vector on every rank."""
        counts = (attention.kv_heads for attention in self.attentions if not attention.latent)
        return tuple(dict.fromkeys(counts))


def projections_of(layer: DecoderLayer, hidden: int) -> dict[str, Projection]:
    """Return the matrices of a layer by the names that checkpoints have for them, after "shared."
    those of a shared expert; without those of latent attention, states and other experts."""
    found: dict[str, Projection] = {}
    attention, mlp = layer.attention, layer.mlp
    if attention and not (attention.latent or attention.compressed):
        queries = attention.heads * attention.head_dim
        values = attention.value_dim or attention.head_dim
        found["q_proj"] = Projection(hidden, queries * (2 if attention.gated else 1))
        if not attention.shares_cache:
            found["k_proj"] = Projection(hidden, attention.kv_heads * attention.head_dim)
            found["v_proj"] = Projection(hidden, attention.kv_heads * values)
        found["o_proj"] = Projection(attention.heads * values, hidden)
    if mlp:
        within = "shared." if layer.experts else ""
        if mlp.gated:
            found[f"{within}gate_proj"] = Projection(hidden, mlp.width)
        found[f"{within}up_proj"] = Projection(hidden, mlp.width)
        found[f"{within}down_proj"] = Projection(mlp.width, hidden)
    return found
