"""Convert config.json to a `ModelShape`. No other module handles that file's many spellings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.errors import MALFORMED, UsageError
from clusterctl.models.families import FAMILIES, LLAMA
from clusterctl.models.layers import Family, first, layers_of, only_states, positive
from clusterctl.models.quantized import StoredModules, stored_modules
from clusterctl.models.shape import DecoderLayer, Divided, ModelShape, RotaryTable, Tower

Config = Mapping[str, Any]

# Sections for the language model. Those of Qwen's Omni models have it one level deeper.
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


def describe(config: Config, name: str = "", *, whole: bool = True) -> ModelShape:
    """Return the shape that a parsed config.json describes. `whole`: it is the whole file, not only
    the keys in the catalogue.

    An unknown architecture is described from its keys, and `assumptions` lists the guesses. Raises
    UsageError with every key that is missing or not a positive number, if the weights cannot be
    computed without them.
    """
    named = architecture_of(config)
    architecture = named or str(config.get("model_type") or "unknown")
    text = _language_part(config)
    family = FAMILIES.get(architecture)
    traits = family or LLAMA
    stored = stored_modules(config, text)
    tower = None if traits.text_only else _tower(_whole(config), text, stored)
    layers, usual = layers_of(text, traits, stored)
    context, key = longest_context(text)
    encoder = any(word in named.lower() for word in _ENCODERS)
    both_ways = encoder or _attends_both_ways(named, text)

    outer = _whole(config)
    blind = tower is None and isinstance(outer.get("vision_config"), Mapping)
    hears = config if traits.crosses else outer.get("audio_config")
    ears = _ears(hears, text, joined=traits.crosses)
    deaf = ears is None and isinstance(outer.get("audio_config"), Mapping)

    guesses = (
        (
            family is None,
            f"the architecture {architecture} is unknown: treated as a Llama with the sizes in "
            "config.json",
        ),
        (
            not traits.states and any(layer.state for layer in layers),
            "layers without attention (Mamba, linear) are counted from the sizes in config.json",
        ),
        (blind, "the vision encoder is not counted: its sizes are not in config.json"),
        (
            stored.unknown,
            f"quantisation {stored.unknown!r} is computed from its bits alone",
        ),
        (deaf, "the audio encoder is not counted: its sizes are not in config.json"),
        (
            both_ways and not encoder,
            "it attends in both directions: the KV cache planned for it stays empty",
        ),
        (
            text.get("compress_ratios"),
            "activations beside compressed attention are estimated from three starts",
        ),
        (key is None, f"config.json lacks the longest context: {context} tokens assumed"),
    )
    drafters = first(text, "num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
    per_layer = text.get("hidden_size_per_layer_input")
    return ModelShape(
        name=name or str(config.get("_name_or_path") or architecture),
        architecture=architecture,
        hidden=text["hidden_size"],
        vocab=text["vocab_size"],
        # That of the whole rules, where both have it (`with_hf_config` in vllm/config/vllm.py)
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", traits.tied))),
        context=context,
        context_key=key or "default",
        dtype=_dtype(text, config),
        attention_free=only_states(text),
        layers=layers,
        rotary=_tables(text, traits, layers),
        quantization=usual,
        head_stored=stored.named.get("lm_head"),
        cache_dtype=stored.cache_dtype,
        drafters=drafters,
        splits_drafter=traits.splits_drafter,
        tower=tower,
        ears=ears,
        per_layer_vocab=first(text, "vocab_size_per_layer_input") if per_layer else 0,
        multimodal=any(outer.get(key) for key in ("vision_config", "audio_config")),
        encoder=encoder,
        tables=_tables_of_encoder(text) if encoder and family else (),
        scores=_scores(config) if encoder else 0,
        both_ways=both_ways,
        assumptions=tuple(sentence for applies, sentence in guesses if applies),
        typed=not whole or bool(config.get("model_type")),
    )


def _tables_of_encoder(text: Config) -> tuple[int, ...]:
    """Return the rows of BERT's tables beside the vocabulary."""
    return (longest_context(text)[0], first(text, "type_vocab_size") or 1)


