"""What the second model runner and newer loaders change, as the sources of both have it."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.models.config_json import describe
from clusterctl.models.shape import Experts, ModelShape, Quantization
from clusterctl.models.version import parse_version
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.memory import FitPlan, plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import Site, seat_ranks
from clusterctl.planning.rules import has_second_runner, rules_for
from clusterctl.planning.weights import allocated_bytes, expert_tensors
from clusterctl.units import MIB


def shape(architecture: str, **more: Any) -> ModelShape:
    return describe(
        {
            "architectures": [architecture],
            "hidden_size": 4096,
            "num_hidden_layers": 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 12288,
            "vocab_size": 151936,
            "max_position_embeddings": 8192,
            **more,
        }
    )


QWEN3 = shape("Qwen3ForCausalLM")
LLAMA = shape("LlamaForCausalLM")
GEMMA = shape("Gemma2ForCausalLM")
EXPERTS = shape(
    "Qwen3MoeForCausalLM", num_experts=8, num_experts_per_tok=2, moe_intermediate_size=768
)
DEEPSEEK = shape(
    "DeepseekV2ForCausalLM", n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=768,
    kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
)  # fmt: skip


@pytest.mark.parametrize(
    ("version", "second"),
    [
        ("0.20.0", []),
        ("0.22.1", [QWEN3]),
        ("0.23.0", [QWEN3, LLAMA]),
        ("0.24.0", [QWEN3, LLAMA, DEEPSEEK]),
        ("0.25.1", [QWEN3, LLAMA, GEMMA, DEEPSEEK]),
        ("0.28.0", [QWEN3, LLAMA, GEMMA, DEEPSEEK]),
        ("0.29.0", [QWEN3, LLAMA, GEMMA, DEEPSEEK, EXPERTS]),
    ],
)
def test_models_move_to_the_second_runner(version: str, second: list[ModelShape]) -> None:
    parsed = parse_version(version)
    assert parsed
    for model in (QWEN3, LLAMA, GEMMA, DEEPSEEK, EXPERTS):
        found = has_second_runner(model, parsed, quantized=False)
        assert found == (model in second), model.architecture


def test_quantised_models_move_two_versions_later() -> None:
    assert not has_second_runner(QWEN3, (0, 23, 0), quantized=True)
    assert has_second_runner(QWEN3, (0, 24, 0), quantized=True)


def plan(version: str, *arguments: str, env: dict[str, str] | None = None) -> FitPlan:
    placement = seat_ranks([Site("h", parse_gpus("H200"))], 1, 1)
    return plan_memory(QWEN3, placement, parse_options(arguments, env or {}), rules_for(version))


@pytest.mark.parametrize(
    ("version", "charged"),
    [("0.21.0", True), ("0.22.0", False), ("0.28.0", False), ("0.29.0", True)],
)
def test_graphs_come_on_top_while_the_second_runner_does_not_count_them(
    version: str, charged: bool
) -> None:
    same = ("--gpu-memory-utilization", "0.9")
    graphs, eager = plan(version, *same), plan(version, *same, "--enforce-eager")
    tuning = graphs.ranks[0].activation_gib - eager.ranks[0].activation_gib
    lost = eager.ranks[0].kv_cache_gib - graphs.ranks[0].kv_cache_gib
    assert lost == pytest.approx(tuning + (graphs.ranks[0].cuda_graphs_gib if charged else 0))


def test_the_environment_chooses_the_runner() -> None:
    first = plan("0.25.1", env={"VLLM_USE_V2_MODEL_RUNNER": "0"})
    assert not first.settings.second_runner
    assert plan("0.25.1").settings.second_runner
    assert plan("0.25.1").kv_cache_tokens > first.kv_cache_tokens


def test_the_first_start_pays_for_tuning_with_the_embedding_table() -> None:
    few = ("--max-num-seqs", "16", "--max-num-batched-tokens", "2048")
    table = 151936 * 4096 * 2 / 2**30
    compiled, eager = plan("0.25.1", *few), plan("0.25.1", *few, "--enforce-eager")
    assert compiled.ranks[0].activation_gib == pytest.approx(table + 2 * 2048 * 4096 * 2 / 2**30)
    assert eager.ranks[0].activation_gib < 0.3


def test_large_blocks_stay_whole_while_newer_versions_load() -> None:
    sizes = [int(52.5 * MIB), int(26.25 * MIB)] * 28  # gate_up and down of Qwen2.5-1.5B
    assert allocated_bytes(sizes) == 28 * int(78.75 * MIB)
    assert allocated_bytes(sizes, unsplit=True) == 28 * 82 * MIB
    assert allocated_bytes([15 * MIB, 4 * MIB], unsplit=True) == 20 * MIB


def test_mxfp4_on_hopper_is_laid_out_as_the_allocator_shows() -> None:
    """Blocks that PyTorch held after loading gpt-oss-20b on an H200, vLLM 0.25.1."""
    storage = Quantization("mxfp4", 4, group=32, padded=False)
    found = expert_tensors(Experts(32, 4, 2880, bias=True), 2880, 2880, storage)
    sizes = [tensor.size for tensor in found]
    assert sizes[:4] == [265_420_800, 16_957_440, 132_710_400, 8_847_360]
    assert 737_280 in sizes
    assert 368_640 in sizes
