"""Convert config.json to a `ModelShape`. No other module handles that file's many spellings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import MALFORMED, UsageError
from clusterctl.models.quantized import KNOWN_METHODS, quantization_of
from clusterctl.models.shape import (
    Attention,
    DecoderLayer,
    Experts,
    Latent,
    Mlp,
    ModelShape,
    RotaryTable,
    Tower,
)

Config = Mapping[str, Any]

_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Optional keys, whose values must be numbers.
_COUNTS = (
    "head_dim", "num_key_value_heads", "global_head_dim", "num_global_key_value_heads",
    "num_kv_shared_layers", "sliding_window", "sliding_window_pattern", "attention_chunk_size",
    "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "n_shared_experts", "first_k_dense_replace", "decoder_sparse_step",
    "interleave_moe_layer_step", "hidden_size_per_layer_input",
)  # fmt: skip

_OWN_CONFIG = "copy the model's own config.json from the Hub next to its weights"


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


_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = Family(qk_norm=True)
_GEMMA = Family(qk_norm=True, norms=4, tied=True, window_every=6)

# From vllm/model_executor/models/<file>.py of vLLM 0.32. Other architectures are treated as a Llama
# with a wider margin of error, and the plan notes that.
_FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "Mistral3ForConditionalGeneration": _LLAMA,
    "MixtralForCausalLM": _LLAMA,
    "GraniteForCausalLM": _LLAMA,
    "Phi3ForCausalLM": _LLAMA,
    "Llama4ForConditionalGeneration": _LLAMA,
    "DeepseekV2ForCausalLM": _LLAMA,
    "DeepseekV3ForCausalLM": _LLAMA,
    "Qwen2ForCausalLM": _QWEN2,
    "Qwen2MoeForCausalLM": _QWEN2,
    "Qwen2VLForConditionalGeneration": _QWEN2,
    "Qwen2_5_VLForConditionalGeneration": _QWEN2,
    "Qwen3ForCausalLM": _QWEN3,
    "Qwen3MoeForCausalLM": _QWEN3,
    "Qwen3VLForConditionalGeneration": _QWEN3,
    "Qwen3VLMoeForConditionalGeneration": _QWEN3,
    "MiMoForCausalLM": _QWEN2,
    "MiniMaxM2ForCausalLM": _QWEN3,
    "Glm4MoeForCausalLM": _LLAMA,
    "Gemma2ForCausalLM": Family(norms=4, tied=True, window_every=2),
    "Gemma3ForCausalLM": _GEMMA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "Gemma4ForCausalLM": _GEMMA,
    "Gemma4ForConditionalGeneration": _GEMMA,
    "GptOssForCausalLM": Family(qkv_bias=True, out_bias=True, sinks=True, experts_bias=True),
}


def describe(config: Config, name: str = "", *, whole: bool = True) -> ModelShape:
    """Return the shape that a parsed config.json describes. `whole`: it is all of the file, and not
    only the keys of the catalogue.

    An unknown architecture is described from its keys, and `assumptions` lists the guesses. Raises
    UsageError with every key that is missing or not a positive number, if they are not enough to
    compute the weights.
    """
    named = architecture_of(config)
    architecture = named or str(config.get("model_type") or "unknown")
    text = _language_part(config)
    family = _FAMILIES.get(architecture)
    traits = family or _LLAMA
    layers = _layers(text, traits)
    context, key = longest_context(text)
    stored, tower = quantization_of(config, text), _tower(config)
    encoder = any(word in named.lower() for word in _ENCODERS)
    # Gemma 4 has "vision" there: it reads images in both directions, but generates text.
    both_ways = (
        encoder
        or text.get("use_bidirectional_attention") in (True, "all")
        or text.get("is_causal") is False
        or "Bidirectional" in named
    )
    blind = tower is None and isinstance(config.get("vision_config"), Mapping)
    recurrent = any(layer.attention is None for layer in layers)
    method = stored.method if stored else ""
    guesses = (
        (
            family is None,
            f"the architecture {architecture} is unknown: treated as a Llama with the sizes in "
            "config.json",
        ),
        (
            recurrent,
            "layers without attention (Mamba, linear) count with the weights of an MLP only",
        ),
        (blind, "the vision encoder is not counted: its sizes are not in config.json"),
        (
            stored and method not in KNOWN_METHODS,
            f"quantisation {method!r} is computed from its bits alone",
        ),
        (config.get("audio_config"), "the audio encoder is not counted"),
        (both_ways, "it attends in both directions: the KV cache planned for it stays empty"),
        (
            text.get("num_nextn_predict_layers"),
            "the multi-token prediction layer is not loaded, as in vLLM by default",
        ),
        (key is None, f"config.json lacks the longest context: {context} tokens assumed"),
    )
    dtypes = [part.get(key) for part in (text, config) for key in ("dtype", "torch_dtype")]
    dtype = str(next(filter(None, dtypes), "")).removeprefix("torch.")
    per_layer = text.get("hidden_size_per_layer_input")
    return ModelShape(
        name=name or str(config.get("_name_or_path") or architecture),
        architecture=architecture,
        hidden=text["hidden_size"],
        vocab=text["vocab_size"],
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", traits.tied))),
        context=context,
        context_key=key or "default",
        # vLLM's `auto` casts float32
        dtype="float16" if dtype in ("float16", "half") else "bfloat16",
        layers=layers,
        rotary=rotary_tables(text, layers),
        quantization=stored,
        tower=tower,
        per_layer_vocab=_first(text, "vocab_size_per_layer_input") if per_layer else 0,
        multimodal=any(config.get(key) for key in ("vision_config", "audio_config")),
        encoder=encoder,
        both_ways=both_ways,
        assumptions=tuple(sentence for applies, sentence in guesses if applies),
        typed=not whole or bool(config.get("model_type")),
    )


def described(config_json: str | None) -> ModelShape | None:
    """Like `describe`, from the file's text; None if keys are missing or it is not JSON."""
    try:
        return describe(json.loads(config_json or ""))
    except (*MALFORMED, UsageError):
        return None


