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
    both_ways: bool = False
    """As `reads_both_ways`."""


def shape_of(config: Mapping[str, Any]) -> Shape | None:
    """The shape that a parsed config.json describes; None where it has no attention heads.

    Models with vision or audio keep the text part under `text_config` (Gemma 4, Llama 4),
    `llm_config` or `language_config`; `n_head` and its like are GPT-2's words, and nomic-embed's.
    """
    text = _text_part(config)
    heads = text.get("num_attention_heads") or text.get("n_head")
    layers = text.get("num_hidden_layers") or text.get("n_layer")
    if not isinstance(heads, int) or not isinstance(layers, int):
        return None
    context = text.get("max_position_embeddings") or text.get("n_positions")
    multimodal = any(config.get(key) for key in ("vision_config", "audio_config"))
    return Shape(
        heads,
        _kv_heads(text, heads),
        layers,
        context or None,
        multimodal,
        encoder=is_encoder(config),
        both_ways=reads_both_ways(config),
    )


_ENCODERS = ("bert", "gtemodel", "gtenew")
"""What the class names of BERT and its kin hold in vLLM: XLMRobertaModel, NomicBertModel,
SnowflakeGteNewModel."""


def is_encoder(config: Mapping[str, Any]) -> bool:
    """Whether the model is of BERT's kin: it generates nothing and keeps no KV cache."""
    return any(word in architecture_of(config).lower() for word in _ENCODERS)


def reads_both_ways(config: Mapping[str, Any]) -> bool:
    """Whether the model takes a text whole, in one step: an encoder, or a decoder that was made
    one to embed (gte-Qwen2, EmbeddingGemma, the Bidirectional classes of vLLM)."""
    text = _text_part(config)
    # Gemma 4 has "vision" there: it reads images both ways, and generates.
    told = text.get("use_bidirectional_attention") in (True, "all")
    made_so = told or text.get("is_causal") is False or "Bidirectional" in architecture_of(config)
    return made_so or is_encoder(config)


def architecture_of(config: Mapping[str, Any]) -> str:
    """The name of its class; "" where config.json has none."""
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


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
