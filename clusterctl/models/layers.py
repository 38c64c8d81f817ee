"""The layers that config.json describes: attention or state, feed-forward blocks and experts, and
how the checkpoint stores each of these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.models.quantized import StoredModules
from clusterctl.models.shape import (
    Attention,
    Compressed,
    DecoderLayer,
    Experts,
    Indexer,
    Latent,
    Mlp,
    Part,
    Quantization,
    State,
)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Family:
    """Properties of an architecture that config.json lacks, from vLLM's model files. Keys of
    config.json with the same meaning take precedence."""

    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    norms: int = 2
    tied: bool = False  # default of tie_word_embeddings
    window_every: int = 0  # every n-th layer is global, the others use a sliding window
    experts_bias: bool = False
    gated_query: bool = False  # default of attn_output_gate
    one_block: bool = False  # a layer is a mixer, an MLP or experts, not two of them
    gated_mlp: bool = True
    states: bool = False  # some layers keep a state in place of keys and values
    state_bytes: int = 2  # of an element of a recurrent state, if config.json does not say
    rotary: bool = True  # False: attention without positions (Nemotron-H)
    both_mixers: bool = False  # a state and attention in each layer (Falcon H1)
    splits_drafter: bool = False  # layers of multi-token prediction begin with a divided matrix
    expanded: bool = False  # latent attention whose cache has keys and values
    text_only: bool = False  # without the vision encoder that config.json describes
    positions: bool = False  # a learned vector for each position, in place of rotary tables
    mlp_bias: bool = False
    crosses: bool = False  # each layer attends to what an encoder made, too (Whisper)


def positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def first(text: Config, *keys: str) -> int:
    """Return the value of the first key that has a positive number, or 0."""
    return next((int(text[key]) for key in keys if positive(text.get(key))), 0)


def only_states(text: Config) -> bool:
    """Return whether no layer has attention, as in Mamba."""
    return str(text.get("model_type", "")).startswith(("mamba", "falcon_mamba"))


# Names of layers in `hybrid_override_pattern` of Nemotron-H.
_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}

_RECURRENT = frozenset({"linear_attention", "mamba", "recurrent", "conv", "mamba2", "kda"})


def kinds_of(text: Config, traits: Family) -> list[str]:
    """Return the kind of every layer, from whichever key of config.json specifies it."""
    count = text["num_hidden_layers"]
    for key in ("layer_types", "layers_block_type"):
        kinds = text.get(key)
        if isinstance(kinds, Sequence) and len(kinds) == count and not isinstance(kinds, str):
            return [str(kind) for kind in kinds]
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str) and len(pattern) == count:
        return [_LETTERS.get(letter, letter) for letter in pattern]

    if only_states(text):
        return ["mamba"] * count
    linear = text.get("linear_attn_config")
    if isinstance(linear, Mapping) and isinstance(linear.get("kda_layers"), Sequence):
        delta = set(linear["kda_layers"])  # counted from 1
        return ["kda" if index + 1 in delta else "full_attention" for index in range(count)]
    every = first(text, "full_attention_interval")
    if every and text.get("linear_num_value_heads"):
        full = [(index + 1) % every == 0 for index in range(count)]
        return ["full_attention" if whole else "linear_attention" for whole in full]
    windows = text.get("hybrid_layer_pattern")
    if isinstance(windows, Sequence) and len(windows) == count:
        return ["sliding_attention" if slides else "full_attention" for slides in windows]
    period = first(text, "attn_layer_period")
    if period:  # Jamba
        offset = text.get("attn_layer_offset") or 0
        full = [index % period == offset for index in range(count)]
        return ["full_attention" if whole else "mamba" for whole in full]

    if text.get("attention_chunk_size") and not text.get("sliding_window"):  # Llama 4
        ropes = text.get("no_rope_layers")
        local = ropes if isinstance(ropes, Sequence) and len(ropes) == count else ()
        chunked = local or [(index + 1) % 4 for index in range(count)]
        return ["chunked_attention" if part else "full_attention" for part in chunked]

    window = text.get("sliding_window")
    every = text.get("sliding_window_pattern") or traits.window_every
    if window and not every and text.get("use_sliding_window", True):
        every = count + 1  # no layer is global
    sliding = [bool(window and every and (index + 1) % every) for index in range(count)]
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def layers_of(
    text: Config, traits: Family, stored: StoredModules
) -> tuple[tuple[DecoderLayer, ...], Quantization | None]:
    """Return the layers, and how the bulk of their weights is stored."""
    kinds = kinds_of(text, traits)
    layers = [
        _layer(_of_layer(text, index), traits, index, kind) for index, kind in enumerate(kinds)
    ]
    parts = [
        {part: _stored(text, part, index, stored) for part in _parts(layer)}
        for index, layer in enumerate(layers)
    ]
    usual = _bulk(parts) if parts else stored.usual
    found = []
    for layer, by_part in zip(layers, parts, strict=True):
        other = tuple((part, storage) for part, storage in by_part.items() if storage != usual)
        found.append(replace(layer, stored=other))
    return tuple(found), usual


def _of_layer(text: Config, index: int) -> Config:
    """Return the keys, with the layer's own overriding them (Gemma 4 in Transformers 5)."""
    own = text.get("per_layer_config")
    found = own.get(f"{index:02}", own.get(str(index))) if isinstance(own, Mapping) else None
    return {**text, **found} if isinstance(found, Mapping) else text


