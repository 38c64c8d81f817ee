"""Public figures of the models in the catalogue, as their config.json files have them.

So that `fit` works with no weights and no network anywhere. Keyed by Hub id in lower case. Only
keys that decide memory are kept. Sources: the config.json of each model on the Hub; Gemma 4's
vision encoder: 27 layers of 1152, MLP 4304, 10240 x 2 positions (transformers, Gemma4VisionConfig).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]


def _qwen2(
    hidden: int,
    layers: int,
    heads: int,
    kv: int,
    width: int,
    vocab: int,
    context: int,
    *,
    tied: bool = False,
) -> Config:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
    }


_QWEN3_8B: Config = {
    "architectures": ["Qwen3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
}

_LLAMA_70B: Config = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
    },
}

_GPT_OSS_20B: Config = {
    "architectures": ["GptOssForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 2880,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "vocab_size": 201088,
    "max_position_embeddings": 131072,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "attention_bias": True,
    "tie_word_embeddings": False,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
    },
    "quantization_config": {"quant_method": "mxfp4"},
}

_GEMMA4_VISION: Config = {
    "model_type": "gemma4_vision",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "patch_size": 16,
    "position_embedding_size": 10240,
}


def _gemma4(text: Config) -> Config:
    layers = text["num_hidden_layers"]
    kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
    shared = {
        "head_dim": 256,
        "global_head_dim": 512,
        "attention_k_eq_v": True,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "layer_types": kinds,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default"},
        },
    }
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "dtype": "bfloat16",
        "text_config": {**shared, **text},
        "vision_config": _GEMMA4_VISION,
    }


_GEMMA4_26B = _gemma4(
    {
        "hidden_size": 2816,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "intermediate_size": 2112,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
    }
)

_GEMMA4_31B = _gemma4(
    {
        "hidden_size": 5376,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "intermediate_size": 21504,
    }
)

_FIGURES: dict[str, Config] = {
    "qwen/qwen2.5-1.5b-instruct": _qwen2(1536, 28, 12, 2, 8960, 151936, 32768, tied=True),
    "deepseek-ai/deepseek-r1-distill-qwen-1.5b": _qwen2(1536, 28, 12, 2, 8960, 151936, 131072),
    "deepseek-ai/deepseek-r1-distill-qwen-7b": _qwen2(3584, 28, 28, 4, 18944, 152064, 131072),
    "deepseek-ai/deepseek-r1-distill-qwen-32b": _qwen2(5120, 64, 40, 8, 27648, 152064, 131072),
    "deepseek-ai/deepseek-r1-distill-llama-70b": _LLAMA_70B,
    "qwen/qwen3-8b": _QWEN3_8B,
    "openai/gpt-oss-20b": _GPT_OSS_20B,
    "google/gemma-4-26b-a4b": _GEMMA4_26B,
    "google/gemma-4-26b-a4b-it": _GEMMA4_26B,
    "google/gemma-4-31b": _GEMMA4_31B,
    "google/gemma-4-31b-it": _GEMMA4_31B,
}


def figures_of(hub_id: str) -> Config | None:
    """The config.json of a model of the catalogue, or None."""
    return _FIGURES.get(hub_id.casefold())


def known_models() -> tuple[str, ...]:
    """Hub ids in lower case."""
    return tuple(_FIGURES)
