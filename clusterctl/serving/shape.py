"""What of a model's architecture decides how it may be cut into ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Counts from a config.json; for a model with vision, those of its text part."""

    attention_heads: int
    kv_heads: tuple[int, ...]
    """One count per kind of attention layer: Gemma 4's global layers have fewer."""
    layers: int
    longest_context: int | None = None
    """max_position_embeddings, in tokens."""
    multimodal: bool = False
    """Takes images, audio or video too."""
    encoder: bool = False
    """As `is_encoder`."""


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """The shape that a parsed config.json describes; None where it has no attention heads.

    Models with vision or audio keep the text part under `text_config` (Gemma 4, Llama 4),
    `llm_config` or `language_config`.
    """
    text = _text_part(config)
    heads = text.get("num_attention_heads")
    layers = text.get("num_hidden_layers")
    if not isinstance(heads, int) or not isinstance(layers, int):
        return None
    context = text.get("max_position_embeddings")
    multimodal = any(config.get(key) for key in ("vision_config", "audio_config"))
    return Shape(
        heads, _kv_heads(text, heads), layers, context or None, multimodal, is_encoder(config)
    )


_ENCODERS = (
    "Model",
    "ForMaskedLM",
    "ForPreTraining",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForTextEncoding",
)
_GENERATING = ("LMHeadModel", "ChatModel")


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether the model reads both ways, as BERT and its kin: it takes a text whole, in one step,
    and keeps no KV cache. A decoder that embeds has key/value heads, and may say that it reads
    both ways all the same."""
    text, names = _text_part(config), config.get("architectures")
    # Gemma 4 has "vision" there: it reads images both ways, and generates.
    if text.get("is_causal") is False or text.get("use_bidirectional_attention") in (True, "all"):
        return True
    name = str(names[0]) if isinstance(names, list) and names else ""
    encodes = name.endswith(_ENCODERS) and not name.endswith(_GENERATING)
    return encodes and "num_key_value_heads" not in text


def read_shape(config_json: str) -> Shape | None:
    """As `shape_of`, from the file's text; None when it is not a JSON object."""
    try:
        config = json.loads(config_json)
    except ValueError:
        return None
    return shape_of(config) if isinstance(config, dict) else None


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in ("text_config", "llm_config", "language_config"):
        part = config.get(key)
        if isinstance(part, dict) and "num_attention_heads" in part:
            return part
    return config


def _kv_heads(text: Mapping[str, Any], heads: int) -> tuple[int, ...]:
    """Every count of key/value heads in use. Multi-head latent attention (kv_lora_rank) keeps
    one latent vector on every rank, so its count limits nothing."""
    if text.get("kv_lora_rank"):
        return ()
    found = [text.get("num_key_value_heads") or heads, text.get("num_global_key_value_heads")]
    return tuple(dict.fromkeys(count for count in found if isinstance(count, int)))
