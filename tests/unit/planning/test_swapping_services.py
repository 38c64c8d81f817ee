"""`serve --swap` and `--swap-with`: two services on the same GPUs, as they are asked for, planned
and declared."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.commands.apply import decide_all
from clusterctl.errors import ClusterctlError, DoesNotFit, RequirementsNotMet, UsageError
from clusterctl.models.name import resolve
from clusterctl.node.documents import ServiceState, SleepState
from clusterctl.node.rank_placement import PER_WORKER
from clusterctl.operations.restarting import plan_restart
from clusterctl.operations.rolling import Rolling
from clusterctl.operations.serving import Wanted
from clusterctl.planning.free_gpus import HeldGpus, with_shares
from clusterctl.planning.moves import moves_from, scaling
from clusterctl.planning.placement import HostGpus
from clusterctl.planning.question import question_again
from clusterctl.planning.service_plan import ServicePlan, plan_service
from clusterctl.planning.sleepers import parked
from clusterctl.planning.swaps import require_first, require_no_second
from clusterctl.reporting.status_view import screen, status_document, status_screen
from clusterctl.serving.fleet_file import read_fleet
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.service import HOLDS, difference, needs_restart
from clusterctl.serving.vllm_flags import parse_arguments
from clusterctl.survey.cluster import Cluster as SurveyedCluster
from clusterctl.survey.cluster import topology_of
from clusterctl.survey.status import assess
from clusterctl.survey.survey import Survey
from tests.fakes.transport import starts
from tests.unit.planning.test_gpu_shares import plan as plan_share
from tests.unit.planning.test_gpu_shares import running
from tests.unit.planning.test_prepared_service import Cluster, flag
from tests.unit.planning.test_standbys import plan as plan_standby


def plan(survey: Survey, name: str, *args: str, **options: Any) -> ServicePlan:
    request = read_request(
        Options("/data/models/qwen", name=name, **options), extra=parse_arguments(args)
    )
    return plan_service(survey, request, resolve(request.model, survey.inventory.models))


def chat(survey: Survey, *args: str, on: str | None = "gpu1", **options: Any) -> ServicePlan:
    return plan(survey, "chat", *args, swap=True, on=on, **{"tensor_parallel": 1, **options})


def coder(survey: Survey, *args: str, **options: Any) -> ServicePlan:
    return plan(survey, "coder", *args, swap_with="chat", **options)


def both(cluster: Cluster) -> tuple[ServicePlan, ServicePlan, Survey]:
    first = chat(cluster.survey())
    second = coder(running(cluster, first))
    return first, second, running(cluster, first, second)


@pytest.mark.parametrize("mine", [{"swap": True}, {"swap_with": "chat"}])
@pytest.mark.parametrize(
    ("options", "flags", "words"),
    [
        ({"replicas": "2"}, (), "one replica"),
        ({"replicas": "max"}, (), "one replica"),
        ({"data_parallel": 2}, (), "one replica"),
        ({"idle": "10m"}, (), "--idle are two uses of sleep"),
        ({"standby": True}, (), "--standby are two uses of sleep"),
        ({"gpu_share": 0.5}, (), "whole GPUs"),
        ({}, ("--api-server-count", "2"), "one API server"),
        ({}, ("--enable-lora",), "without adapters"),
        ({}, ("--kv-transfer-config", '{"kv_connector": "NixlConnector"}'), "may open ports"),
    ],
)
def test_what_a_service_that_swaps_cannot_have(
    mine: dict[str, Any], options: dict[str, Any], flags: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        read_request(Options("m", **mine, **options), extra=parse_arguments(flags))


def test_one_is_the_first_or_the_second_and_the_second_has_the_hosts_of_the_first() -> None:
    with pytest.raises(UsageError, match="the first of two services, --swap-with for the second"):
        read_request(Options("m", swap=True, swap_with="chat"))
    with pytest.raises(UsageError, match="takes the hosts of chat") as refused:
        read_request(Options("m", swap_with="chat", on="gpu2"))
    assert refused.value.hint == "leave --on out"
    assert read_request(Options("m", swap_with="chat", on="*")).swap_with == "chat"


def test_a_fleet_file_has_them(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "services:\n  coder: {model: qwen2.5-1.5b, swap_with: chat}\n"
        "  chat: {model: qwen2.5-1.5b, swap: true}\n"
    )
    second, first = read_fleet(path)
    assert (first.swap, first.swap_with) == (True, "")
    assert (second.swap, second.swap_with) == (False, "chat")
    path.write_text("services:\n  coder: {model: qwen2.5-1.5b, swap_with: 'no name'}\n")
    with pytest.raises(UsageError) as refused:
        read_fleet(path)
    assert "cannot be a service's name" in str(refused.value.detail)


def test_the_second_has_the_gpus_of_the_first_and_each_its_part_of_rays_count() -> None:
    first, second, survey = both(Cluster("nvidia"))
    one, two = first.document, second.document
    assert (one.swap, one.swap_with) == (True, "")
    assert (two.swap, two.swap_with) == (False, "chat")
    assert one.node_ips == two.node_ips == ["10.0.0.1"]
    assert (one.env[PER_WORKER], two.env[PER_WORKER]) == ("0.75", "0.25")
    assert one.port != two.port
    assert first.members.port != second.members.port
    for each in (one, two):
        assert "--enable-sleep-mode" in each.argv
        assert flag(each, "--gpu-memory-utilization") == "0.9"
    notes = " ".join((*first.notes, *second.notes))
    assert "another service can have its GPUs in turn" in notes
    assert "--swap-with chat" in notes
    assert "it starts once chat has had no requests for a while" in notes
    assert parked([one, two]) == {"10.0.0.1": pytest.approx(2 * 2 * one.parked_gib)}
    assert question_again(survey, one).request.swap
    assert question_again(survey, two).request.swap_with == "chat"


def test_served_again_nothing_changes() -> None:
    first, second, survey = both(Cluster("nvidia"))
    assert chat(survey).document == first.document
    assert coder(survey).document == second.document
    assert coder(survey, tensor_parallel=1).document == second.document


def test_served_again_while_it_starts_nothing_changes() -> None:
    """Ray has reserved its shares before a rank is visible."""
    cluster = Cluster("nvidia")
    first, second, _ = both(cluster)
    nodes = [replace(node, gpus_used=0.75 if node.head else 0.0) for node in cluster.state.nodes]
    cluster.state = replace(
        cluster.state, nodes=nodes, services=[ServiceState("chat", "loading", 0.0)]
    )
    survey = cluster.survey(first, second)
    assert chat(survey).document == first.document
    with pytest.raises(DoesNotFit):
        plan(survey, "other", tensor_parallel=1, on="gpu1")


def test_with_ranks_on_two_hosts_the_second_has_the_same_in_the_same_order() -> None:
    cluster = Cluster("nvidia")
    first = chat(cluster.survey(), on=None, tensor_parallel=2)
    for sizes in ({}, {"tensor_parallel": 2}, {"tensor_parallel": 1}, {"pipeline_parallel": 2}):
        second = coder(cluster.survey(first), **sizes)
        assert second.document.node_ips == first.document.node_ips, sizes
    with pytest.raises(UsageError, match=r"chat has 2 GPUs, and coder .* not 4") as refused:
        coder(cluster.survey(first), tensor_parallel=2, pipeline_parallel=2)
    assert refused.value.hint == "--tp 2 --pp 1, or leave both out"
    with pytest.raises(UsageError, match=r"chat has 2 GPUs, and coder .* not 3"):
        coder(cluster.survey(first), tensor_parallel=3)


def test_on_cpus_they_swap_without_vllms_sleep_mode() -> None:
    cluster = Cluster("cpu")
    first = chat(cluster.survey(), on=None, tensor_parallel=2)
    second = coder(cluster.survey(first))
    assert second.document.node_ips == first.document.node_ips
    for each in (first.document, second.document):
        assert "--enable-sleep-mode" not in each.argv
        assert each.env[HOLDS] == "3"


def test_a_first_one_with_a_dead_host_is_refused() -> None:
    cluster = Cluster("nvidia")
    first = chat(cluster.survey(), on=None, tensor_parallel=2)
    hosts = (cluster.inventory.hosts[0],)
    survey = replace(
        cluster.survey(first), inventory=cluster.inventory.model_copy(update={"hosts": hosts})
    )
    with pytest.raises(RequirementsNotMet, match="chat has ranks on a host that is dead"):
        require_first(survey, "coder", "chat")


def test_an_unknown_first_one_is_refused_with_what_starts_it() -> None:
    with pytest.raises(UsageError, match=r"no service named chat .* services: none") as refused:
        coder(Cluster("nvidia").survey())
    assert refused.value.hint == "clusterctl serve MODEL --name chat --swap"


def test_a_first_one_that_has_its_gpus_alone_is_refused_with_what_shares_them() -> None:
    cluster = Cluster("nvidia")
    alone = plan(cluster.survey(), "chat", tensor_parallel=1, on="gpu1")
    survey = running(cluster, alone)
    with pytest.raises(UsageError, match="chat does not share its GPUs") as refused:
        coder(survey)
    fix = "clusterctl serve /data/models/qwen --name chat --tp 1 --pp 1 --swap"
    assert refused.value.hint == f"add --swap, and keep its other flags: {fix}"

    again = chat(survey)
    assert again.document.node_ips == alone.document.node_ips
    assert needs_restart(alone.document, again.document)
    told = difference(alone.document, again.document)
    assert "swap: with another service (new)" in told
    assert not any("VLLM_RAY" in line for line in told)
    back = plan(running(cluster, again), "chat", tensor_parallel=1, on="gpu1")
    assert back.document == alone.document


def test_a_third_one_is_refused() -> None:
    _, _, survey = both(Cluster("nvidia"))
    with pytest.raises(UsageError, match=r"already swaps with coder, .* not three") as refused:
        plan(survey, "third", swap_with="chat")
    assert refused.value.hint == "clusterctl stop coder"
    with pytest.raises(UsageError, match="coder itself swaps with chat"):
        plan(survey, "third", swap_with="coder")
    with pytest.raises(UsageError, match="cannot swap with itself"):
        plan(survey, "chat", swap_with="chat")


def test_neither_can_be_served_as_one_that_has_other_gpus() -> None:
    first, _, survey = both(Cluster("nvidia"))
    with pytest.raises(UsageError, match="coder swaps with chat, which would") as refused:
        plan(survey, "chat", tensor_parallel=1, on="gpu1")
    assert refused.value.hint == "add --swap; or first: clusterctl stop coder"
    with pytest.raises(
        UsageError, match="coder swaps with chat, and would get GPUs of its own"
    ) as refused:
        plan(survey, "coder", tensor_parallel=1)
    assert refused.value.hint == "clusterctl stop coder, then serve again"

    cluster = Cluster("nvidia")
    own = plan(cluster.survey(first), "coder", tensor_parallel=1, on="gpu2")
    with pytest.raises(UsageError, match="coder does not swap, and would get the GPUs of chat"):
        coder(cluster.survey(first, own))


def test_the_first_one_does_not_stop_before_the_second() -> None:
    _, _, survey = both(Cluster("nvidia"))
    with pytest.raises(UsageError, match="coder swaps with chat") as refused:
        require_no_second(survey, "chat")
    assert refused.value.hint == "clusterctl stop coder"
    require_no_second(survey, "coder")


def test_a_restart_says_that_the_other_one_needs_a_pause() -> None:
    cluster = Cluster("nvidia")
    first, _, survey = both(cluster)
    for name, other in (("chat", "coder"), ("coder", "chat")):
        assert plan_restart(survey, name).lines[-1] == (
            f"{name} starts again only once {other}, with which it swaps, has had no requests for "
            "a while"
        )
    assert plan_restart(running(cluster, first), "chat").doubts == []


def test_a_pair_is_not_moved_and_one_alone_is() -> None:
    cluster = Cluster("nvidia")
    first, _, survey = both(cluster)
    with pytest.raises(RequirementsNotMet) as refused:
        moves_from(survey, "gpu1")
    assert str(refused.value.summary) == (
        "chat and coder take turns on the same GPUs, and such a pair cannot be moved"
    )
    assert (refused.value.host, str(refused.value.hint)) == (
        "gpu1",
        "clusterctl stop coder; then try again, and serve it anew with --swap-with chat",
    )
    assert moves_from(survey, "gpu2") == []

    anywhere = replace(first, members=replace(first.members, on=""))
    (moves,) = moves_from(running(cluster, anywhere), "gpu1")
    (moved,) = moves.new
    assert (moved.document.node_ips, moved.document.swap) == (["10.0.0.2"], True)
    there = replace(first, replicas=(moved,), members=moves.members)
    assert coder(cluster.survey(there)).document.node_ips == ["10.0.0.2"]


def test_the_first_one_is_not_served_elsewhere_while_the_second_has_its_gpus() -> None:
    first, _, survey = both(Cluster("nvidia"))
    with pytest.raises(RequirementsNotMet, match="such a pair cannot be moved") as refused:
        chat(survey, on="gpu2")
    assert str(refused.value.hint).startswith("clusterctl stop coder")
    assert chat(Cluster("nvidia").survey(first), on="gpu2").document.node_ips == ["10.0.0.2"]


@pytest.mark.parametrize("second_first", [False, True])
def test_two_that_swap_have_the_same_gpus_whatever_their_names_are(second_first: bool) -> None:
    _, _, survey = both(Cluster("nvidia"))
    one, two = (
        replace(each, document=replace(each.document, node_ips=["10.0.0.1"] * 2, gpus=2))
        for each in (survey.replicas["chat"], survey.replicas["coder"])
    )
    held = HeldGpus([HostGpus("gpu1", 4)])
    pair = [two, one] if second_first else [one, two]
    assert with_shares(held, survey.topology, pair, 1.0).free == [HostGpus("gpu1", 2)]


@pytest.mark.parametrize(("name", "option"), [("chat", "--swap"), ("coder", "--swap-with")])
def test_another_replica_is_refused(name: str, option: str) -> None:
    _, _, survey = both(Cluster("nvidia"))
    with pytest.raises(UsageError, match="swaps GPUs with another service") as refused:
        scaling(survey, name, 2)
    assert refused.value.hint == f"clusterctl scale {name} 1, or serve it without {option}"


def test_nothing_else_has_a_part_of_these_gpus() -> None:
    cluster = Cluster("nvidia")
    first = chat(cluster.survey())
    survey = running(cluster, first)
    with pytest.raises(DoesNotFit) as refused:
        plan_share(survey, "small", 0.2)
    assert "gpu1 is left out: chat swaps GPUs there" in str(refused.value.detail)
    for other in ({}, {"swap": True}, {"standby": True}):
        with pytest.raises(DoesNotFit) as refused:
            plan(survey, "other", tensor_parallel=1, on="gpu1", **other)
        assert "service chat (ready) holds 1 GPU on gpu1" in str(refused.value.detail)
        elsewhere = plan(survey, "other", tensor_parallel=1, **other)
        assert elsewhere.document.node_ips == ["10.0.0.2"]

    cluster = Cluster("nvidia")
    small = plan_share(cluster.survey(), "small", 0.2)
    with pytest.raises(DoesNotFit) as refused:
        chat(running(cluster, small))
    assert "gpu1 is left out: small has a share of a GPU there" in str(refused.value.detail)
    with pytest.raises(UsageError, match=r"small runs on 0\.2 of a GPU"):
        plan(cluster.survey(small), "small", swap=True, tensor_parallel=1, on="gpu1")

    cluster = Cluster("nvidia")
    standby = plan_standby(cluster.survey())
    with pytest.raises(DoesNotFit) as refused:
        chat(running(cluster, standby))
    assert "gpu1 is left out: qwen has a standby there" in str(refused.value.detail)


def test_a_release_that_needs_a_whole_free_gpu_is_refused() -> None:
    cluster = Cluster("nvidia")
    cluster.state = replace(cluster.state, vllm_version="0.24.0")
    with pytest.raises(UsageError, match="services that swap have a share of each") as refused:
        chat(cluster.survey())
    assert refused.value.hint == "leave --swap out, or use vLLM 0.25.0 or newer"


def test_a_host_without_memory_for_both_is_refused() -> None:
    cluster = Cluster("nvidia")
    first = chat(cluster.survey())
    answer = cluster.answers["gpu1"]
    room = int(first.document.parked_gib * 2 * 1.5 / 0.75 * 2**30)
    cluster.answers["gpu1"] = replace(answer, facts=replace(answer.facts, memory=room))
    chat(cluster.survey())
    with pytest.raises(DoesNotFit, match="of which other services take") as refused:
        coder(cluster.survey(first))
    assert refused.value.hint == "leave --swap-with out"


def test_a_share_of_memory_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="no room for the service that it swaps with"):
        chat(Cluster("nvidia").survey(), "--gpu-memory-utilization", "0.96")


def wanted(survey: Survey, *options: Options) -> list[Wanted]:
    return [Wanted.of(read_request(each), survey.inventory) for each in options]


def test_a_fleet_plans_the_second_after_the_first_wherever_it_is_in_the_file() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey()
    cluster.transports["gpu1"].on(starts("cat"), stdout="secret-key\n")
    both_new = wanted(
        survey,
        Options("/data/models/qwen", name="coder", swap_with="chat", on="*"),
        Options("/data/models/qwen", 1, name="chat", swap=True, on="*"),
    )
    found = decide_all(survey, both_new, prune=False)
    assert [*found.services] == ["chat", "coder"]
    ips = [each.plan.document.node_ips for each in found.services.values()]
    assert ips[0] == ips[1]
    with pytest.raises(ClusterctlError, match="no service named chat"):
        decide_all(survey, both_new[:1], prune=False)


def test_after_another_image_the_second_one_is_proven_while_the_first_has_no_requests() -> None:
    """It starts in a pause of the first, which may have none once the gateway sends it requests."""
    cluster = Cluster("nvidia")
    _, _, survey = both(cluster)
    cluster.transports["gpu1"].on(starts("cat"), stdout="secret-key\n")
    hosts = tuple(host.name for host in cluster.inventory.hosts)
    whole = SurveyedCluster(survey, topology_of(survey), survey.views, hosts)
    rolling = Rolling(whole, ("gpu1",), None, lambda _: None)
    assert [each.members.service for each in rolling.rollouts(whole)] == ["coder", "chat"]


def test_status_says_on_whose_gpus_it_is_and_that_it_sleeps() -> None:
    cluster = Cluster("nvidia")
    first, second, _ = both(cluster)
    states = [
        ServiceState("chat", "ready", 0.0),
        ServiceState("coder", "ready", 0.0, sleep=SleepState(asleep=True, wakes_in=2.1)),
    ]
    cluster.state = replace(cluster.state, services=states)
    status = assess(cluster.survey(first, second))
    stream = io.StringIO()
    screen(stream).print(status_screen(status))
    shown = stream.getvalue()
    assert "service coder · asleep · /data/models/qwen · TP 1 · PP 1" in shown
    assert "  asleep     on the GPUs of chat, wakes in 2.1 s" in shown
    assert "  swaps      with chat, on the same GPUs" in shown
    assert "  swaps      with coder, on the same GPUs" in shown
    one, two = status_document(status)["services"]
    assert (one["swaps_with"], two["swaps_with"]) == ("coder", "chat")
    assert two["sleep"]["asleep"]
