"""Starts of vLLM 0.19.0 on H100s that others measured, against the prediction.

Source: llm-d-planner on GitHub, accuracy/results/v0.19.0 (results_raw.csv and its logs): H100 of
79.19 GiB with NVLink, --max-model-len 8192, --gpu-memory-utilization 0.95, defaults otherwise.
No blind test: the constants of the runtime and of NCCL over NVLink (overheads.py) and the H100's
memory (hardware.py) were read off these starts, and the buffers of fused experts, the third term
of the hidden size in the activations and GPTQ's zero points were settled after looking at them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import pytest

from clusterctl.models.config_json import describe
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.memory import FitPlan, plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import Site, seat_ranks
from clusterctl.planning.rules import rules_for
from tests.fakes.catalogue import config_of

Config = dict[str, Any]


def config(
    architecture: str, hidden: int, layers: int, heads: int, kv: int, width: int, vocab: int,
    context: int = 131072, **more: Any,
) -> Config:  # fmt: skip
    return {
        "architectures": [architecture],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        **more,
    }


LLAMA_8B = config("LlamaForCausalLM", 4096, 32, 32, 8, 14336, 128256)
LLAMA_70B_FP8 = config(
    "LlamaForCausalLM", 8192, 80, 64, 8, 28672, 128256,
    quantization_config={"quant_method": "fp8"},
)  # fmt: skip
LLAMA_8B_W4A16 = {
    **LLAMA_8B,
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True},
}
CODE_LLAMA_7B = config("LlamaForCausalLM", 4096, 32, 32, 32, 11008, 32016, 16384)
QWEN25_7B = config("Qwen2ForCausalLM", 3584, 28, 28, 4, 18944, 152064, 32768)
QWEN25_72B = config("Qwen2ForCausalLM", 8192, 80, 64, 8, 29568, 152064, 32768)
QWEN3_30B_A3B = config(
    "Qwen3MoeForCausalLM", 2048, 48, 32, 4, 6144, 151936, 40960,
    head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
)  # fmt: skip
MIXTRAL = config(
    "MixtralForCausalLM", 4096, 32, 32, 8, 14336, 32000, 32768,
    num_local_experts=8, num_experts_per_tok=2,
)  # fmt: skip
PHI_4 = config("Phi3ForCausalLM", 5120, 40, 40, 10, 17920, 100352, 16384)
GRANITE_8B = config(
    "GraniteForCausalLM", 4096, 40, 32, 8, 12800, 49155, 131072, tie_word_embeddings=True
)
DEEPSEEK_V2_LITE = config(
    "DeepseekV2ForCausalLM", 2048, 27, 16, 16, 10944, 102400, 163840,
    n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408,
    first_k_dense_replace=1, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64,
    v_head_dim=128,
    rope_scaling={"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
)  # fmt: skip


def gemma2(hidden: int, layers: int, heads: int, kv: int, width: int, head_dim: int) -> Config:
    return config(
        "Gemma2ForCausalLM", hidden, layers, heads, kv, width, 256000, 8192,
        head_dim=head_dim, sliding_window=4096, tie_word_embeddings=True,
    )  # fmt: skip


@dataclass(frozen=True)
class Start:
    """One start; weights, activation peak (GiB) and tokens as printed for rank 0."""

    name: str
    config: Config
    weights: float
    activation: float | None
    tokens: int
    concurrency: float
    tp: int = 1
    pp: int = 1
    extra: tuple[str, ...] = field(default=())

    def plan(self) -> FitPlan:
        """The prediction."""
        placement = seat_ranks([Site("h", parse_gpus("4xH100"), "nvlink")], self.tp, self.pp)
        arguments = ["--max-model-len", "8192", "--gpu-memory-utilization", "0.95", *self.extra]
        shape = describe(self.config, self.name)
        return plan_memory(shape, placement, parse_options(arguments), rules_for("0.19.0"))


STARTS = (
    Start("Llama 8B", LLAMA_8B, 14.99, 1.89, 476016, 58.11),
    Start("Llama 8B TP 2", LLAMA_8B, 7.51, 1.89, 1044688, 127.53, tp=2),
    Start("Llama 8B TP 4", LLAMA_8B, 3.77, 1.89, 2209792, 269.75, tp=4),
    Start("Llama 8B PP 2", LLAMA_8B, 7.51, None, 1075312, 131.26, pp=2),
    Start("Llama 8B PP 4", LLAMA_8B, 4.26, None, 2257264, 275.54, pp=4),
    Start("Llama 8B fp8", LLAMA_8B, 8.49, 1.89, 529248, 64.61, extra=("--quantization", "fp8")),
    Start("fp8 cache", LLAMA_8B, 14.99, 1.89, 952032, 116.21, extra=("--kv-cache-dtype", "fp8")),
    Start("Llama 8B GPTQ", LLAMA_8B_W4A16, 5.38, 1.89, 554704, 67.71),
    Start("Llama 70B fp8 TP 2", LLAMA_70B_FP8, 33.88, 1.96, 244304, 29.82, tp=2),
    Start("Llama 70B fp8 TP 4", LLAMA_70B_FP8, 16.96, 1.97, 708992, 86.55, tp=4),
    Start("CodeLlama 7B", CODE_LLAMA_7B, 12.56, 0.77, 126256, 15.41),
    Start("Qwen2.5 7B", QWEN25_7B, 14.25, 2.21, 1096000, 133.79),
    Start("Qwen2.5 7B TP 2", QWEN25_7B, 7.12, 2.21, 2390592, 291.82, tp=2),
    Start("Qwen2.5 7B TP 4", QWEN25_7B, 3.55, 2.21, 5043280, 615.63, tp=4),
    Start("Qwen2.5 72B TP 2", QWEN25_72B, 67.80, 2.29, 19920, 2.43, tp=2),
    Start("Qwen3 8B", config_of("qwen/qwen3-8b"), 15.27, 2.21, 418688, 51.11),
    Start("Qwen3 30B-A3B", QWEN3_30B_A3B, 56.88, 2.68, 168288, 20.54),
    Start("Mixtral TP 2", MIXTRAL, 43.51, 1.21, 465936, 56.88, tp=2),
    Start("phi-4", PHI_4, 27.39, 1.52, 241568, 29.49),
    Start("Granite 8B", GRANITE_8B, 15.25, 0.85, 384432, 46.93),
    Start("DeepSeek-V2-Lite", DEEPSEEK_V2_LITE, 29.43, 1.93, 1505552, 183.78),
    Start("Gemma 2 2B", gemma2(2304, 26, 8, 4, 9216, 256), 4.90, 3.62, 670160, 81.73),
    Start("Gemma 2 9B", gemma2(3584, 42, 16, 8, 14336, 256), 17.22, 3.65, 168880, 20.60),
    Start("Gemma 2 27B", gemma2(4608, 46, 32, 16, 36864, 128), 50.72, 3.66, 58672, 7.16),
)


def _id(start: Start) -> str:
    return start.name


@pytest.mark.parametrize("start", STARTS, ids=_id)
def test_weights(start: Start) -> None:
    assert start.plan().ranks[0].weights_gib == pytest.approx(start.weights, rel=0.003)


@pytest.mark.parametrize("start", [one for one in STARTS if one.activation], ids=_id)
def test_activation_peak(start: Start) -> None:
    """0.05 GiB of PyTorch's own are counted with the runtime here."""
    predicted = start.plan().ranks[0].activation_gib + 0.05
    assert predicted == pytest.approx(start.activation, abs=0.04)


@pytest.mark.parametrize("start", STARTS, ids=_id)
def test_tokens_and_concurrency(start: Start) -> None:
    plan = start.plan()
    assert plan.kv_cache_tokens == pytest.approx(start.tokens, rel=0.015)
    assert plan.max_concurrency == pytest.approx(start.concurrency, rel=0.015)


def test_the_mean_error_of_tokens() -> None:
    errors = [abs(start.plan().kv_cache_tokens / start.tokens - 1) for start in STARTS]
    assert fmean(errors) < 0.002


def test_gpt_oss_without_marlin() -> None:
    """Its experts are laid out by Triton on Hopper: 0.5 % more is counted than was loaded."""
    start = Start("gpt-oss", config_of("openai/gpt-oss-20b"), 13.64, 2.87, 1277184, 1)
    plan = start.plan()
    assert plan.ranks[0].weights_gib == pytest.approx(13.64, rel=0.006)
    assert plan.kv_cache_tokens == pytest.approx(1277184, rel=0.002)
