"""config.json of every family, and what is wrong with a bad one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.models.catalogue import CatalogueEntry
from clusterctl.models.config_json import describe
from clusterctl.models.shape import ModelShape, Quantization, RotaryTable
from clusterctl.planning.kv_cache import CacheRules, needs_of, plan_cache
from clusterctl.planning.memory import cache_plan, plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import seat_ranks, sites_of
from clusterctl.planning.planner import plan
from clusterctl.planning.problems import possible_tp
from clusterctl.planning.report import Hardware, PlanRequest
from clusterctl.planning.rules import rules_for
from clusterctl.planning.weights import PipelineStage, weight_bytes
from clusterctl.units import GIB
from tests.fakes.catalogue import SHAPED, config_of

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}

DEEPSEEK_V3: dict[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "torch_dtype": "bfloat16",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "num_nextn_predict_layers": 1,
}


def whole(shape: ModelShape, tp: int = 1) -> PipelineStage:
    return PipelineStage(0, len(shape.layers), tp, has_embedding=True, has_head=True)


def gib(config: dict[str, Any], tp: int = 1, **changes: Any) -> float:
    shape = describe({**config, **changes})
    return weight_bytes(shape, whole(shape, tp), shape.quantization) / GIB


def test_a_dense_model_has_the_parameters_it_is_named_for() -> None:
    # 8,030,261,248 parameters in bf16, one rotary table of 131072 x 128
    expected = (8_030_261_248 * 2 + 131072 * 128 * 2) / GIB
    assert gib(LLAMA_8B) == pytest.approx(expected, rel=0.004)


def test_a_mixture_with_latent_attention_in_block_fp8() -> None:
    # 671B parameters less what multi-token prediction adds; the files of the release are 641 GiB
    assert gib(DEEPSEEK_V3) == pytest.approx(625 + 6, rel=0.02)


BF16 = CacheRules(block_size=16, element_bytes=2)


def test_latent_attention_caches_one_vector_whatever_tp() -> None:
    shape = describe(DEEPSEEK_V3)
    for tp in (1, 8):
        needs = needs_of(shape.layers, tp, BF16)
        assert {need.token_bytes for each in needs for need in each} == {1152}


@pytest.mark.parametrize(
    ("stored", "share"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, 0.35),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True}, 0.57),
        ({"quant_method": "fp8"}, 0.57),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.355),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 128}}},
            },
            0.35,
        ),
    ],
)
def test_stored_weights_shrink_all_but_the_embeddings(stored: dict[str, Any], share: float) -> None:
    plain, smaller = gib(LLAMA_8B), gib(LLAMA_8B, quantization_config=stored)
    assert smaller / plain == pytest.approx(share, abs=0.02)


def test_tied_embeddings_count_once() -> None:
    table = 128256 * 4096 * 2 / GIB
    assert gib(LLAMA_8B) - gib(LLAMA_8B, tie_word_embeddings=True) == pytest.approx(table, rel=0.01)


def test_tensor_parallel_ranks_share_all_but_rotary_tables_and_norms() -> None:
    assert gib(LLAMA_8B, tp=4) == pytest.approx(gib(LLAMA_8B) / 4, rel=0.02)


def test_kv_heads_are_replicated_when_there_are_more_ranks() -> None:
    shape = describe(LLAMA_8B)
    by_rank = {tp: needs_of(shape.layers, tp, BF16)[0] for tp in (1, 8, 16, 32)}
    assert [need.token_bytes for each in by_rank.values() for need in each] == [4096, 512, 512, 512]


def test_hybrid_models_get_groups_of_equal_blocks() -> None:
    gemma = describe(config_of("google/gemma-4-26b-a4b"))
    plan = plan_cache(needs_of(gemma.layers, 1, BF16), BF16)
    assert sorted((len(group.layers), group.block_size) for group in plan.groups) == [
        (5, 16), (5, 16), (5, 16), (5, 16), (5, 16), (5, 32),
    ]  # fmt: skip
    assert plan.block_bytes(0, 30) == 5 * 16 * 8192


def test_a_model_whose_layers_all_slide_has_one_group() -> None:
    shape = describe({**LLAMA_8B, "architectures": ["MistralForCausalLM"], "sliding_window": 4096})
    plan = plan_cache(needs_of(shape.layers, 1, BF16), BF16)
    assert plan.is_uniform
    assert plan.blocks_per_request(100_000, 2048) == (4095 + 2048) // 16 + 2


def test_rotary_tables_follow_the_kinds_of_attention() -> None:
    gemma = describe(config_of("google/gemma-4-31b-it"))
    assert gemma.rotary == (RotaryTable(262144, 512), RotaryTable(262144, 256))
    assert describe(DEEPSEEK_V3).rotary == (RotaryTable(163840, 64),)


@pytest.mark.parametrize(
    ("rope", "length"),
    [
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131072),
        ({"rope_type": "linear", "factor": 2.0}, 262144),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 131072),
        ({"rope_type": "yarn", "factor": "many"}, 131072),
        (None, 131072),
    ],
)
def test_scaled_contexts(rope: object, length: int) -> None:
    assert describe({**LLAMA_8B, "rope_scaling": rope}).context == length


def test_an_unknown_architecture_is_described_and_said() -> None:
    shape = describe({**LLAMA_8B, "architectures": ["BrandNewForCausalLM"]})
    assert "BrandNewForCausalLM" in shape.assumptions[0]
    assert weight_bytes(shape, whole(shape), None) > 0


def test_layers_without_attention_in_an_unlikely_model_are_said() -> None:
    kinds = ["linear_attention", "full_attention"] * 16
    shape = describe({**LLAMA_8B, "layer_types": kinds})
    assert len(shape.attentions) == 16
    assert any("without attention" in text for text in shape.assumptions)


def test_every_missing_key_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        describe({"hidden_size": 4096, "vocab_size": "many"})
    for key in ("num_hidden_layers", "num_attention_heads", "vocab_size"):
        assert key in caught.value.summary
    assert caught.value.hint


def test_heads_that_do_not_divide_the_width_are_an_error() -> None:
    with pytest.raises(UsageError, match="30 heads"):
        describe({**LLAMA_8B, "num_attention_heads": 30})


def test_scale_blocks_of_fp8_limit_tensor_parallelism() -> None:
    assert possible_tp(describe(DEEPSEEK_V3), 32) == (1, 2, 4, 8, 16)
    plain = {key: value for key, value in DEEPSEEK_V3.items() if key != "quantization_config"}
    assert 32 in possible_tp(describe(plain), 32)


def test_mxfp4_applies_to_experts_alone() -> None:
    shape = describe(config_of("openai/gpt-oss-20b"))
    assert shape.quantization == Quantization("mxfp4", 4, group=32)
    assert dict(shape.layers[0].stored) == {"attention": None, "out": None}


@pytest.mark.parametrize("entry", SHAPED, ids=lambda entry: entry.alias)
def test_the_catalogue_needs_no_assumptions(entry: CatalogueEntry) -> None:
    assert entry.shape.assumptions == ()


@given(
    st.dictionaries(
        st.sampled_from([*LLAMA_8B, "layer_types", "quantization_config", "text_config",
                         "vision_config", "rope_scaling", "num_experts", "kv_lora_rank"]),
        st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.text(max_size=5),
                  st.floats(allow_nan=False), st.lists(st.integers(0, 3), max_size=3),
                  st.dictionaries(st.text(max_size=5), st.integers(), max_size=2)),
    )
)  # fmt: skip
def test_no_config_makes_it_crash(changes: dict[str, Any]) -> None:
    try:
        shape = describe({**LLAMA_8B, **changes})
        weight_bytes(shape, whole(shape), shape.quantization)
    except ClusterctlError:
        pass


BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "intermediate_size": 1536,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "vocab_size": 30522,
}


NOMIC: dict[str, Any] = {
    "architectures": ["NomicBertModel"],
    "n_embd": 768,
    "n_head": 12,
    "n_inner": 3072,
    "n_layer": 12,
    "n_positions": 8192,
    "vocab_size": 30528,
}


def test_an_encoder_whose_layers_are_not_known_is_named_in_place_of_numbers() -> None:
    found = describe(NOMIC)
    assert (found.encoder, found.both_ways, found.heads) == (True, True, 12)
    with pytest.raises(UsageError, match="NomicBertModel is an encoder whose layers are not known"):
        plan(PlanRequest(found, Hardware(sites_of("H100"))))


@pytest.mark.parametrize("name", ["BertModel", "XLMRobertaForSequenceClassification"])
def test_an_encoder_like_bert_is_planned_on_one_gpu_without_a_cache(name: str) -> None:
    shape = describe({**BERT, "architectures": [name]})
    assert (shape.encoder, shape.both_ways, shape.assumptions) == (True, True, ())

    found = plan(PlanRequest(shape, Hardware(sites_of("4xT4", 2)))).plan
    assert (found.placement.tp, found.placement.pp, found.verdict) == (1, 1, "fits")
    assert (found.kv_cache_tokens, found.longest_context) == (0, 512)
    assert found.limited_by.reason.endswith("GiB are left there")


def test_an_encoder_that_does_not_fit_is_refused() -> None:
    huge = describe(
        {**BERT, "hidden_size": 12288, "intermediate_size": 49152, "num_hidden_layers": 9}
    )

    found = plan(PlanRequest(huge, Hardware(sites_of("T4")))).plan
    assert (found.fits, found.verdict, found.longest_context) == (False, "does not fit", 0)


# GiB of weights, and groups of the cache, as vLLM 0.32 for CPUs made them on the meta device
@pytest.mark.parametrize(
    ("alias", "weights", "pages"),
    [("whisper-large-v3", 2.87752, 32), ("whisper-large-v3-turbo", 1.50895, 4)],
)
def test_whisper_keeps_its_own_tokens_and_those_of_its_encoder(
    alias: str, weights: float, pages: int
) -> None:
    shape = describe(config_of(f"openai/{alias}"))
    rules, placement = rules_for("0.32.0"), seat_ranks(sites_of("H100"), 1, 1)
    flags = ["--block-size=128", "--max-num-batched-tokens=2048"]
    found = plan_memory(shape, placement, parse_options(flags), rules)

    assert found.ranks[0].weights_gib == pytest.approx(weights, rel=0.0005)
    cache = cache_plan(shape, found.settings.cache, 1)
    assert [(len(group.layers), group.blocks_for(448, 0)) for group in cache.groups] == [
        (pages, 4), (pages, 16)
    ]  # fmt: skip
    assert cache.block_bytes(0, pages) == pages * 655360


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["Qwen2ForCausalLM"], "is_causal": False},
        {"architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True},
        {"architectures": ["LlamaBidirectionalModel"]},
    ],
)
def test_a_decoder_that_was_made_an_encoder_is_planned_and_gets_its_text_whole(
    changes: dict[str, Any],
) -> None:
    config = {**BERT, "num_key_value_heads": 4, **changes}
    found = describe(config)
    assert any("both directions" in note for note in found.assumptions)
    assert (found.encoder, found.both_ways) == (False, True)


@pytest.mark.parametrize(
    "name", ["Qwen3ForCausalLM", "Qwen3ForSequenceClassification", "Qwen2Model"]
)
def test_a_decoder_is_counted_whether_it_embeds_or_reads_images_both_ways(name: str) -> None:
    config = {**BERT, "architectures": [name], "num_key_value_heads": 4}

    shape = describe({**config, "use_bidirectional_attention": "vision"})
    assert not any("both directions" in note for note in shape.assumptions)


@pytest.mark.parametrize(
    "name", ["QWenLMHeadModel", "OPTForCausalLM", "ChatGLMModel", "AquilaModel", "X"]
)
def test_a_decoder_without_a_count_of_key_value_heads_is_no_encoder(name: str) -> None:
    assert describe({**BERT, "architectures": [name]}).layers


def test_gemma_3_has_its_scale_in_its_length() -> None:
    scaled = {"rope_type": "linear", "factor": 8.0}
    llama = {**LLAMA_8B, "rope_scaling": scaled}
    assert describe(llama).context == 8 * describe({**llama, "model_type": "gemma3_text"}).context


def test_rotary_tables_cover_the_part_of_a_head_that_is_rotated() -> None:
    part = {**LLAMA_8B, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}
    assert describe(part).rotary[0].width == describe(LLAMA_8B).rotary[0].width // 4