def architecture_of(config: Config) -> str:
    """Return the name of the model's class; empty if config.json has none."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


# Parts of class names of BERT-like models in vLLM: XLMRobertaModel, NomicBertModel,
# SnowflakeGteNewModel.
_ENCODERS = ("bert", "gtemodel", "gtenew")

# Names of these keys in other models: GPT-2 and nomic-embed, DistilBERT.
_OTHER_KEYS = {
    "hidden_size": ("n_embd", "dim"),
    "num_hidden_layers": ("n_layer", "n_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "intermediate_size": ("n_inner", "hidden_dim"),
}


def _language_part(config: Config) -> dict[str, Any]:
    """Return the section for the language model, with the usual keys. Raises UsageError."""
    parts = (config.get(key) for key in _TEXT_PARTS)
    text = dict(next((p for p in parts if isinstance(p, Mapping) and "hidden_size" in p), config))
    for key, others in _OTHER_KEYS.items():
        other = next((other for other in others if other in text), None)
        if key not in text and other:
            text[key] = text[other]
    wrong = [key for key in _NEEDED if not _positive(text.get(key))]
    for key in _COUNTS:
        value = text.get(key)
        if not (value is None or value is False or (isinstance(value, int) and value >= 0)):
            wrong.append(key)
    if wrong:
        raise UsageError(
            f"config.json has no usable {', '.join(wrong)}: not that of a language model",
            hint=_OWN_CONFIG,
        )
    if not text.get("head_dim") and text["hidden_size"] % text["num_attention_heads"]:
        raise UsageError(
            f"config.json is not consistent: {text['num_attention_heads']} heads do not divide "
            f"a hidden size of {text['hidden_size']}, and there is no head_dim",
            hint=_OWN_CONFIG,
        )
    return text


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _first(text: Config, *keys: str) -> int:
    """Return the value of the first key that has a positive number, or 0."""
    return next((int(text[key]) for key in keys if _positive(text.get(key))), 0)


def _layers(text: Config, traits: Family) -> tuple[DecoderLayer, ...]:
    count, kinds = text["num_hidden_layers"], text.get("layer_types")
    if not isinstance(kinds, Sequence) or len(kinds) != count:
        window = text.get("sliding_window")
        every = text.get("sliding_window_pattern") or traits.window_every
        if window and not every and text.get("use_sliding_window", True):
            every = count + 1  # no layer is global
        sliding = [bool(window and every and (index + 1) % every) for index in range(count)]
        kinds = ["sliding_attention" if slides else "full_attention" for slides in sliding]
    found = []
    for index, kind in enumerate(kinds):
        mlp, experts = _feed_forward(text, traits, index)
        found.append(
            DecoderLayer(
                attention=_attention(text, traits, index, str(kind)),
                mlp=mlp,
                experts=experts,
                # Gemma 4's experts have three norms and a router scale
                norms=traits.norms + (4 if "global_head_dim" in text and experts else 0),
                per_layer_input=text.get("hidden_size_per_layer_input") or 0,
            )
        )
    return tuple(found)


def _attention(text: Config, traits: Family, index: int, kind: str) -> Attention | None:
    if kind in ("linear_attention", "mamba", "recurrent", "conv"):
        return None
    heads = text["num_attention_heads"]
    head_dim = text.get("head_dim") or text["hidden_size"] // heads
    kv_heads = text.get("num_key_value_heads") or heads
    if kind == "full_attention" and text.get("global_head_dim"):
        head_dim = text["global_head_dim"]
        kv_heads = text.get("num_global_key_value_heads") or kv_heads
    latent = None
    if text.get("kv_lora_rank"):
        latent = Latent(
            query_rank=text.get("q_lora_rank"),
            kv_rank=text["kv_lora_rank"],
            nope_dim=text.get("qk_nope_head_dim") or 128,
            rope_dim=text.get("qk_rope_head_dim") or 64,
            value_dim=text.get("v_head_dim") or 128,
        )
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        window=text.get("sliding_window") if kind == "sliding_attention" else None,
        chunk=text.get("attention_chunk_size") if kind == "chunked_attention" else None,
        latent=latent,
        qkv_bias=bool(text.get("attention_bias", text.get("qkv_bias", traits.qkv_bias))),
        out_bias=traits.out_bias and bool(text.get("attention_bias", True)),
        qk_norm=traits.qk_norm,
        sinks=traits.sinks,
        shares_cache=index >= _shared_from(text),
    )


def _shared_from(text: Config) -> int:
    """Return the first layer that reads the KV cache of an earlier one."""
    return int(text["num_hidden_layers"] - (text.get("num_kv_shared_layers") or 0))


def _feed_forward(text: Config, traits: Family, index: int) -> tuple[Mlp | None, Experts | None]:
    """Return the dense block of a layer, or the shared expert, and the experts."""
    count = _first(text, "num_experts", "n_routed_experts", "num_local_experts")
    step = text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or 1
    dense = index < (text.get("first_k_dense_replace") or 0) or (index + 1) % step
    without = text.get("mlp_only_layers")
    experts = None
    if count and not dense and not (isinstance(without, list) and index in without):
        experts = Experts(
            count=count,
            per_token=_first(text, "num_experts_per_tok", "top_k_experts", "moe_top_k") or 1,
            width=_first(
                text, "moe_intermediate_size", "expert_intermediate_size", "intermediate_size"
            ),
            bias=traits.experts_bias,
        )
    if experts is None or "global_head_dim" in text:  # Gemma 4 has both in a layer
        width = _first(text, "intermediate_size_mlp", "intermediate_size", "ffn_hidden_size")
        doubled = bool(text.get("use_double_wide_mlp")) and index >= _shared_from(text)
        width = (width or 4 * text["hidden_size"]) * (2 if doubled else 1)
        return Mlp(width, bias=bool(text.get("mlp_bias"))), experts
    shared = _first(text, "shared_expert_intermediate_size")
    shared = shared or (text.get("n_shared_experts") or 0) * _first(text, "moe_intermediate_size")
    if text.get("attention_chunk_size"):
        shared = _first(text, "intermediate_size")  # Llama 4: one shared expert, always
    return (Mlp(shared) if shared else None), experts


def _tower(config: Config) -> Tower | None:
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    hidden = _first(vision, "hidden_size", "embed_dim")
    layers = _first(vision, "num_hidden_layers", "depth")
    if not hidden or not layers:
        return None
    patch = _first(vision, "patch_size") or 14
    image = _first(vision, "image_size")
    return Tower(
        hidden=hidden,
        layers=layers,
        mlp_width=_first(vision, "intermediate_size") or 4 * hidden,
        heads=_first(vision, "num_attention_heads", "num_heads") or 16,
        gated="gemma4" in str(vision.get("model_type", "")) or vision.get("hidden_act") == "silu",
        patch=patch,
        positions=2 * _first(vision, "position_embedding_size") or (image // patch) ** 2,
    )


# In vLLM's order (vllm/transformers_utils/model_arch_config_convertor.py).
_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip

_NO_KEY_LENGTH = 2048  # vLLM's default without any of the keys (config/model.py)

# Rope types whose factor does not extend the context, as in vLLM's `_get_and_verify_max_len`.
_UNSCALED = frozenset({"su", "longrope", "llama3", "mrope", "default", "proportional"})


def longest_context(text: Mapping[str, Any]) -> tuple[int, str | None]:
    """Return the longest context, and its key (None for the default)."""
    found = [(text[key], key) for key in _LENGTH_KEYS if isinstance(text.get(key), int)]
    if not found:
        return _NO_KEY_LENGTH, None
    length, key = min(found, key=lambda pair: pair[0])
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return length, key
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    factor = rope.get("factor")
    factor = float(factor) if isinstance(factor, int | float) and factor >= 1 else 1.0
    before = "original_max_position_embeddings"
    original = rope.get(before) or text.get(before)
    if kind == "yarn" and original and isinstance(original, int):
        return int(original * factor), key
    return int(length if kind in _UNSCALED else length * factor), key


def rotary_tables(
    text: Mapping[str, Any], layers: Sequence[DecoderLayer]
) -> tuple[RotaryTable, ...]:
    """Return one table per distinct rotary embedding, as vLLM's `get_rope` caches them.

    A table covers max_position_embeddings, whatever --max-model-len is; a YaRN table covers the
    length before scaling times its factor (rotary_embedding/yarn_scaling_rope.py).
    """
    positions, _ = longest_context(text)
    part = text.get("partial_rotary_factor")
    factor = float(part) if isinstance(part, int | float) and 0 < part <= 1 else 1.0
    # In Gemma 3 and 4 sliding layers have another rope base than global ones.
    rope = text.get("rope_parameters")
    nested = isinstance(rope, Mapping) and "sliding_attention" in rope
    has_local_table = nested or "rope_local_base_freq" in text
    widths = set()
    for layer in layers:
        if heads := layer.attention:
            latent = heads.latent.rope_dim if heads.latent else 0
            width = latent or int(heads.head_dim * factor)
            widths.add((has_local_table and bool(heads.window), width))
    return tuple(RotaryTable(positions, width) for _, width in sorted(widths))
