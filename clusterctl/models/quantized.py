"""How a model's weights are stored: `quantization_config`, and the effect of --quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.models.shape import Quantization

# Compute capability x 10 below which vLLM refuses the method (`get_min_capability` in
# vllm/model_executor/layers/quantization).
NEEDS_CAPABILITY: dict[str, int] = {"fp8": 75, "mxfp4": 80, "awq": 75, "gptq": 75}

KNOWN_METHODS = frozenset({"fp8", "mxfp4", "awq", "gptq", "bitsandbytes"})

_FP8 = Quantization("fp8", 8)
_BITSANDBYTES = Quantization("bitsandbytes", 4, group=64)


def quantization_of(config: Mapping[str, Any], text: Mapping[str, Any]) -> Quantization | None:
    """Return the quantization in config.json, or None for unquantised weights."""
    given = config.get("quantization_config") or text.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    method = str(given.get("quant_method") or "").lower()
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        group = _count(128, given.get("group_size"), given.get("q_group_size"))
        bits = _count(4, given.get("bits"), given.get("w_bit"))
        # GPTQ has zeros even when symmetric
        return Quantization(method.removesuffix("_marlin"), bits, group=max(0, group))
    if method == "compressed-tensors":
        groups = given.get("config_groups")
        first: object = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
        weights = first.get("weights") if isinstance(first, Mapping) else None
        weights = weights if isinstance(weights, Mapping) else {}
        bits = _count(8, weights.get("num_bits"))
        group = _count(128, weights.get("group_size"))
        zeros = not weights.get("symmetric", True)
        return _FP8 if bits >= 8 else Quantization("gptq", bits, group=group, zeros=zeros)
    if method == "bitsandbytes":
        return Quantization("bitsandbytes", 8 if given.get("load_in_8bit") else 4, group=64)
    if method == "mxfp4":
        return Quantization("mxfp4", 4, group=32, experts_only=True)
    if "fp8" in method or given.get("quant_algo") == "FP8":
        block = given.get("weight_block_size")
        side = _count(0, block[0]) if isinstance(block, list) and block else 0
        return Quantization("fp8", 8, block=side) if side > 0 else _FP8
    return Quantization(method or "unknown", _count(8, given.get("bits")))


def _count(default: int, *values: object) -> int:
    """Return the first of `values` that is a non-zero number, else `default`."""
    found = (value for value in values if isinstance(value, int) and value)
    return next(found, default)


def requested(method: str | None, own: Quantization | None) -> Quantization | None:
    """Return the quantization with `--quantization METHOD`. The checkpoint's own takes precedence.

    Only fp8 and bitsandbytes can quantise weights while loading.
    """
    if own is not None or method is None:
        return own
    return {"fp8": _FP8, "bitsandbytes": _BITSANDBYTES}.get(method)
