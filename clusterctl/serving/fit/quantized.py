"""How a model's weights are stored: `quantization_config`, and what --quantization adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.serving.fit.shape import Quantization

NEEDS_CAPABILITY: dict[str, int] = {"fp8": 75, "mxfp4": 80, "awq": 75, "gptq": 75}
"""Compute capability x 10 below which vLLM refuses the method
(`get_min_capability` in vllm/model_executor/layers/quantization)."""

_FP8 = Quantization("fp8", 8)
_BITSANDBYTES = Quantization("bitsandbytes", 4, group=64)


def quantization_of(config: Mapping[str, Any], text: Mapping[str, Any]) -> Quantization | None:
    """What config.json says, or None for plain weights."""
    given = config.get("quantization_config") or text.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    method = str(given.get("quant_method") or "").lower()
    if method in ("awq", "gptq", "awq_marlin", "gptq_marlin"):
        return _grouped(method.removesuffix("_marlin"), given)
    if method == "compressed-tensors":
        return _compressed(given)
    if method == "bitsandbytes":
        return Quantization("bitsandbytes", 8 if given.get("load_in_8bit") else 4, group=64)
    if method == "mxfp4":
        return Quantization("mxfp4", 4, group=32, experts_only=True)
    if "fp8" in method or given.get("quant_algo") == "FP8":
        return _fp8(given)
    return Quantization(method or "unknown", int(given.get("bits") or 8))


def _grouped(method: str, given: Mapping[str, Any]) -> Quantization:
    group = int(given.get("group_size") or given.get("q_group_size") or 128)
    bits = int(given.get("bits") or given.get("w_bit") or 4)
    zeros = method == "awq" or not given.get("sym", True)
    return Quantization(method, bits, group=max(0, group), zeros=zeros)


def _fp8(given: Mapping[str, Any]) -> Quantization:
    block = given.get("weight_block_size")
    if isinstance(block, list) and block:
        return Quantization("fp8", 8, block=int(block[0]))
    return _FP8


def _compressed(given: Mapping[str, Any]) -> Quantization:
    groups = given.get("config_groups")
    first: object = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    weights = weights if isinstance(weights, Mapping) else {}
    bits = int(weights.get("num_bits") or 8)
    if bits >= 8:
        return _FP8
    group = int(weights.get("group_size") or 128)
    return Quantization("gptq", bits, group=group, zeros=not weights.get("symmetric", True))


def requested(method: str | None, own: Quantization | None) -> Quantization | None:
    """The storage that `--quantization METHOD` leads to; what the checkpoint has, stays.

    Only fp8 and bitsandbytes can quantise plain weights while loading.
    """
    if own is not None or method is None:
        return own
    return {"fp8": _FP8, "bitsandbytes": _BITSANDBYTES}.get(method)
