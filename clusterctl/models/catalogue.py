"""The models with an alias: their Hub id, their public config.json, and the vLLM flags that they
need. To add a model, add its `CatalogueEntry`.

Of each config.json on the Hub, only the keys that affect memory are kept, so that `fit` works
without weights and without a network. Gemma 4's vision encoder: 27 layers of 1152, MLP 4304, 10240
x 2 positions (transformers, Gemma4VisionConfig). The flags are from vLLM's documentation
(features/reasoning_outputs, features/tool_calling) and were checked in the registries of the
releases named at each flag. None of these models needs --trust-remote-code: vLLM implements each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from clusterctl.models.config_json import describe
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import Version

Config = Mapping[str, Any]


@dataclass(frozen=True)
class ModelFlag:
    """Arguments of `vllm serve`, and the releases that accept them."""

    tokens: tuple[str, ...]
    since: Version = (0, 0, 0)
    until: Version | None = None  # The first release without them

    def known_to(self, version: Version | None) -> bool:
        """Return whether that release accepts them. An unknown version counts as the newest."""
        if version is None:
            return self.until is None
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True)
class CatalogueEntry:
    """One model of the catalogue."""

    alias: str
    hub_id: str
    config: Config  # The keys of its config.json that affect memory
    # Further aliases; they are also common names of directories with this model.
    other_names: tuple[str, ...] = ()
    flags: tuple[ModelFlag, ...] = ()
    note: str = ""

    @cached_property
    def shape(self) -> ModelShape:
        return describe(self.config, self.hub_id)

    @property
    def directory(self) -> str:
        """The directory's name after `git clone` or a download by name."""
        return self.hub_id.partition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.alias, *self.other_names)

    def tokens(self, version: Version | None) -> tuple[str, ...]:
        """Return the flags that this vLLM accepts, as tokens of a command line."""
        known = (flag.tokens for flag in self.flags if flag.known_to(version))
        return tuple(token for tokens in known for token in tokens)


_HERMES_TOOLS = ModelFlag(("--enable-auto-tool-choice", "--tool-call-parser", "hermes"))

# Below 0.9 a reasoning parser did nothing without --enable-reasoning (vllm#17452).
_R1_REASONING = (
    ModelFlag(("--enable-reasoning",), until=(0, 9, 0)),
    ModelFlag(("--reasoning-parser", "deepseek_r1")),
)

_QWEN3_REASONING = ModelFlag(("--reasoning-parser", "qwen3"), since=(0, 9, 0))

_GEMMA4 = ModelFlag(
    ("--reasoning-parser", "gemma4", "--enable-auto-tool-choice", "--tool-call-parser", "gemma4"),
    since=(0, 19, 0),
)

# The reasoning parser (openai_gptoss) is set by vLLM itself for this architecture.
_GPT_OSS_TOOLS = ModelFlag(
    ("--enable-auto-tool-choice", "--tool-call-parser", "openai"), since=(0, 10, 2)
)

_GEMMA4_NOTE = (
    "the model without -it has no chat template of its own: add "
    "-- --chat-template PATH (vLLM has examples/tool_chat_template_gemma4.jinja)"
)


def _decoder(
    architecture: str, hidden: int, layers: int, heads: int, kv: int, width: int, vocab: int,
    context: int, **more: object,
) -> Config:  # fmt: skip
    return {
        "architectures": [f"{architecture}ForCausalLM"],
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        **more,
    }


_qwen2 = partial(_decoder, "Qwen2", use_sliding_window=False)


def _gemma4(layers: int, **text: int) -> Config:
    kinds = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
    return {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "dtype": "bfloat16",
        "text_config": {
            **text,
            "num_hidden_layers": layers,
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
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
            "patch_size": 16,
            "position_embedding_size": 10240,
        },
    }


_LLAMA_70B = _decoder(
    "Llama", 8192, 80, 64, 8, 28672, 128256, 131072, head_dim=128,
    rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192,
    },
)  # fmt: skip

_GPT_OSS_20B = _decoder(
    "GptOss", 2880, 24, 64, 8, 2880, 201088, 131072, head_dim=64,
    num_local_experts=32, num_experts_per_tok=4, attention_bias=True, sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
    rope_scaling={
        "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096,
    },
    quantization_config={"quant_method": "mxfp4"},
)  # fmt: skip

