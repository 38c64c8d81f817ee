"""Services that another release of vLLM would not start are named before a container gets it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import ClusterctlError, DoesNotFit
from clusterctl.facts.model import GpuFacts, GpuReport
from clusterctl.planning.another_release import AnotherRelease
from tests.unit.planning.test_prepared_service import Cluster, probe_of

FLAGS = ("--calculate-kv-scales", "--max-num-partial-prefills", "2")


def refusals(cluster: Cluster, *flags: str, vllm: str) -> list[ClusterctlError]:
    survey = cluster.survey(cluster.prepare("--max-model-len", "32768", *flags, tp=1))
    return AnotherRelease(survey, vllm).refusals()


def small_gpus() -> Cluster:
    """Where a request of the model's full length fits with vLLM 0.32, and little else."""
    cluster = Cluster("nvidia")
    gpu = GpuFacts(0, "GPU-3090", "NVIDIA GeForce RTX 3090", 5_400 * 2**20, "580")
    for number in (1, 2):
        cluster.answers[f"gpu{number}"] = probe_of(f"10.0.0.{number}", GpuReport((gpu,), None))
    return cluster


def test_memory_is_planned_by_the_new_release_s_rules() -> None:
    cluster = small_gpus()
    (error,) = refusals(cluster, vllm="vllm/vllm-openai:v0.33.0")
    assert isinstance(error, DoesNotFit)
    assert error.summary.startswith("with vLLM 0.33.0, qwen cannot run like this: ")
    assert (error.hint or "").startswith("clusterctl serve /data/models/qwen --tp 1")
    assert refusals(cluster, vllm="0.29.0") == []


def test_all_flags_that_it_lacks_are_named_at_once() -> None:
    cluster = Cluster("nvidia")
    cluster.state = replace(cluster.state, vllm_version="0.25.1")
    found = refusals(cluster, *FLAGS, vllm="0.33.0")
    assert [error.summary for error in found] == [
        f"{flag} (of qwen) does not exist in vLLM 0.33.0" for flag in FLAGS[:2]
    ]
    assert all("serve qwen again so, then bootstrap" in (error.hint or "") for error in found)


@pytest.mark.parametrize("vllm", ["0.25.1", "vllm/vllm-openai:latest", ""])
def test_the_release_that_runs_and_an_unknown_one_are_not_asked(vllm: str) -> None:
    cluster = Cluster("nvidia")
    cluster.state = replace(cluster.state, vllm_version="0.25.1")
    assert refusals(cluster, *FLAGS, vllm=vllm) == []


def test_what_serves_against_the_planner_s_word_is_not_refused() -> None:
    cluster = small_gpus()
    plan = cluster.prepare("--max-model-len", "32768", tp=1)
    cluster.state = replace(cluster.state, vllm_version="0.33.0")
    assert AnotherRelease(cluster.survey(plan), "0.34.0").refusals() == []


def test_a_release_before_the_oldest_is_refused() -> None:
    (error,) = refusals(Cluster("nvidia"), vllm="vllm/vllm-openai:v0.6.3")
    assert error.summary.startswith("vLLM 0.6.3 is older than 0.7.0")
