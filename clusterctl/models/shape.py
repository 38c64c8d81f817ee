"""The properties of a model that determine its memory and how it may be split.

`config_json.describe` makes a `ModelShape` from config.json, also for the catalogue's models. Sizes
are numbers of elements or tokens; nothing here depends on GPUs, ranks or vLLM versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek V2 and later), which caches one latent vector."""

    query_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


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


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """A decoder layer. `norms` is the number of its vectors of the hidden size."""

    attention: Attention | None
    mlp: Mlp | None
    experts: Experts | None = None
    norms: int = 2
    per_layer_input: int = 0  # Gemma's per-layer embeddings: width of that input


@dataclass(frozen=True, slots=True)
class Tower:
    """A vision encoder, kept whole and unquantised on every rank."""

    hidden: int
    layers: int
    mlp_width: int
    heads: int
    gated: bool
    patch: int
    positions: int  # vectors in the position table


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """cos and sin for every position: `positions` x `width` elements of the model's dtype."""

    positions: int
    width: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """How weights are stored. `block` is the side of fp8 scale blocks; None means one scale per
    tensor."""

    method: str  # fp8, mxfp4, awq, gptq, bitsandbytes
    bits: int
    group: int = 128
    block: int | None = None
    zeros: bool = True  # zero points: AWQ, GPTQ; not symmetric compressed-tensors
    experts_only: bool = False  # mxfp4 of gpt-oss: everything but the experts stays bf16
    padded: bool = True  # mxfp4: experts padded for Marlin; not for Triton on Hopper


@dataclass(frozen=True)
class ModelShape:
    """A model's properties that affect memory, and whether vLLM recognizes it. `assumptions` lists
    guesses, a sentence each."""

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
    tower: Tower | None = None
    per_layer_vocab: int = 0  # rows of Gemma's per-layer embedding table
    multimodal: bool = False  # takes images, audio or video too
    encoder: bool = False  # like BERT: generates nothing, has no KV cache
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
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every layer that has one, in order."""
        return tuple(layer.attention for layer in self.layers if layer.attention)

    @property
    def is_latent(self) -> bool:
        """Whether its cache holds latent vectors (MLA)."""
        return any(attention.latent for attention in self.attentions)

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
