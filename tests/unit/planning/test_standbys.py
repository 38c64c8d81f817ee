"""`serve --standby`: a second engine on the same GPUs, as it is asked for, planned and declared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.models.name import resolve
from clusterctl.planning.fit_request import FitArguments, without_cluster
from clusterctl.planning.moves import moves_from, scaling
from clusterctl.planning.question import question_again
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.serving.fleet_file import read_fleet
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.service import HOLDS, difference, needs_restart
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.survey import Survey
from tests.unit.planning.test_gpu_shares import plan as plan_share
from tests.unit.planning.test_gpu_shares import running
from tests.unit.planning.test_prepared_service import Cluster, flag


def plan(
    survey: Survey, *, name: str = "qwen", standby: bool = True, on: str = "gpu1"
) -> ServicePlan:
    options = Options("/data/models/qwen", 1, name=name, standby=standby, on=on)
    model = resolve("/data/models/qwen", survey.inventory.models)
    return plan_service(survey, read_request(options), model)


@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        (Options("m", standby=True, replicas="2"), (), "one replica"),
        (Options("m", standby=True, data_parallel=2), (), "one replica"),
        (Options("m", standby=True, idle="10m"), (), "two uses of sleep"),
        (Options("m", standby=True, gpu_share=0.5), (), "whole GPUs"),
        (Options("m", standby=True), ("--api-server-count", "2"), "one API server"),
        (Options("m", standby=True), ("--enable-lora",), "without adapters"),
        (Options("m", standby=True), ("--no-enable-sleep-mode",), "needs vLLM's sleep mode"),
        (
            Options("m", standby=True),
            ("--kv-transfer-config", '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'),
            "--kv-transfer-config may open ports",
        ),
        (
            Options("m", standby=True),
            ("--kv_events_config.enable_kv_cache_events=true",),
            "--kv-events-config may open ports",
        ),
        (
            Options("m", standby=True),
            ("--ec-transfer-config={}",),
            "--ec-transfer-config may open ports",
        ),
    ],
)
def test_what_a_service_with_a_standby_cannot_have(
    options: Options, flags: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_request(options, extra=parse_arguments(flags))


def test_a_fleet_file_has_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("services:\n  a:\n    model: qwen2.5-1.5b\n    standby: true\n")
    (request,) = read_fleet(path)
    assert request.standby


def test_fit_leaves_room_for_it_and_says_what_hosts_need() -> None:
    asked = FitArguments("qwen3-32b", 2, gpus="2xH100", vllm="0.33.0", standby=True)
    report, alone = without_cluster(asked), without_cluster(replace(asked, standby=False))
    assert report.plan.settings.utilization == 0.87
    assert report.plan.kv_cache_tokens < alone.plan.kv_cache_tokens
    said = "--standby: its two engines may take up to 245 GiB of host memory while they sleep"
    assert said in report.notes
    assert said not in alone.notes


def test_it_has_a_port_of_its_own_and_room_on_the_gpu() -> None:
    found = plan(Cluster("nvidia").survey())
    document = found.document
    (member,) = found.members.members

    assert document.standby_port not in (0, document.port)
    assert member.standby_port == document.standby_port
    assert "--enable-sleep-mode" in document.argv
    assert document.parked_gib > 0
    given = flag(document, "--gpu-memory-utilization")
    assert given == "0.9"
    assert any(f"--gpu-memory-utilization {given} leaves room" in note for note in found.notes)


def test_served_again_nothing_changes_and_turning_it_on_restarts() -> None:
    cluster = Cluster("nvidia")
    first = plan(cluster.survey())
    survey = running(cluster, first)
    assert plan(survey).document == first.document
    assert question_again(survey, first.document).request.standby

    cluster = Cluster("nvidia")
    alone = plan(cluster.survey(), standby=False)
    again = plan(running(cluster, alone))
    assert needs_restart(alone.document, again.document)
    told = difference(alone.document, again.document)
    assert f"standby: on port {again.document.standby_port} (new)" in told
    assert not [line for line in told if HOLDS in line], "a variable of clusterctl's own"


def test_a_host_has_one_standby_since_ray_may_give_it_the_gpus_of_another_service() -> None:
    cluster = Cluster("nvidia")
    first = plan(cluster.survey())
    with pytest.raises(DoesNotFit) as refused:
        plan(running(cluster, first), name="other")
    assert "gpu1 is left out: qwen has a standby there" in str(refused.value.detail)

    # Two that were served there by an earlier release stay as they are.
    second = plan(Cluster("nvidia").survey(), name="other")
    survey = running(Cluster("nvidia"), first, second)
    assert plan(survey, name="other").document == second.document


def test_a_share_of_a_gpu_and_a_standby_are_not_on_one_host() -> None:
    cluster = Cluster("nvidia")
    pair = plan(cluster.survey())
    with pytest.raises(DoesNotFit) as refused:
        plan_share(running(cluster, pair), "small", 0.2)
    assert "gpu1 is left out: qwen has a standby there" in str(refused.value.detail)

    cluster = Cluster("nvidia")
    small = plan_share(cluster.survey(), "small", 0.2)
    with pytest.raises(DoesNotFit) as refused:
        plan(running(cluster, small))
    assert "gpu1 is left out: small has a share of a GPU there" in str(refused.value.detail)


def test_a_release_that_needs_a_whole_free_gpu_is_refused() -> None:
    cluster = Cluster("nvidia")
    cluster.state = replace(cluster.state, vllm_version="0.24.0")
    with pytest.raises(UsageError, match="may want a whole free GPU") as refused:
        plan(cluster.survey())
    assert refused.value.hint == "leave --standby out, or use vLLM 0.25.0 or newer"


def test_a_host_without_memory_for_both_is_refused() -> None:
    cluster = Cluster("nvidia")
    answer = cluster.answers["gpu1"]
    facts = replace(answer.facts, memory=12 * 2**30)
    cluster.answers["gpu1"] = replace(answer, facts=facts)
    with pytest.raises(DoesNotFit, match="while its engines sleep") as refused:
        plan(cluster.survey())
    assert "leave --standby out" in str(refused.value.hint)


def test_a_move_takes_both_and_a_second_replica_is_refused() -> None:
    cluster = Cluster("nvidia")
    found = plan(cluster.survey(), on="*")
    survey = running(cluster, found)
    (moves,) = moves_from(survey, "gpu1")
    (moved,) = moves.new
    assert moved.document.node_ips == ["10.0.0.2"]
    assert moved.document.standby_port not in (0, moved.document.port)
    assert [one.standby_port for one in moves.members.members] == [moved.document.standby_port]

    with pytest.raises(UsageError, match="has a standby"):
        scaling(survey, "qwen", 2)