def _bulk(parts: Sequence[Mapping[Part, Quantization | None]]) -> Quantization | None:
    """Return how experts are stored, else dense blocks, else attention: in the last layer where
    they are quantised, since the first and last layers often are not."""
    for part in ("experts", "mlp", "state", "attention", "shared"):
        found = [by_part[part] for by_part in parts if by_part.get(part)]
        if found:
            return found[len(found) // 2]
    return None


def _layer(text: Config, traits: Family, index: int, kind: str) -> DecoderLayer:
    state = _state(text, kind, traits)
    mixes = kind not in ("mlp", "moe")
    alone = mixes and (state is None or traits.both_mixers)
    attention = _attention(text, traits, index, kind) if alone else None
    mlp, experts = _feed_forward(text, traits, index, kind)
    if traits.one_block and mixes:
        mlp, experts = None, None
    # Gemma 4's experts have three norms and a router scale
    more = 4 if "global_head_dim" in text and experts else 0
    return DecoderLayer(
        attention=attention,
        mlp=mlp,
        experts=experts,
        norms=1 if traits.one_block else traits.norms + more,
        per_layer_input=text.get("hidden_size_per_layer_input") or 0,
        state=state,
        cross=attention if traits.crosses else None,
    )


_ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def _state(text: Config, kind: str, traits: Family) -> State | None:
    """Return the state of a layer of that kind; None for attention."""
    if kind not in _RECURRENT and not traits.both_mixers:
        return None
    named = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    state_bytes = _ELEMENT_BYTES.get(str(named), traits.state_bytes)
    linear = text.get("linear_attn_config")
    if kind == "kda" and isinstance(linear, Mapping):
        heads, dim = first(linear, "num_heads") or 1, first(linear, "head_dim") or 128
        kernel = first(linear, "short_conv_kernel_size") or 4
        rank = 0 if linear.get("use_full_rank_gate") else dim
        bounded = linear.get("gate_lower_bound") is not None
        return State("kimi", heads, dim, heads, dim, kernel, 4, rank, bounded=bounded)
    if text.get("linear_num_value_heads"):
        return State(
            "delta",
            heads=text["linear_num_value_heads"],
            head_dim=first(text, "linear_value_head_dim") or 128,
            groups=first(text, "linear_num_key_heads") or 1,
            state_size=first(text, "linear_key_head_dim") or 128,
            kernel=first(text, "linear_conv_kernel_dim") or 4,
            state_bytes=state_bytes,
        )
    if kind == "conv":
        width = first(text, "conv_dim") or text["hidden_size"]
        kernel = first(text, "conv_L_cache") or 3
        bias = bool(text.get("conv_bias"))
        return State("conv", width, 1, 0, 0, kernel, 2, bias=bias, conv_bias=bias)
    heads = first(text, "mamba_num_heads", "mamba_n_heads", "num_heads")
    if heads:
        inner = first(text, "mamba_d_ssm") or (
            first(text, "mamba_expand", "expand") * text["hidden_size"]
        )
        dim = first(text, "mamba_head_dim", "mamba_d_head") or inner // heads
        return State(
            "mamba2",
            heads=heads,
            head_dim=dim,
            groups=first(text, "n_groups", "mamba_n_groups", "mamba_ngroups") or 1,
            state_size=first(text, "ssm_state_size", "mamba_d_state", "state_size") or 128,
            kernel=first(text, "conv_kernel", "mamba_d_conv") or 4,
            state_bytes=state_bytes,
            bias=bool(text.get("mamba_proj_bias")),
            conv_bias=bool(text.get("use_conv_bias", text.get("mamba_conv_bias", True))),
        )
    inner = first(text, "mamba_expand", "expand") * text["hidden_size"]
    if inner:
        rank = first(text, "mamba_dt_rank", "time_step_rank") or -(-text["hidden_size"] // 16)
        size = first(text, "mamba_d_state", "state_size") or 16
        kernel = first(text, "mamba_d_conv", "conv_kernel") or 4
        return State("mamba1", inner, 1, 0, size, kernel, state_bytes, rank, conv_bias=True)
    heads = text["num_attention_heads"]
    dim = text.get("head_dim") or text["hidden_size"] // heads
    return State("linear", heads, dim, 0, dim, 1, 4)


def _attention(text: Config, traits: Family, index: int, kind: str) -> Attention:
    slides = kind == "sliding_attention" or bool(text.get("compress_ratios"))
    heads = text["num_attention_heads"]
    head_dim = first(text, "head_dim", "attention_head_dim") or text["hidden_size"] // heads
    kv_heads = text.get("num_key_value_heads") or heads
    value_dim = 0 if text.get("kv_lora_rank") else first(text, "v_head_dim")
    if kind == "full_attention" and text.get("global_head_dim"):
        head_dim = text["global_head_dim"]
        kv_heads = text.get("num_global_key_value_heads") or kv_heads
    if kind == "sliding_attention":  # Step 3.5
        other = text.get("attention_other_setting")
        other = other if isinstance(other, Mapping) else {}
        heads = (
            first(text, "num_sliding_attention_heads")
            or first(other, "num_attention_heads")
            or heads
        )
    if slides and text.get("swa_num_key_value_heads"):  # MiMo V2
        heads = first(text, "swa_num_attention_heads") or heads
        kv_heads = text["swa_num_key_value_heads"]
        head_dim = first(text, "swa_head_dim") or head_dim
        value_dim = first(text, "swa_v_head_dim") or value_dim
    latent = None
    if text.get("kv_lora_rank"):
        latent = Latent(
            query_rank=text.get("q_lora_rank"),
            kv_rank=text["kv_lora_rank"],
            nope_dim=text.get("qk_nope_head_dim") or 128,
            rope_dim=text.get("qk_rope_head_dim") or 64,
            value_dim=text.get("v_head_dim") or 128,
            gated=bool(text.get("mla_use_output_gate") or text.get("gated_mla")),
            expanded=traits.expanded,
        )
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=text.get("sliding_window") if slides else None,
        chunk=text.get("attention_chunk_size") if kind == "chunked_attention" else None,
        latent=latent,
        qkv_bias=bool(text.get("attention_bias", text.get("qkv_bias", traits.qkv_bias))),
        out_bias=traits.out_bias and bool(text.get("attention_bias", True)),
        qk_norm=bool(text.get("use_qk_norm", traits.qk_norm)) if traits.qk_norm else False,
        sinks=traits.sinks,
        shares_cache=index >= _shared_from(text),
        gated=bool(text.get("attn_output_gate", traits.gated_query)),
        indexer=_indexer(text, index),
        compressed=_compressed(text, index),
        value_dim=value_dim,
    )


def _indexer(text: Config, index: int) -> Indexer | None:
    """Return the indexer of a layer with sparse attention."""
    sparse = text.get("sparse_attention_config")
    if isinstance(sparse, Mapping):  # MiniMax M3
        used = sparse.get("sparse_attention_freq")
        if isinstance(used, Sequence) and index < len(used) and not used[index]:
            return None
        heads, dim = first(sparse, "sparse_num_index_heads"), first(sparse, "sparse_index_dim")
        return Indexer(heads, dim) if heads and dim else None
    heads, dim = first(text, "index_n_heads"), first(text, "index_head_dim")
    if not heads or not dim:
        return None
    kinds = text.get("indexer_types")
    shared = isinstance(kinds, Sequence) and index < len(kinds) and kinds[index] == "shared"
    return Indexer(heads, dim, owned=not shared)


def _compressed(text: Config, index: int) -> Compressed | None:
    ratios = text.get("compress_ratios")
    if not isinstance(ratios, Sequence) or index >= len(ratios):
        return None
    return Compressed(
        ratio=int(ratios[index] or 0),
        query_rank=first(text, "q_lora_rank"),
        groups=first(text, "o_groups") or 1,
        out_rank=first(text, "o_lora_rank"),
        streams=first(text, "hc_mult"),
    )


def _shared_from(text: Config) -> int:
    """Return the first layer that reads the KV cache of an earlier one."""
    return int(text["num_hidden_layers"] - (text.get("num_kv_shared_layers") or 0))


def _has_experts(text: Config, index: int, kind: str) -> bool:
    """Return whether that layer has experts, in a mixture of experts."""
    if kind in ("moe", "mlp"):
        return kind == "moe"
    given, freq = text.get("mlp_layer_types"), text.get("moe_layer_freq")
    if isinstance(given, Sequence) and index < len(given):
        return str(given[index]) == "sparse"
    if isinstance(freq, Sequence) and index < len(freq):
        return bool(freq[index])
    period = first(text, "expert_layer_period")
    if period:
        return index % period == int(text.get("expert_layer_offset") or 0)
    listed = text.get("moe_layers_enum")
    if isinstance(listed, Sequence):  # Step 3
        return index in {int(each) for each in listed}
    begin, every = text.get("moe_layer_start_index"), text.get("moe_layer_interval")
    if positive(every) and isinstance(begin, int):  # Ernie 4.5
        return begin <= index and (index + 1) % int(str(every)) == 0
    step = text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or 1
    dense = text.get("first_k_dense_replace") or text.get("num_dense_layers") or 0
    without = text.get("mlp_only_layers")
    listed = isinstance(without, list) and index in without
    return bool(index >= dense and (index + 1) % step == 0 and not listed)


def _feed_forward(
    text: Config, traits: Family, index: int, kind: str
) -> tuple[Mlp | None, Experts | None]:
    """Return the dense block of a layer, or the shared expert, and the experts."""
    count = _experts_count(text)
    gated = traits.gated_mlp
    experts = None
    if count and _has_experts(text, index, kind):
        experts = Experts(
            count=count,
            per_token=first(
                text, "num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_top_k"
            )
            or 1,
            width=first(
                text,
                "moe_intermediate_size",
                "expert_intermediate_size",
                "intermediate_size",
                "ffn_hidden_size",
            ),
            bias=traits.experts_bias,
            gated=gated,
            latent=first(text, "moe_latent_size", "routed_expert_hidden_size"),
        )
    if experts is None or "global_head_dim" in text:  # Gemma 4 has both in a layer
        width = first(
            text, "dense_intermediate_size", "intermediate_size_mlp", "intermediate_size",
            "ffn_hidden_size",
        )  # fmt: skip
        if text.get("block_auto_adjust_ff_dim"):  # LFM 2
            width = int(2 * width / 3 * (text.get("block_ffn_dim_multiplier") or 1))
            step = first(text, "block_multiple_of") or 1
            width = -(-width // step) * step
        doubled = bool(text.get("use_double_wide_mlp")) and index >= _shared_from(text)
        width = (width or 4 * text["hidden_size"]) * (2 if doubled else 1)
        return Mlp(width, gated=gated, bias=bool(text.get("mlp_bias", traits.mlp_bias))), experts
    shared = _shared_width(text)
    return (Mlp(shared, gated=gated) if shared else None), experts


def _experts_count(text: Config) -> int:
    return first(text, "num_experts", "n_routed_experts", "num_local_experts")


def _shared_width(text: Config) -> int:
    """Return the total width of the shared experts, or 0."""
    number = first(text, "n_shared_experts", "num_shared_experts")
    each = first(text, "moe_shared_expert_intermediate_size", "shared_intermediate_size")
    if text.get("attention_chunk_size") and not text.get("hybrid_layer_pattern"):
        return first(text, "intermediate_size")  # Llama 4: one shared expert, always
    if each:
        return each * (number or 1)
    alone = first(text, "shared_expert_intermediate_size", "share_expert_dim")
    return alone or number * first(text, "moe_intermediate_size")


# Names of the modules of each part in checkpoints of different models. What one of them says
# counts for the part, since vLLM stores a fused module in one way.
_NAMES: dict[Part, tuple[str, ...]] = {
    "attention": (
        "self_attn.q_proj", "self_attn.qkv_proj", "self_attn.q_a_proj", "mixer.q_proj",
        "attn.wq_a", "attn.q_proj", "attention.q_proj",
    ),
    "out": ("self_attn.o_proj", "mixer.o_proj", "attn.wo_a", "attn.o_proj", "attention.o_proj"),
    "indexer": ("self_attn.indexer.wq_b", "self_attn.index_q_proj", "attn.indexer.wq_b"),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mixer.up_proj", "feed_forward.w1", "ffn.w1"),
    "shared": (
        "mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj",
        "block_sparse_moe.shared_experts.gate_proj", "mixer.shared_experts.up_proj",
        "ffn.shared_experts.w1", "feed_forward.shared_expert.gate_proj",
    ),
    "experts": (
        "mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "mixer.experts.0.up_proj",
        "ffn.experts.0.w1", "feed_forward.experts.0.w1", "experts.0.gate_proj",
    ),
    "latent": ("mixer.fc1_latent_proj", "block_sparse_moe.routed_expert_down_proj"),
    "state": (
        "linear_attn.in_proj_qkvz", "linear_attn.in_proj_qkv", "mixer.in_proj", "mamba.in_proj",
        "conv.in_proj", "self_attn.q_proj",
    ),
    "small": ("linear_attn.in_proj_ba", "linear_attn.in_proj_b"),
    "state_out": (
        "linear_attn.out_proj", "mixer.out_proj", "mamba.out_proj", "conv.out_proj",
        "self_attn.o_proj",
    ),
}  # fmt: skip


def _stored(text: Config, part: Part, index: int, stored: StoredModules) -> Quantization | None:
    if part == "latent" and "routed_expert_hidden_size" in text:
        return None  # Kimi K3 quantises the experts alone, not the way to them
    return stored.of(_names(text, part, index))


def _names(text: Config, part: Part, index: int) -> list[str]:
    names = _NAMES[part]
    if part == "experts" and "global_head_dim" in text:
        names = ("experts.0.gate_proj",)  # Gemma 4 has them beside `mlp`, not in it
    return [f"layers.{index}.{name}" for name in names]


def _parts(layer: DecoderLayer) -> list[Part]:
    """Return the parts that a layer has."""
    found: list[Part] = []
    if layer.attention:
        found += ["attention", "out"]
    if layer.attention and layer.attention.indexer:
        found += ["indexer"]
    if layer.state:
        found += ["state", "small", "state_out"]
    if layer.mlp:
        found += ["shared" if layer.experts else "mlp"]
    if layer.experts:
        found += ["experts"]
    if layer.experts and layer.experts.latent:
        found += ["latent"]
    return found
