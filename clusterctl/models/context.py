"""The longest context a model was made for, and the rotary tables that vLLM keeps for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clusterctl.models.shape import Layer, RotaryTable

_LENGTH_KEYS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
"""In the order in which vLLM looks (vllm/transformers_utils/model_arch_config_convertor.py)."""

_NO_KEY_LENGTH = 2048
"""What vLLM takes when config.json has none of the keys (config/model.py)."""

_UNSCALED = frozenset({"su", "longrope", "llama3", "mrope", "default", "proportional"})
"""Rope types whose factor does not lengthen the context, as in vLLM's
`_get_and_verify_max_len`."""


def longest_context(text: Mapping[str, Any]) -> tuple[int, str | None]:
    """Tokens, and the key that said so (None when no key did)."""
    found = [(text[key], key) for key in _LENGTH_KEYS if isinstance(text.get(key), int)]
    if not found:
        return _NO_KEY_LENGTH, None
    length, key = min(found, key=lambda pair: pair[0])
    kind, factor, original = _scaling(text)
    if kind == "yarn" and original:
        return int(original * factor), key
    if kind not in _UNSCALED:
        return int(length * factor), key
    return length, key


def _scaling(text: Mapping[str, Any]) -> tuple[str, float, int]:
    """The rope type, its factor and the length before scaling."""
    rope = text.get("rope_scaling") or text.get("rope_parameters")
    if not isinstance(rope, Mapping):
        return "default", 1.0, 0
    kind = str(rope.get("rope_type") or rope.get("type") or "default")
    factor = rope.get("factor")
    original = rope.get("original_max_position_embeddings") or text.get(
        "original_max_position_embeddings"
    )
    usable = float(factor) if isinstance(factor, int | float) and factor >= 1 else 1.0
    return kind, usable, original if isinstance(original, int) else 0


def rotary_tables(text: Mapping[str, Any], layers: Sequence[Layer]) -> tuple[RotaryTable, ...]:
    """One table for each distinct rotary embedding, as vLLM's `get_rope` caches them.

    A table covers max_position_embeddings, whatever --max-model-len says; YaRN's covers the
    length before scaling times its factor (rotary_embedding/yarn_scaling_rope.py).
    """
    positions, _ = longest_context(text)
    part = text.get("partial_rotary_factor")
    factor = float(part) if isinstance(part, int | float) and 0 < part <= 1 else 1.0
    widths = {
        (bool(attention.window), _rotary_width(attention.head_dim, factor, attention.latent))
        for layer in layers
        if (attention := layer.attention)
    }
    if not _has_local_table(text):
        widths = {(False, width) for _, width in widths}
    return tuple(RotaryTable(positions, width) for _, width in sorted(widths))


def _rotary_width(head_dim: int, factor: float, latent: object) -> int:
    rope_dim = getattr(latent, "rope_dim", 0)
    return rope_dim or int(head_dim * factor)


def _has_local_table(text: Mapping[str, Any]) -> bool:
    """Whether sliding layers turn at another base than global ones (Gemma 3 and 4)."""
    rope = text.get("rope_parameters")
    nested = isinstance(rope, Mapping) and "sliding_attention" in rope
    return nested or "rope_local_base_freq" in text
