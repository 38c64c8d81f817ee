"""What `adapter add` plans, before it sends anything, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.commands.adapter import plan_adding
from clusterctl.errors import ClusterctlError, Problems
from clusterctl.planning.service_plan import ServicePlan
from clusterctl.serving.adapters import LocalAdapter, read_adapter
from tests.unit.planning.test_kinds_and_adapters import with_adapters
from tests.unit.planning.test_prepared_service import Cluster
from tests.unit.serving.test_adapters import adapter


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("nvidia")


def refused(cluster: Cluster, plan: ServicePlan, *adapters: LocalAdapter) -> str:
    """Return why these are refused for the service of the plan."""
    with pytest.raises(ClusterctlError) as caught:
        plan_adding(cluster.survey(plan), "qwen", adapters)
    found = caught.value
    return "\n".join(map(str, found.errors if isinstance(found, Problems) else [found]))


def test_all_reasons_are_told_at_once(cluster: Cluster, tmp_path: Path) -> None:
    plan = cluster.prepare("--enable-lora", "--max-lora-rank", "32", tp=1)
    fits = read_adapter("fits", adapter(tmp_path / "fits", rank=32))
    large = read_adapter("large", adapter(tmp_path / "large", rank=64))
    other = read_adapter("other", adapter(tmp_path / "other", takes=4096))

    said = refused(cluster, plan, fits, large, other)

    assert "large has rank 64, and the service was started for ranks to 32" in said
    assert "other is for another model: its q_proj takes 4096 numbers" in said
    assert "fits" not in said


def test_a_name_that_is_taken_is_refused(cluster: Cluster, tmp_path: Path) -> None:
    plan = with_adapters(cluster.prepare("--enable-lora", tp=1), sql="/data/models/adapters/sql-1")
    model = read_adapter("qwen", adapter(tmp_path / "qwen"))
    again = read_adapter("sql", adapter(tmp_path / "sql"))

    said = refused(cluster, plan, model, again)

    assert "the name qwen is taken by the service qwen" in said
    assert "the name sql is taken by the service qwen" in said


def test_a_service_that_takes_none_names_the_flag(cluster: Cluster, tmp_path: Path) -> None:
    sql = read_adapter("sql", adapter(tmp_path / "sql"))

    said = refused(cluster, cluster.prepare(tp=1), sql)

    assert "qwen was started without --enable-lora, so it takes no adapters" in said


def test_those_that_it_has_stay_and_the_same_again_changes_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    sql = read_adapter("sql", adapter(tmp_path / "sql"))
    code = read_adapter("code", adapter(tmp_path / "code"))
    has = {"sql": f"/data/models/{sql.path}"}
    survey = cluster.survey(with_adapters(cluster.prepare("--enable-lora", tp=1), **has))

    assert plan_adding(survey, "qwen", [sql]).lines == []
    more = plan_adding(survey, "qwen", [sql, code])
    assert more.lines == ["load code"]
    assert more.added == ["code"]  # All that is withdrawn if a replica cannot load it
