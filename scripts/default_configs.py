"""Writes a config.json for each architecture of vLLM's registry, from the defaults of its Config
class in Transformers or in vLLM. Runs in an environment with vLLM and imports nothing of ours.

    PYTHON_WITH_VLLM scripts/default_configs.py CONFIGS

Each becomes CONFIGS/default--ARCHITECTURE/config.json, which `scripts/prove_formula.py` asks for.
Such a model need not exist: it has the keys of real ones, with the sizes of the class.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_STEP: dict[str, Any] = {
    "num_sliding_attention_heads": 96, "num_attention_groups": 8, "moe_num_experts": 288,
    "moe_top_k": 8,
    "moe_intermediate_size": 1280, "share_expert_dim": 1280, "share_expert_dims": 1280,
    "layer_types": ["full_attention", *["sliding_attention"] * 3] * 11 + ["full_attention"],
    "attention_other_setting": {
        "attention_type": "sliding_attention", "num_attention_heads": 96,
        "num_attention_groups": 8, "head_dim": 128,
    },
    "moe_layers_enum": ",".join(map(str, range(3, 45))), "use_head_wise_attn_gate": True,
    "sliding_window": 512, "use_moe_router_bias": True, "need_fp32_gate": True,
    "norm_expert_weight": True, "swiglu_limits": [0.0] * 45,
    "swiglu_limits_shared": [0.0] * 45, "rope_theta": 10000.0,
}  # fmt: skip

# Keys that vLLM reads and that the class lacks, as published models have them.
_MISSING: dict[str, dict[str, Any]] = {
    "AfmoeForCausalLM": {"score_func": "sigmoid", "route_norm": True, "n_group": 1,
                         "topk_group": 1},
    "DeepseekV2ForCausalLM": {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3},
    "HYV3ForCausalLM": {
        "first_k_dense_replace": 1, "expert_hidden_dim": 1536, "route_norm": True, "qk_norm": True,
    },
    "NemotronForCausalLM": {"num_key_value_heads": 8},
    "MiniMaxM2ForCausalLM": {"rotary_dim": 64},
    "DeepseekForCausalLM": {"n_group": 1, "topk_group": 1},
    "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": 1},
    "KimiVLForConditionalGeneration.text_config": {"n_group": 1, "topk_group": 1},
    "Lfm2ForCausalLM": {
        "block_dim": 2560, "conv_dim": 2560, "block_ff_dim": 12288,
        "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
        "layer_types": [*["conv", "conv", "full_attention"] * 10, "conv", "conv"],
    },
    "Lfm2VlForConditionalGeneration.text_config": {
        "block_dim": 2560, "conv_dim": 2560, "block_ff_dim": 12288,
        "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 256,
        "layer_types": [*["conv", "conv", "full_attention"] * 10, "conv", "conv"],
    },
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "LongcatFlashForCausalLM": {"mla_scale_q_lora": True, "mla_scale_kv_lora": True,
                                "zero_expert_type": "identity"},
    "Qwen3OmniMoeForConditionalGeneration.thinker_config.vision_config": {"image_size": 224},
    "Glm5NextForCausalLM.text_config": {
        "mhc": True, "mla_use_nope": True, "indexer_rope_interleave": True,
        "topk_method": "noaux_tc", "norm_topk_prob": True, "scoring_func": "sigmoid",
    },
    "Glm4vMoeForConditionalGeneration.text_config": {"head_dim": 128, "use_qk_norm": True},
    "VoxtralForConditionalGeneration.audio_config": {"downsample_factor": 4},
    "VoxtralRealtimeGeneration.audio_config": {"downsample_factor": 4},
    "Ernie4_5_VLMoeForConditionalGeneration.vision_config": {"embed_dim": 1280},
    "KimiLinearForCausalLM": {
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "num_hidden_layers": 27, "hidden_size": 2304, "intermediate_size": 9216,
        "num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1,
        "moe_intermediate_size": 1024, "first_k_dense_replace": 1, "mla_use_nope": True,
        "linear_attn_config": {
            "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
            "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
            "kda_layers": [each for each in range(1, 27) if each % 4],
        },
    },
    "Step3p5ForCausalLM": _STEP,
    "Step3p7ForConditionalGeneration.text_config": _STEP,
    "Step3p7ForConditionalGeneration.vision_config": {
        "width": 1536, "layers": 47, "heads": 16, "output_dim": None, "use_rope2d": True,
        "use_ln_pre": True, "use_ln_post": False, "use_cls_token": False, "use_abs_posemb": True,
        "ls_init_value": 0.1,
    },
}  # fmt: skip


def main() -> None:
    target = Path(sys.argv[1])
    for architecture, module in generating():
        found = config_of(architecture, module)
        if found is None:
            print(f"{architecture}: no class")
            continue
        directory = target / f"default--{architecture}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(found, indent=1, sort_keys=True))


def generating() -> Iterator[tuple[str, str]]:
    """Yield the architectures that generate text, each with the name of its module."""
    from vllm.model_executor.models import registry

    for group in (registry._TEXT_GENERATION_MODELS, registry._MULTIMODAL_MODELS):
        for architecture, (module, _) in group.items():
            yield architecture, module.rpartition(".")[2]


def config_of(architecture: str, module: str) -> dict[str, Any] | None:
    """Return what config.json of a model with all defaults has; None if no class can be made."""
    from transformers import AutoConfig
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    for kind in model_types(architecture, module):
        try:
            made = (
                _CONFIG_REGISTRY[kind]() if kind in _CONFIG_REGISTRY else AutoConfig.for_model(kind)
            )
            found: dict[str, Any] = json.loads(made.to_json_string(use_diff=True))
        except Exception as failed:
            print(f"{architecture}: {kind}: {failed!r}"[:200])
            continue
        for name, keys in _MISSING.items():
            owner, *parts = name.split(".")
            section = found
            for part in parts if owner == architecture else ():
                section = section[part]
            section.update(keys if owner == architecture else {})
        return found | {"architectures": [architecture], "model_type": kind, "dtype": "bfloat16"}
    return None


def model_types(architecture: str, module: str) -> Iterator[str]:
    """Yield the model types that the architecture may have, the likeliest first."""
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    found: dict[str, None] = {}
    for name, mapping in vars(modeling_auto).items():
        if name.endswith("_MAPPING_NAMES"):
            for kind, classes in mapping.items():
                if architecture in (classes if isinstance(classes, tuple | list) else [classes]):
                    found[kind] = None
    snake = re.sub(r"(For[A-Z].*|LMHeadModel|Model)$", "", architecture)
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", snake).lower()
    for kind in (module, snake, snake.replace("_", ""), module.replace("_mm", "")):
        if kind in CONFIG_MAPPING_NAMES or kind in _CONFIG_REGISTRY:
            found[kind] = None
    yield from found


if __name__ == "__main__":
    main()
