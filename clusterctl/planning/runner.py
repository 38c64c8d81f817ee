"""Which of vLLM's two model runners a model gets.

From 0.22 on models move to a second runner (v1/worker/gpu/), which profiles memory otherwise:
until 0.33 it samples without top-k and top-p, and before 0.29 it leaves CUDA graphs out of the
sum. Read in `VllmConfig.use_v2_model_runner` (config/vllm.py) of 0.22.0 to 0.33.0.
"""

from __future__ import annotations

from clusterctl.models.shape import ModelShape
from clusterctl.models.version import Version

_FROM = (0, 22, 0)
_FOR_DENSE_FROM = (0, 25, 0)
_FOR_ALL_FROM = (0, 29, 0)

_LISTED: tuple[tuple[Version, frozenset[str]], ...] = (
    (
        (0, 24, 0),
        frozenset(
            {
                "DeepseekV2ForCausalLM",
                "GraniteMoeForCausalLM",
                "LlamaForCausalLM",
                "MistralForCausalLM",
                "Qwen2MoeForCausalLM",
                "Qwen3ForCausalLM",
            }
        ),
    ),
    ((0, 23, 0), frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"})),
    (_FROM, frozenset({"Qwen3ForCausalLM"})),
)
"""DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES, newest first; in 0.22 and 0.23 unquantised only."""

_WITH_EXPERTS = frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})
"""Mixtures of experts that 0.25 to 0.28 run on it beside all dense models."""


def has_second_runner(shape: ModelShape, version: Version, *, quantized: bool) -> bool:
    """Whether that version chooses the second runner for the model by itself."""
    if version < _FROM or version >= _FOR_ALL_FROM:
        return version >= _FOR_ALL_FROM
    if version >= _FOR_DENSE_FROM:
        return len(shape.attentions) == len(shape.layers) and (
            not _has_experts(shape) or shape.architecture in _WITH_EXPERTS
        )
    names = next(names for since, names in _LISTED if version >= since)
    return shape.architecture in names and not (quantized and version < (0, 24, 0))


def _has_experts(shape: ModelShape) -> bool:
    return any(layer.experts for layer in shape.layers)
