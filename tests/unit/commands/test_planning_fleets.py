"""All services of a fleet file are planned together, before anything changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.commands.apply import FleetDecision, decide_all
from clusterctl.errors import DoesNotFit, Problems, UsageError
from clusterctl.models.name import resolve
from clusterctl.operations.serving import Wanted
from clusterctl.planning.service_plan import ServicePlan
from clusterctl.serving.adapters import read_adapter
from clusterctl.serving.request import Options, read_request
from clusterctl.serving.vllm_flags import Argument
from tests.fakes.transport import starts
from tests.unit.planning.test_dead_hosts import only_on_gpu2, surveyed
from tests.unit.planning.test_prepared_service import Cluster
from tests.unit.serving.test_adapters import adapter


def decide(
    cluster: Cluster, *declared: ServicePlan, prune: bool = False, **replicas: str | None
) -> FleetDecision:
    """Plan services with these numbers of replicas, one GPU each."""
    wanted = [
        Wanted.of(
            read_request(Options("/data/models/qwen", 1, name=name, replicas=number)),
            cluster.inventory,
        )
        for name, number in replicas.items()
    ]
    return decide_all(cluster.survey(*declared), wanted, prune=prune)


def decide_with(
    cluster: Cluster, base: Path, adapters: dict[str, str] | None, *declared: ServicePlan
) -> FleetDecision:
    """Plan `qwen` with these adapters, by name: directories below `base`."""
    options = Options("/data/models/qwen", 1, name="qwen", replicas="1", adapters=adapters)
    request = read_request(options, (), [Argument("enable-lora")])
    return decide_all(
        cluster.survey(*declared), [Wanted.of(request, cluster.inventory, base)], prune=False
    )


def hosts(decision: FleetDecision) -> dict[str, list[str]]:
    return {
        name: [each.host for each in one.plan.replicas] for name, one in decision.services.items()
    }


def test_no_two_services_get_one_gpu_port_or_place_in_the_list() -> None:
    found = decide(Cluster("nvidia"), a="1", b="1").services
    plans = [found[name].plan for name in ("a", "b")]
    assert [plan.members and plan.members.port for plan in plans] == [8000, 8001]
    assert [plan.layout.hosts for plan in plans] == [("gpu1",), ("gpu2",)]

    with pytest.raises(DoesNotFit, match="2 replicas of b need 1 GPU each, and 1") as caught:
        decide(Cluster("nvidia"), a="1", b="2")
    assert caught.value.hint == "services.b.replicas: 1"


def test_max_is_what_the_others_leave_wherever_it_stands_in_the_file() -> None:
    found = decide(Cluster("nvidia"), qwen="max", b="1")
    assert {name: len(each) for name, each in hosts(found).items()} == {"b": 1, "qwen": 1}


def test_a_service_that_shrinks_leaves_its_gpu_to_one_that_grows() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    found = decide(cluster, pair, b="1", qwen="1")
    assert list(found.services) == ["qwen", "b"], "the one that frees a GPU is planned first"
    assert found.changes.lines[0] == "qwen: stop qwen@2 on gpu2, after its running requests"
    assert any(line.startswith("b: start b") for line in found.changes.lines)


def test_unlisted_services_are_named_and_stop_only_with_prune() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    with pytest.raises(DoesNotFit) as caught:
        decide(cluster, pair, b="1")
    hint = "--prune stops qwen, not in the file, and frees these GPUs"
    assert str(caught.value.hint).startswith(hint)
    found = decide(cluster, pair, qwen="2")
    assert found.changes.lines == ()

    alone = decide(cluster, pair)
    assert alone.changes.notes == ("qwen is not in the file, so it stays as it is",)
    pruned = decide(cluster, pair, prune=True, b="2")
    assert [line for line in pruned.changes.lines if "stop" in line] == [
        "qwen: stop qwen on gpu1, after its running requests",
        "qwen: stop qwen@2 on gpu2, after its running requests",
    ]
    assert sorted(hosts(pruned)["b"]) == ["gpu1", "gpu2"]
    assert pruned.changes.restarts, "that running services end is asked"


def test_what_runs_as_planned_needs_nothing() -> None:
    cluster = Cluster("nvidia")
    pair = cluster.prepare(tp=1, replicas="2")
    found = decide(cluster, pair, qwen="2")
    assert found.changes.lines == ()
    assert found.unproven("qwen"), "no supervisor says that it is ready: it is waited for"


def test_a_pruned_service_whose_hosts_are_dead_leaves_the_gateway() -> None:
    cluster = Cluster("nvidia")
    found = decide_all(surveyed(cluster, only_on_gpu2(cluster)), [], prune=True)
    assert found.changes.lines == ("qwen: take it out of the gateway",)
    assert found.changes.notes == (
        "qwen: its replica on gpu2 will start again with that host: then run --prune again",
    )


def test_a_new_key_is_not_set_by_one_of_several_services() -> None:
    """Those that start at the same time would have different ones."""
    cluster = Cluster("nvidia")
    cluster.transports["gpu1"].on(starts("cat"), stdout="sk-old")
    wanted = [
        Wanted(
            replace(
                read_request(Options("/data/models/qwen", 1, name=name, replicas="1")), api_key=key
            ),
            resolve("/data/models/qwen", cluster.inventory.models),
        )
        for name, key in (("a", "sk-new"), ("b", None))
    ]
    with pytest.raises(UsageError, match="a: the api-key in its config file differs"):
        decide_all(cluster.survey(), wanted, prune=False)
    decide_all(cluster.survey(), wanted[:1], prune=False)


def test_a_service_has_the_adapters_of_the_file_and_without_that_key_those_that_it_has(
    tmp_path: Path,
) -> None:
    cluster = Cluster("nvidia")
    path = f"/data/models/{read_adapter('sql', adapter(tmp_path / 'sql')).path}"

    plan = decide_with(cluster, tmp_path, {"sql": "sql"}).services["qwen"].plan
    assert plan.document.adapters == plan.members.adapters == {"sql": path}

    kept = decide_with(cluster, tmp_path, None, plan)
    assert kept.services["qwen"].plan.document.adapters == {"sql": path}
    assert not kept.changes.lines
    same = decide_with(cluster, tmp_path, {"sql": "sql"}, plan)
    assert not same.changes.lines
    none = decide_with(cluster, tmp_path, {}, plan)
    assert none.services["qwen"].plan.members.adapters == {}
    assert any("adapter sql" in line for line in none.changes.lines)


def test_adapters_that_no_service_of_the_file_can_have_are_refused_together(tmp_path: Path) -> None:
    adapter(tmp_path / "large", rank=64)
    adapter(tmp_path / "other", takes=4096)

    with pytest.raises(Problems) as caught:
        decide_with(Cluster("nvidia"), tmp_path, {"large": "large", "other": "other"})

    said = "\n".join(map(str, caught.value.errors))
    assert "large has rank 64, and the service was started for ranks to 16" in said
    assert "other is for another model" in said