def _scores(config: Config) -> int:
    """Return the elements of the classifier of a BERT-like model, and of the matrix before it."""
    if not architecture_of(config).endswith("ForSequenceClassification"):
        return 0
    hidden, labels = first(config, "hidden_size"), config.get("id2label")
    count = len(labels) if isinstance(labels, Mapping) else first(config, "num_labels") or 2
    return (hidden + 1) * (hidden + count)


def _attends_both_ways(named: str, text: Config) -> bool:
    # Gemma 4 has "vision" there: it reads images in both directions, but generates text.
    bidirectional = text.get("use_bidirectional_attention") in (True, "all")
    return bidirectional or text.get("is_causal") is False or "Bidirectional" in named


def _dtype(text: Config, config: Config) -> str:
    """Return the type that vLLM's `auto` computes in: it casts float32."""
    named = [part.get(key) for part in (text, config) for key in ("dtype", "torch_dtype")]
    dtype = str(next(filter(None, named), "")).removeprefix("torch.")
    return "float16" if dtype in ("float16", "half") else "bfloat16"


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

# Names of these keys in other models.
_OTHER_KEYS = {
    "hidden_size": ("n_embd", "dim", "d_model"),
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "num_key_value_heads": (
        "n_kv_heads",
        "kv_n_heads",
        "num_kv_heads",
        "multi_query_group_num",
        "num_attention_groups",
    ),
    "intermediate_size": ("n_inner", "hidden_dim", "ffn_dim"),
    "head_dim": ("kv_channels",),
    "num_experts": ("moe_num_experts",),
    "num_experts_per_tok": ("moe_k", "moe_topk"),
    "num_shared_experts": ("moe_num_shared_experts",),
    "moe_intermediate_size": ("expert_ffn_hidden_size",),
}

# Whisper's names for its decoder, whose width is the encoder's
_DECODER_KEYS = {
    "hidden_size": "d_model",
    "num_hidden_layers": "decoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_target_positions",
}

_LAYER_LISTS = ("layer_types", "layers_block_type", "hybrid_override_pattern")


def _language_part(config: Config) -> dict[str, Any]:
    """Return the section for the language model, with the usual keys. Raises UsageError."""
    text = dict(_section(config) or config)
    if architecture_of(config) == "WhisperForConditionalGeneration":
        # `num_hidden_layers` is the encoder's there
        text = {key: text[old] for key, old in _DECODER_KEYS.items() if old in text} | {
            key: text[key] for key in ("dtype", "torch_dtype", "tie_word_embeddings") if key in text
        }
    for part in ("attn_config", "ffn_config"):  # DBRX
        if isinstance(text.get(part), Mapping):
            text = {**text[part], **text}
    if text.get("multi_query") and not text.get("new_decoder_architecture"):  # Falcon
        text["num_key_value_heads"] = 1
    for key, others in _OTHER_KEYS.items():
        other = next((other for other in others if other in text), None)
        if key not in text and other:
            text[key] = text[other]
    listed = next((text[key] for key in _LAYER_LISTS if text.get(key)), None)
    if "num_hidden_layers" not in text and isinstance(listed, Sequence):
        text["num_hidden_layers"] = len(listed)
    if not text.get("num_attention_heads") and only_states(text):
        text["num_attention_heads"] = 1
    wrong = [key for key in _NEEDED if not positive(text.get(key))]
    for key in _COUNTS:
        value = text.get(key)
        if not (value is None or value is False or (isinstance(value, int) and value >= 0)):
            wrong.append(key)
    if wrong and text.get("encoder_layers") and text.get("decoder_layers"):
        raise UsageError(
            f"{architecture_of(config)} has an encoder and a decoder: its memory is not planned",
            hint="`clusterctl serve` starts it without a forecast",
        )
    if wrong:
        raise UsageError(
            f"config.json has no usable {', '.join(wrong)}, without which memory cannot be planned",
            hint=f"{_OWN_CONFIG}; if it is that, `clusterctl serve` starts it without a forecast",
        )
    sized = any(text.get(key) for key in ("head_dim", "attention_head_dim", "kv_lora_rank"))
    if not sized and text["hidden_size"] % text["num_attention_heads"]:
        raise UsageError(
            f"config.json is not consistent: {text['num_attention_heads']} heads do not divide "
            f"a hidden size of {text['hidden_size']}, and there is no head_dim",
            hint=_OWN_CONFIG,
        )
    return text


