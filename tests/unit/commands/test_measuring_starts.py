"""`bench --start`: what a cold start needs, and what the table says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.commands.bench_start import clear, hosts_to_clear
from clusterctl.errors import UsageError
from clusterctl.operations.restarting import plan_restart
from clusterctl.reporting.bench_view import start_lines
from tests.fakes.transport import starts
from tests.unit.planning.test_prepared_service import Cluster


def test_caches_are_removed_where_the_replicas_are() -> None:
    cluster = Cluster("nvidia")
    survey = cluster.survey(cluster.prepare(tp=1))
    assert hosts_to_clear(plan_restart(survey, "qwen")) == ["gpu1"]

    cluster.transports["gpu1"].on(starts("rm"))
    clear(survey, "gpu1")

    call = cluster.transports["gpu1"].calls[-1]
    caches = "/var/lib/clusterctl/caches/demo"
    assert call.argv == ("rm", "-rf", "--", f"{caches}/vllm", f"{caches}/triton")
    assert call.sudo


def test_nobody_else_loses_what_it_compiled() -> None:
    cluster = Cluster("nvidia")
    plan = cluster.prepare(tp=1)
    other = replace(plan.document, name="other", port=8200)
    with pytest.raises(UsageError, match="other on gpu1 would lose what it has compiled") as caught:
        hosts_to_clear(plan_restart(cluster.survey(plan, other), "qwen"))
    assert "clusterctl stop other" in str(caught.value.hint)


def test_what_one_replica_compiled_makes_no_cold_start_of_the_next() -> None:
    cluster = Cluster("nvidia")
    plan = plan_restart(cluster.survey(cluster.prepare(tp=1)), "qwen")
    twice = replace(plan, replicas=[*plan.replicas, *plan.replicas])
    with pytest.raises(UsageError, match="another replica on gpu1 starts first") as caught:
        hosts_to_clear(twice)
    assert caught.value.hint == f"clusterctl bench {plan.replicas[0].name} --start"


def test_a_cache_that_is_elsewhere_is_no_cold_start() -> None:
    cluster = Cluster("nvidia")
    plan = cluster.prepare(tp=1)
    cluster.inventory = cluster.inventory.model_copy(update={"env": {"TRITON_CACHE_DIR": "/x"}})
    with pytest.raises(UsageError, match="TRITON_CACHE_DIR is set"):
        hosts_to_clear(plan_restart(cluster.survey(plan), "qwen"))


def test_each_start_is_a_row_of_medians() -> None:
    def start(seconds: float, *, cold: bool, **stages: float) -> dict[str, object]:
        return {"replica": "chat", "cold": cold, "seconds": seconds, "stages": stages}

    lines = start_lines(
        [
            start(40.0, cold=True, imports=20.0, ray=10.0, graphs=10.0),
            start(24.0, cold=False, imports=14.0, ray=10.0),
            start(44.0, cold=True, imports=22.0, ray=10.0, graphs=12.0),
            start(25.0, cold=False, imports=15.0, ray=10.0),
        ]
    )

    assert lines == [
        "replica  start  in all               imports  ray   graphs",
        "chat     cold   42.0 (40.0 to 44.0)  21.0     10.0  11.0",
        "chat     warm   24.5 (24.0 to 25.0)  14.5     10.0  0.0",
        "seconds, from the start of vLLM; cold: nothing compiled, but files may be in memory",
    ]
