"""What config.json leaves unsaid about an architecture, as vLLM's model files build it.

Each entry was read in vllm/model_executor/models/<file>.py of vLLM 0.32. An architecture that
is not here is treated as a Llama with a wider margin of error, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clusterctl.errors import UsageError
from clusterctl.models.counts import is_encoder


@dataclass(frozen=True, slots=True)
class Family:
    """Traits of an architecture; a key in config.json of the same meaning wins over them."""

    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: bool = False
    sinks: bool = False
    norms: int = 2
    tied: bool = False  # tie_word_embeddings when config.json does not say
    window_every: int = 0  # every n-th layer is global, the others slide
    experts_bias: bool = False


_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = Family(qk_norm=True)
_GEMMA = Family(qk_norm=True, norms=4, tied=True, window_every=6)

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
    "Gemma2ForCausalLM": Family(norms=4, tied=True, window_every=2),
    "Gemma3ForCausalLM": _GEMMA,
    "Gemma3ForConditionalGeneration": _GEMMA,
    "Gemma4ForCausalLM": _GEMMA,
    "Gemma4ForConditionalGeneration": _GEMMA,
    "GptOssForCausalLM": Family(qkv_bias=True, out_bias=True, sinks=True, experts_bias=True),
}


def family_of(architecture: str) -> Family | None:
    """The traits of an architecture's class name, or None when it is not known here."""
    return _FAMILIES.get(architecture)


def require_decoder(config: Mapping[str, Any], architecture: str) -> None:
    """Raises UsageError for an encoder: nothing that is counted here is true of one."""
    if is_encoder(config):
        raise UsageError(
            f"{architecture} is an encoder: it keeps no KV cache and generates nothing, and what "
            "it takes beside its weights is not known here",
            hint="clusterctl serve gives it one GPU, and vLLM says whether it fits",
        )


def plain_family() -> Family:
    """What an unknown architecture is taken for."""
    return _LLAMA