def _section(config: Config) -> Config | None:
    """Return the innermost section with a hidden size; None if the keys are not in a section."""
    for key in _TEXT_PARTS:
        part = config.get(key)
        if isinstance(part, Mapping) and (found := _section(part) or part).get("hidden_size"):
            return found
    return None


def _tower(config: Config, text: Config, stored: StoredModules) -> Tower | None:
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None
    hidden = first(vision, "embed_dim", "hidden_size", "vt_hidden_size", "mm_embed_dim")
    layers = first(vision, "num_hidden_layers", "depth", "vt_num_hidden_layers")
    kind = str(vision.get("model_type", ""))
    if not hidden or not (layers or kind.startswith(_NO_LAYERS)):
        return None
    patch = first(vision, "model_patch_size", "patch_size") or 14
    image = first(vision, "image_size")
    merged = first(vision, "spatial_merge_size")  # Qwen's
    inner = first(vision, "qkv_hidden_size")
    projection, width = _projection(config, hidden, text["hidden_size"]), 0
    joining = 0
    if kind.startswith(("glm4v", "glm_ocr")):
        out = first(vision, "out_hidden_size")
        width = out if kind.startswith("glm4v") else 0
        context = first(vision if width else text, "intermediate_size")
        projection, joining = out * hidden * merged**2, out * (out + 3 * context)
        merged = 0
    if kind.startswith(_NO_LAYERS):
        patch, joining = 0, 3 * patch**2 * hidden
    if kind.startswith("paddleocr"):  # joins patches on each rank
        joined = hidden * merged**2
        projection, merged = joined * (joined + text["hidden_size"]), 0
    deep = vision.get("deepstack_visual_indexes")
    return Tower(
        hidden=hidden,
        layers=layers,
        mlp_width=width
        or first(vision, "intermediate_size", "vt_intermediate_size")
        or int(hidden * (vision.get("mlp_ratio") or 4)),
        heads=first(vision, "num_attention_heads", "num_heads") or 16,
        gated=kind.startswith(("gemma4", "pixtral")) or vision.get("hidden_act") == "silu",
        patch=patch,
        positions=2 * first(vision, "position_embedding_size", "mm_posemb_size")
        or first(vision, "num_position_embeddings")
        or (0 if {"rope_parameters", "rope_theta"} & vision.keys() else (image // patch) ** 2),
        merged=merged,
        projection=projection,
        joining=joining,
        mergers=1 + len(deep) if isinstance(deep, list) else 1,
        frames=first(vision, "temporal_patch_size") or 1,
        inner=inner,
        divided="" if inner else _divided(kind),
        stored=stored.beside if merged else None,
    )


_NO_LAYERS = "gemma4_unified"  # Patches and frames of sound are projected, and that is all

# Of towers that vLLM does not divide over the ranks as a whole
_DIVIDED: dict[str, Divided] = {
    _NO_LAYERS: "mlp",
    "gemma4": "",
    "muse": "attention",
    "internvl": "mlp",
    "qwen2_audio": "",
    "qwen2_5_omni_audio": "",
    "audioflamingo3": "",
}


def _divided(kind: str) -> Divided:
    found = (divided for start, divided in _DIVIDED.items() if kind.startswith(start))
    return next(found, "all")


def _whole(config: Config) -> Config:
    """Return the section that has the encoders next to the language model."""
    thinker = config.get("thinker_config")  # Qwen's Omni and ASR models
    return thinker if isinstance(thinker, Mapping) else config


def _ears(audio: object, text: Config, *, joined: bool = False) -> Tower | None:
    """Return the audio encoder, which is built like Whisper's. `joined`: the decoder reads it as it
    is. Gemma's is a conformer, whose second feed-forward, convolution and projection of positions
    are counted with the first one."""
    if not isinstance(audio, Mapping):
        return None
    hidden = first(audio, "d_model", "hidden_size")
    layers = first(audio, "encoder_layers", "num_hidden_layers")
    kind = str(audio.get("model_type", ""))
    if not hidden or not (layers or kind.startswith(_NO_LAYERS)):
        return None
    usual = (10 if kind == "gemma4_audio" else 4) * hidden
    subsampling = 3 * hidden**2 if layers else 0
    if channels := first(audio, "downsample_hidden_size"):  # Qwen's: three convolutions of 2
        bands = -(-first(audio, "num_mel_bins") // 8)
        subsampling = 18 * channels**2 + bands * channels * hidden + hidden**2
    return Tower(
        hidden=hidden,
        layers=layers,
        mlp_width=first(audio, "encoder_ffn_dim", "intermediate_size") or usual,
        heads=first(audio, "encoder_attention_heads", "num_attention_heads") or 16,
        gated=False,
        patch=0,
        positions=first(audio, "max_source_positions"),
        # A convolution, and what leads to the text; Whisper's own has the one before it, too
        projection=subsampling
        + hidden * (3 * first(audio, "num_mel_bins") if joined else text["hidden_size"]),
        divided=_divided(kind),
    )


def _projection(config: Config, width: int, text_width: int) -> int:
    """Return the elements of the matrices between a vision encoder and the language model."""
    elements = width * text_width
    merged = config["vision_config"].get("merge_kernel_size")
    if isinstance(merged, list):  # Kimi
        joined = width * int(merged[0]) * int(merged[1])
        return joined * (joined + text_width)
    if step := first(config, "projector_hidden_size"):  # Muse Glimmer
        return step * (first(config, "out_hidden_size") + step + text_width)
    if config.get("projector_hidden_act"):  # LLaVA, Mistral 3
        elements += text_width**2
    if merge := first(config, "spatial_merge_size"):
        elements += (width * merge) ** 2
    return elements


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
    if not isinstance(rope, Mapping) or "gemma3" in str(text.get("model_type", "")):
        return length, key  # Gemma 3's length has the factor in it
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    factor = rope.get("factor")
    factor = float(factor) if isinstance(factor, int | float) and factor >= 1 else 1.0
    before = "original_max_position_embeddings"
    original = rope.get(before) or text.get(before)
    if kind == "yarn" and original and isinstance(original, int):
        return int(original * factor), key
    return int(length if kind in _UNSCALED else length * factor), key


def _tables(
    text: Mapping[str, Any], traits: Family, layers: Sequence[DecoderLayer]
) -> tuple[RotaryTable, ...]:
    """Return the tables that depend only on positions."""
    if traits.positions:  # learned
        return (RotaryTable(longest_context(text)[0], text["hidden_size"]),)
    return rotary_tables(text, layers) if traits.rotary else ()


def rotary_tables(
    text: Mapping[str, Any], layers: Sequence[DecoderLayer]
) -> tuple[RotaryTable, ...]:
    """Return one table per distinct rotary embedding, as vLLM's `get_rope` caches them.

    A table covers max_position_embeddings, whatever --max-model-len is; a YaRN table covers the
    length before scaling times its factor (rotary_embedding/yarn_scaling_rope.py).
    """
    positions, _ = longest_context(text)
    rope = text.get("rope_parameters")
    inner = rope.get("partial_rotary_factor") if isinstance(rope, Mapping) else None
    part = text.get("partial_rotary_factor", inner)
    factor = float(part) if isinstance(part, int | float) and 0 < part <= 1 else 1.0
    # In Gemma 3 and 4 sliding layers have another rope base than global ones.
    nested = isinstance(rope, Mapping) and "sliding_attention" in rope
    has_local_table = nested or "rope_local_base_freq" in text
    widths = set()
    for layer in layers:
        if heads := layer.attention:
            if heads.compressed:  # in float32, with another base for compressed rows
                wide = 2 * (first(text, "qk_rope_head_dim") or 64)
                widths |= {(False, wide), (True, wide)}
                continue
            latent = heads.latent.rope_dim if heads.latent else 0
            width = latent or int(heads.head_dim * factor)
            widths.add((has_local_table and bool(heads.window), width))
    return tuple(RotaryTable(positions, width) for _, width in sorted(widths))
