"""Services that share a GPU: each takes a part of its memory, and the parts have to fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.models.name import resolve
from clusterctl.node.documents import Rank, ServiceState
from clusterctl.node.rank_placement import shared
from clusterctl.planning.moves import scaling
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey
from tests.unit.planning.test_prepared_service import Cluster, flag


def plan(survey: Survey, name: str, share: float | None, on: str | None = "gpu1") -> ServicePlan:
    options = Options("/data/models/qwen", name=name, on=on, gpu_share=share)
    request = read_request(options)
    return plan_service(survey, request, resolve(request.model, survey.inventory.models))


def running(cluster: Cluster, *plans: ServicePlan) -> Survey:
    """What the hosts answer while these serve on gpu1."""
    documents = [each.document for each in plans]
    states = [
        ServiceState(each.name, "ready", 0.0, ranks=[Rank(0, 0, 0, "gpu1", "10.0.0.1", 7)])
        for each in documents
    ]
    used = sum(float(each.env.get("VLLM_RAY_PER_WORKER_GPUS", "1")) for each in documents)
    nodes = [replace(node, gpus_used=used if node.head else 0.0) for node in cluster.state.nodes]
    cluster.state = replace(cluster.state, services=states, nodes=nodes)
    return cluster.survey(*plans)


def test_a_share_is_memory_for_vllm_and_a_number_for_ray() -> None:
    cluster = Cluster("nvidia")
    small = plan(cluster.survey(), "small", 0.3)
    assert flag(small.document, "--gpu-memory-utilization") == "0.3"
    assert small.document.env["VLLM_RAY_PER_WORKER_GPUS"] == "0.3"
    assert small.document.node_ips == ["10.0.0.1"], "a replica, which clusterctl places"
    assert small.fit
    whole = plan(cluster.survey(), "whole", None).fit
    assert whole
    assert small.fit.plan.kv_cache_tokens < whole.plan.kv_cache_tokens / 3
    bundles = [{"GPU": 1.0, "node:10.0.0.1": 0.001}]
    assert shared(bundles, 0.3) == [{"GPU": 0.3, "node:10.0.0.1": 0.001}]
    assert shared(bundles, 1.0) == bundles


def test_parts_are_added_up_and_what_does_not_fit_is_refused() -> None:
    cluster = Cluster("nvidia")
    first = plan(cluster.survey(), "a", 0.3)
    second = plan(cluster.survey(first), "b", 0.6)
    assert second.document.node_ips == ["10.0.0.1"], "beside one that has not started yet"

    survey = running(cluster, first, second)
    with pytest.raises(DoesNotFit) as caught:
        plan(survey, "c", 0.2)
    assert "service a (ready) holds 0.3 of a GPU on gpu1" in str(caught.value.detail)
    assert plan(survey, "c", 0.1).document.node_ips == ["10.0.0.1"]
    with pytest.raises(DoesNotFit):
        plan(survey, "c", None)
    assert plan(survey, "c", None, on=None).document.node_ips == ["10.0.0.2"]


def test_a_share_stays_with_its_service() -> None:
    cluster = Cluster("nvidia")
    first = plan(cluster.survey(), "a", 0.3, on=None)
    survey = running(cluster, first)
    assert plan(survey, "a", 0.3, on=None).document == first.document
    with pytest.raises(UsageError, match=r"a runs on 0.3 of a GPU, and would run on 1 of it"):
        plan(survey, "a", None, on=None)
    (copy,) = scaling(survey, "a", 2).new
    assert copy.document.env["VLLM_RAY_PER_WORKER_GPUS"] == "0.3"


@pytest.mark.parametrize(
    ("share", "flags", "said"),
    [
        (1.5, (), "between 0 and 1"),
        (0.3, ("--gpu-memory-utilization", "0.5"), "contradict each other"),
        (0.3, ("--tensor-parallel-size", "2"), "a model on one GPU"),
    ],
)
def test_what_a_share_cannot_be(share: float, flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_request(Options("m", gpu_share=share), (), parse_arguments(flags))
