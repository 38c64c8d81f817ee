"""What `adapter add` refuses: all of it, before anything is sent."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from clusterctl.commands import adapter as command
from clusterctl.errors import ClusterctlError, Problems
from clusterctl.planning.service_plan import ServicePlan
from clusterctl.serving.adapters import LocalAdapter, read_adapter
from clusterctl.transport.credentials import Credentials
from tests.unit.planning.test_kinds_and_adapters import with_adapters
from tests.unit.planning.test_prepared_service import Cluster
from tests.unit.serving.test_adapters import adapter


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("nvidia")


def refused(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, plan: ServicePlan, *adapters: LocalAdapter
) -> str:
    """Return why `adapter add` refuses these for the service of the plan."""

    def sends(*_: Any, **__: Any) -> None:
        raise AssertionError("something is sent")

    monkeypatch.setattr(command, "connected", lambda *_: nullcontext(cluster.transports))
    monkeypatch.setattr(command, "take_survey", lambda *_: cluster.survey(plan))
    monkeypatch.setattr(command, "deliver", sends)
    with pytest.raises(ClusterctlError) as caught:
        command.add(cluster.inventory, "qwen", adapters, Credentials(), lambda _: None)
    found = caught.value
    return "\n".join(map(str, found.errors if isinstance(found, Problems) else [found]))


def test_all_reasons_are_told_at_once(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, tmp_path: Path
) -> None:
    plan = cluster.prepare("--enable-lora", "--max-lora-rank", "32", tp=1)
    fits = read_adapter("fits", adapter(tmp_path / "fits", rank=32))
    large = read_adapter("large", adapter(tmp_path / "large", rank=64))
    other = read_adapter("other", adapter(tmp_path / "other", takes=4096))

    said = refused(monkeypatch, cluster, plan, fits, large, other)

    assert "large has rank 64, and the service was started for ranks to 32" in said
    assert "other is for another model: its q_proj takes 4096 numbers" in said
    assert "fits" not in said


def test_a_name_that_is_taken_is_refused(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, tmp_path: Path
) -> None:
    plan = with_adapters(cluster.prepare("--enable-lora", tp=1), sql="/data/models/adapters/sql-1")
    model = read_adapter("qwen", adapter(tmp_path / "qwen"))
    again = read_adapter("sql", adapter(tmp_path / "sql"))

    said = refused(monkeypatch, cluster, plan, model, again)

    assert "the name qwen is taken by the service qwen" in said
    assert "the name sql is taken by the service qwen" in said


def test_a_service_that_takes_none_names_the_flag(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, tmp_path: Path
) -> None:
    sql = read_adapter("sql", adapter(tmp_path / "sql"))

    said = refused(monkeypatch, cluster, cluster.prepare(tp=1), sql)

    assert "qwen was started without --enable-lora, so it takes no adapters" in said
