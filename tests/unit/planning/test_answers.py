"""vLLM's own answers about models of the catalogue for which the formulas are not proven."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clusterctl.models.catalogue import by_hub_id
from clusterctl.planning.answers import ANSWERS
from clusterctl.planning.fit_request import FitArguments, without_cluster
from clusterctl.planning.proof import is_proven
from clusterctl.serving.release_flags import NEWEST_RELEASE

STORED = json.loads(ANSWERS.read_text())
MODEL = "Qwen/Qwen3.8-Flash-Next"
SAID = STORED["models"][MODEL]["by_tp"]["8"]


def test_they_are_of_the_newest_release_and_of_models_that_need_them() -> None:
    assert STORED["vllm"] == NEWEST_RELEASE["vllm"]
    for name in STORED["models"]:
        entry = by_hub_id(name)
        assert entry
        assert entry.shape.assumptions or not is_proven(entry.architecture)


def test_a_plan_on_a_laptop_has_the_figures_that_vllm_said_and_says_so() -> None:
    report = without_cluster(FitArguments("qwen3.8-flash-next", gpus="8xH200"))
    plan, rank = report.plan, report.plan.ranks[0]

    assert report.to_json()["verdict"] == "fits"
    assert (plan.placement.tp, rank.weights_gib) == (8, SAID["weights_gib"])
    assert rank.blocks == int(rank.kv_cache_gib * 2**30) // SAID["block_bytes"]
    assert f"{rank.kv_cache_gib:.2f} GiB are left there" in plan.limited_by.reason
    assert plan.kv_cache_tokens == int(rank.blocks / SAID["requests"][-1][1] * 262144)
    said = f"those of vLLM {STORED['vllm']}, asked on {STORED['date']} for H200"
    assert any(said in note for note in plan.notes)
    assert (
        "each rank also keeps tables of 11.9 GiB in its host's memory, 95 GiB in all" in plan.notes
    )
    assert not report.doubts
    staged = next(each for each in report.proposals if each.plan.placement.pp == 2)
    assert staged.unproven
    assert staged.reason.endswith("unproven")


@pytest.mark.parametrize(
    "other",
    [
        {"gpus": "8xB200"},
        {"gpus": "8xH200", "vllm": "0.29.0"},
        {"gpus": "8xH200", "arguments": ("--kv-cache-dtype", "fp8")},
        {"gpus": "8xH200", "arguments": ("--max-num-batched-tokens", "4096")},
        {"gpus": "8xH200", "arguments": ("--block-size", "64")},
        {"gpus": "8xH200", "arguments": ("--enable-expert-parallel",)},
    ],
)
def test_what_was_not_asked_stays_unproven(other: dict[str, Any]) -> None:
    assert without_cluster(FitArguments(MODEL, tp=8, **other)).to_json()["verdict"] == "unproven"


def test_the_context_and_the_batch_that_a_user_asks_for_do_not_make_it_unproven() -> None:
    arguments = ("--max-model-len", "32768", "--max-num-seqs", "64", "--enforce-eager")
    report = without_cluster(FitArguments(MODEL, tp=8, gpus="8xH200", arguments=arguments))

    assert report.to_json()["verdict"] == "fits"
    assert report.plan.max_concurrency == pytest.approx(report.plan.kv_cache_tokens / 32768)
