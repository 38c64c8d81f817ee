"""What vLLM sets aside for adapters, against what vLLM 0.32 made for these models on PyTorch's meta
device: bytes of a rank with the flags, less those without."""

from __future__ import annotations

import pytest

from clusterctl.models.config_json import describe
from clusterctl.planning.adapters import AdapterRoom, adapter_bytes
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.memory import FitPlan, plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import Site, seat_ranks
from clusterctl.planning.rules import rules_for
from clusterctl.planning.weights import PipelineStage
from clusterctl.units import GIB
from tests.fakes.catalogue import config_of

ONE, TWO, SHARDED = AdapterRoom(), AdapterRoom(2, 32), AdapterRoom(1, 32, sharded=True)


@pytest.mark.parametrize(
    ("model", "tp", "room", "said"),
    [
        ("Qwen/Qwen3-8B", 1, ONE, 97_280_000),
        ("Qwen/Qwen3-8B", 1, TWO, 389_120_000),
        ("Qwen/Qwen3-8B", 4, ONE, 57_797_632),
        ("Qwen/Qwen3-8B", 4, TWO, 227_544_064),
        ("Qwen/Qwen3-8B", 4, SHARDED, 64_834_560),
        ("Qwen/Qwen3-1.7B", 1, TWO, 178_880_512),
        ("Qwen/Qwen3-1.7B", 4, SHARDED, 38_358_016),
        ("Qwen/Qwen3-Embedding-0.6B", 4, TWO, 79_755_520),
        ("Qwen/Qwen3.5-27B", 1, TWO, 1_124_556_800),
        ("Qwen/Qwen3.5-27B", 4, TWO, 622_784_512),
        ("Qwen/Qwen3.5-27B", 4, SHARDED, 166_886_400),
        ("google/gemma-4-31B-it", 1, TWO, 988_938_240),
        ("google/gemma-4-31B-it", 4, TWO, 463_994_880),
        ("google/gemma-4-31B-it", 4, SHARDED, 123_617_280),
    ],
)
def test_the_bytes_are_those_that_vllm_makes(
    model: str, tp: int, room: AdapterRoom, said: int
) -> None:
    shape = describe(config_of(model))
    whole = PipelineStage(0, len(shape.layers), tp, has_embedding=True, has_head=True)

    assert adapter_bytes(shape, whole, room) == said


SMALL = {
    "hidden_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "intermediate_size": 2048,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}


@pytest.mark.parametrize(
    ("architecture", "said"),
    [
        ("LlamaForCausalLM", 4_145_152),
        ("MistralForCausalLM", 2_031_616),  # neither table
        ("CohereForCausalLM", 3_088_384),  # that of tokens, not the head
    ],
)
def test_adapters_change_the_tables_that_a_class_of_vllm_names(
    architecture: str, said: int
) -> None:
    shape = describe({**SMALL, "architectures": [architecture]})
    whole = PipelineStage(0, len(shape.layers), 1, has_embedding=True, has_head=True)

    assert adapter_bytes(shape, whole, ONE) == said


def test_layers_that_share_a_cache_have_no_keys_and_values_to_adapt() -> None:
    text = config_of("google/gemma-4-31B-it")["text_config"]
    shape = describe(
        {
            **config_of("google/gemma-4-31B-it"),
            "text_config": {**text, "num_kv_shared_layers": 20},
        }
    )
    whole = PipelineStage(0, len(shape.layers), 1, has_embedding=True, has_head=True)

    assert adapter_bytes(shape, whole, ONE) == 235_634_688


def planned(model: str, *flags: str) -> FitPlan:
    shape = describe(config_of(model))
    placement = seat_ranks([Site("gpu1", parse_gpus("H100"))], 1, 1)
    return plan_memory(shape, placement, parse_options(flags), rules_for("0.32.0"))


def test_they_leave_less_for_the_kv_cache_and_the_plan_says_so() -> None:
    without, room = planned("Qwen/Qwen3-8B"), ("--max-loras=4", "--max-lora-rank=64")
    plan = planned("Qwen/Qwen3-8B", "--enable-lora", *room)

    more = plan.ranks[0].weights_gib - without.ranks[0].weights_gib
    assert more == pytest.approx(without.ranks[0].kv_cache_gib - plan.ranks[0].kv_cache_gib)
    assert more == pytest.approx(1.45, abs=0.005)
    assert plan.kv_cache_tokens < without.kv_cache_tokens
    assert plan.notes == (
        "adapters: --max-loras 4 of rank 64 take 1.45 GiB of each GPU, counted with the weights",
    )
    assert planned("Qwen/Qwen3-8B", *room).ranks == without.ranks, "no room without --enable-lora"


def test_experts_have_a_pair_each_and_it_is_said_that_this_was_not_compared() -> None:
    one = planned("Qwen/Qwen3-30B-A3B", "--enable-lora")
    more = one.ranks[0].weights_gib - planned("Qwen/Qwen3-30B-A3B").ranks[0].weights_gib

    # Layers, experts of each, their matrices, widths of these, rank, bytes
    of_experts = 48 * 128 * 3 * (2048 + 768) * 16 * 2 / GIB
    assert of_experts < more < of_experts + 0.05
    assert one.notes[-1].endswith("by vLLM's code and not compared with a start")