_GEMMA4_26B = _gemma4(
    30, hidden_size=2816, num_attention_heads=16, num_key_value_heads=8,
    num_global_key_value_heads=2, intermediate_size=2112, num_experts=128, top_k_experts=8,
    moe_intermediate_size=704,
)  # fmt: skip

_GEMMA4_31B = _gemma4(
    60, hidden_size=5376, num_attention_heads=32, num_key_value_heads=16,
    num_global_key_value_heads=4, intermediate_size=21504,
)  # fmt: skip

CATALOGUE: tuple[CatalogueEntry, ...] = (
    CatalogueEntry(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct",
        _qwen2(1536, 28, 12, 2, 8960, 151936, 32768, tie_word_embeddings=True),
        ("qwen2.5-1.5b-instruct",),
        (_HERMES_TOOLS,),
    ),
    CatalogueEntry(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        _decoder("Qwen3", 4096, 36, 32, 8, 12288, 151936, 40960, head_dim=128),
        (),
        (_QWEN3_REASONING, _HERMES_TOOLS),
        "thinks before it answers; a request may turn that off with "
        '"chat_template_kwargs": {"enable_thinking": false}',
    ),
    CatalogueEntry(
        "deepseek-r1-1.5b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        _qwen2(1536, 28, 12, 2, 8960, 151936, 131072),
        ("deepseek-r1-distill-qwen-1.5b",),
        _R1_REASONING,
    ),
    CatalogueEntry(
        "deepseek-r1-7b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        _qwen2(3584, 28, 28, 4, 18944, 152064, 131072),
        ("deepseek-r1-distill-qwen-7b",),
        _R1_REASONING,
        "28 attention heads and 4 key/value heads: --tp 1, 2 or 4",
    ),
    CatalogueEntry(
        "deepseek-r1-32b",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        _qwen2(5120, 64, 40, 8, 27648, 152064, 131072),
        ("deepseek-r1-distill-qwen-32b",),
        _R1_REASONING,
        "61 GiB of weights in bfloat16",
    ),
    CatalogueEntry(
        "deepseek-r1-70b",
        "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        _LLAMA_70B,
        ("deepseek-r1-distill-llama-70b",),
        _R1_REASONING,
        "131 GiB of weights in bfloat16",
    ),
    CatalogueEntry(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        _GPT_OSS_20B,
        (),
        (_GPT_OSS_TOOLS,),
        "weights are mxfp4: 13.7 GiB",
    ),
    CatalogueEntry(
        "gemma-4-26b",
        "google/gemma-4-26B-A4B-it",
        _GEMMA4_26B,
        ("gemma-4-26b-a4b-it", "gemma4-26b", "gemma-4-26b-it"),
        (_GEMMA4,),
        "a mixture of experts: 48.5 GiB of weights in bfloat16, 4B active",
    ),
    CatalogueEntry(
        "gemma-4-26b-base",
        "google/gemma-4-26B-A4B",
        _GEMMA4_26B,
        ("gemma-4-26b-a4b",),
        (_GEMMA4,),
        _GEMMA4_NOTE,
    ),
    CatalogueEntry(
        "gemma-4-31b",
        "google/gemma-4-31B-it",
        _GEMMA4_31B,
        ("gemma-4-31b-it", "gemma4-31b"),
        (_GEMMA4,),
        "58.9 GiB of weights in bfloat16",
    ),
    CatalogueEntry(
        "gemma-4-31b-base",
        "google/gemma-4-31B",
        _GEMMA4_31B,
        (),
        (_GEMMA4,),
        _GEMMA4_NOTE,
    ),
)


def by_alias(name: str) -> CatalogueEntry | None:
    """Return the entry with that alias, ignoring case."""
    folded = name.casefold()
    return next((entry for entry in CATALOGUE if folded in entry.names), None)


def by_hub_id(hub_id: str) -> CatalogueEntry | None:
    """Return the entry with that Hub id, ignoring case."""
    folded = hub_id.casefold()
    return next((entry for entry in CATALOGUE if entry.hub_id.casefold() == folded), None)


def by_directory(name: str) -> CatalogueEntry | None:
    """Return the entry for a directory of that name, judging by the name alone."""
    folded = name.casefold()
    found = (entry for entry in CATALOGUE if entry.directory.casefold() == folded)
    return next(found, None) or by_alias(name)
