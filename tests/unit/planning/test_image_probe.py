"""What the image's own vLLM said of Qwen2.5-1.5B, beside what is predicted. The two answers were
printed by vLLM 0.32.0 on CPUs, asked by `image_probe_script.py` with TP 2 and with PP 2."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.planning.hardware import CPU, GpuModel
from clusterctl.planning.image_probe import hosts_to_ask, probe_question, probe_result, read_answer
from clusterctl.planning.placement import Site
from clusterctl.planning.report import FitReport
from clusterctl.reporting.fit_view import fit_lines
from clusterctl.serving.vllm_flags import parse_arguments
from tests.fakes.catalogue import config_of
from tests.fakes.fit_requests import fit_request

QWEN = "Qwen/Qwen2.5-1.5B-Instruct"
FLAGS = ["--max-num-seqs", "256", "--max-num-batched-tokens", "2048"]
SAID: dict[str, Any] = json.loads(Path(__file__).with_name("asked_vllm_0_32.json").read_text())


def gpu(name: str, memory_gib: float) -> GpuModel:
    return GpuModel(name, memory_gib, 90, 2e12, 300.0, 100)


def predicted(tp: int, pp: int) -> FitReport:
    env = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    sites = [Site("gpu1", (CPU,)), Site("gpu2", (CPU,))]
    return fit_request(QWEN, sites=sites, tp=tp, pp=pp, args=FLAGS, env=env, vllm="0.32.0")


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_both_count_the_same_tokens(tp: int, pp: int) -> None:
    plan = predicted(tp, pp).plan
    found = probe_result(plan, {"CPU": read_answer(json.dumps(SAID[f"{tp}-{pp}"]))})
    assert (found.kv_cache_tokens, found.max_concurrency) == (74880, 2.28515625)
    assert found.kv_cache_tokens == plan.kv_cache_tokens
    assert [rank.blocks for rank in found.ranks] == [rank.blocks for rank in plan.ranks]
    assert found.differences == ()
    for ours, asked in zip(plan.ranks, found.ranks, strict=True):
        assert ours.weights_gib == pytest.approx(asked.weights_gib, rel=0.002)


def test_on_gpus_memory_and_weights_move_what_is_left_for_the_cache() -> None:
    gpus = (gpu("X 40GB", 40.0),) * 2
    report = fit_request(QWEN, sites=[Site("a", gpus)], tp=2, args=FLAGS, vllm="0.32.0")
    answer = read_answer(json.dumps(SAID["2-1"]))
    asked = replace(answer, memory_gib=39.0, weights_gib=(answer.weights_gib[0] + 0.5,))
    found = probe_result(report.plan, {"X 40GB": asked})
    ours = report.plan.ranks[0]
    less = report.plan.settings.utilization * 1.0 + found.ranks[0].weights_gib - ours.weights_gib
    assert found.ranks[0].kv_cache_gib == pytest.approx(ours.kv_cache_gib - less)
    assert found.max_concurrency < report.plan.max_concurrency
    assert [one.what for one in found.differences] == [
        "requests at once",
        "weights GiB on X 40GB",
        "memory GiB on X 40GB",
    ]
    lines = fit_lines(report.to_json() | {"probe": found.to_json()})
    assert "  differs: memory GiB on X 40GB, predicted 40.00, vLLM says 39.00 (+2.6%)" in lines


def test_agreement_is_said_too() -> None:
    report = predicted(2, 1)
    found = probe_result(report.plan, {"CPU": read_answer(json.dumps(SAID["2-1"]))})
    lines = fit_lines(report.to_json() | {"probe": found.to_json()})
    assert (
        "asked vLLM 0.32.0 on gpu1: 74,880 tokens of KV cache, 2.29 requests at once; "
        "predicted 74,880 and 2.29"
    ) in lines
    assert "  weights, memory and cache agree within 1 %" in lines


def test_one_host_of_each_type_is_asked() -> None:
    small, large = gpu("small", 24.0), gpu("large", 80.0)
    sites = [Site("a", (small,)), Site("b", (large,)), Site("c", (large,))]
    plan = fit_request(QWEN, sites=sites, tp=1, pp=3, args=FLAGS).plan
    assert sorted(hosts_to_ask(plan)) == ["large", "small"]
    assert hosts_to_ask(plan)["small"] == "a"


def test_the_question_carries_what_was_planned_and_no_layout() -> None:
    plan = predicted(1, 2).plan
    flags = parse_arguments([*FLAGS, "--pipeline-parallel-size", "2", "--max-model-len", "auto"])
    asked = json.loads(probe_question(plan, config_of(QWEN), flags, {"A": "b"}))
    assert asked["arguments"] == [*FLAGS, "--max-model-len", "32768"]
    assert (asked["tp"], asked["pp"]) == (1, 2)
    assert asked["env"] == {"A": "b", "VLLM_PP_LAYER_PARTITION": "14,14"}


@pytest.mark.parametrize("text", ["", "Traceback", "{}", "[]", '{"vllm": "0.32.0"}'])
def test_what_is_no_answer_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an answer|Expecting value"):
        read_answer(text)
