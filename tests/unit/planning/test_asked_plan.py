"""A plan with the figures of the engine. The answer was printed by `ask_vllm.py` with vLLM 0.33.0
for CUDA, on a machine without a GPU, for Qwen3.5-27B on H100 with TP 2 and PP 2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.planning.asked_plan import as_asked, question_for, room_of
from clusterctl.planning.engine_answer import EngineAnswer, read_answer
from clusterctl.planning.fit_request import load_shape
from clusterctl.planning.memory import FitPlan
from clusterctl.planning.placement import sites_of
from clusterctl.planning.report import Hardware, PlanRequest
from clusterctl.serving.vllm_flags import parse_arguments
from tests.fakes.fit_requests import fit_request

SAID = Path(__file__).with_name("asked_vllm_0_33.json").read_text()
FLAGS = ("--max-num-seqs", "64", "--max-num-batched-tokens", "8192")


def planned() -> FitPlan:
    report = fit_request("Qwen/Qwen3.5-27B", gpus="4xH100", tp=2, pp=2, args=FLAGS, vllm="0.33.0")
    return report.plan


@pytest.fixture(scope="module")
def answer() -> EngineAnswer:
    return read_answer(SAID)


def test_the_answer_has_groups_of_states_and_of_attention(answer: EngineAnswer) -> None:
    assert [(group.kind, group.layers, group.block_size) for group in answer.groups] == [
        ("Mamba", 8, 832),
        ("Mamba", 8, 832),
        ("Mamba", 8, 832),
        ("FullAttention", 8, 832),
    ]
    assert answer.blocks_for(262144) == 325
    assert answer.blocks_for(8192) == 19
    assert answer.blocks_for(6000) == 17  # between two lengths, rounded up
    assert answer.longest_in(19) == 8192
    assert answer.longest_in(10**6) == 262144
    assert answer.tokens_in(650) == 2 * 262144


def test_the_engines_weights_and_blocks_take_the_place_of_the_planned(
    answer: EngineAnswer,
) -> None:
    before = planned()

    plan = as_asked(before, answer)

    assert [round(rank.weights_gib, 1) for rank in plan.ranks] == [13.0, 13.0, 13.8, 13.8]
    for ours, theirs in zip(before.ranks, plan.ranks, strict=True):
        moved = ours.weights_gib - theirs.weights_gib
        assert theirs.kv_cache_gib == pytest.approx(ours.kv_cache_gib + moved)
    blocks = min(rank.blocks for rank in plan.ranks)
    assert plan.kv_cache_tokens == int(blocks / 325 * 262144)
    assert plan.kv_cache_tokens == pytest.approx(before.kv_cache_tokens, rel=0.01)
    assert plan.verdict == "fits"
    assert plan.least_tokens < plan.kv_cache_tokens < plan.most_tokens


def test_more_requests_than_blocks_for_their_states_do_not_fit(answer: EngineAnswer) -> None:
    before = planned()
    crowded = replace(before.settings.batch, requests=10**6)
    before = replace(before, settings=replace(before.settings, batch=crowded))

    assert as_asked(replace(before, state_blocks=(1, 1)), answer).verdict == "does not fit"


def test_a_model_that_is_too_large_does_not_fit(answer: EngineAnswer) -> None:
    heavy = replace(answer, weights_gib=(90.0, 90.0))

    plan = as_asked(planned(), heavy)

    assert plan.verdict == "does not fit"
    assert (plan.kv_cache_tokens, plan.longest_context) == (0, 0)


def test_the_question_has_the_layout_and_the_first_rank_of_each_stage() -> None:
    flags = parse_arguments([*FLAGS, "--tensor-parallel-size", "8", "--max-model-len", "auto"])
    hardware = Hardware(sites_of("4xH100"))
    request = PlanRequest(load_shape("Qwen/Qwen3.5-27B"), hardware, arguments=flags)
    plan = planned()

    asked = question_for(plan, request, directory="/data/models/q", files={})

    (question,) = asked["questions"]
    assert asked["gpu"]["capability"] == 90
    assert question["directory"] == "/data/models/q"
    assert question["ranks"] == [0, 2]
    assert question["arguments"] == [
        *FLAGS,
        "--max-model-len=262144",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=2",
    ]
    assert question["env"]["VLLM_PP_LAYER_PARTITION"] == "32,32"
    assert question["room"] == room_of(plan)
    assert len(room_of(plan)) == 2


def test_a_refusal_is_in_the_engines_words() -> None:
    said = {
        "vllm": "0.33.0",
        "refusal": "Model architectures ['X']\n are not",
        "kind": "ValueError",
    }

    assert read_answer(json.dumps(said)).refusal == "Model architectures ['X'] are not"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Traceback",
        "{}",
        "[]",
        '{"vllm": "0.33.0"}',
        '{"vllm": "0.33.0", "refusal": "No module named x", "kind": "ModuleNotFoundError"}',
    ],
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an answer|Expecting value|ModuleNotFoundError"):
        read_answer(text)
