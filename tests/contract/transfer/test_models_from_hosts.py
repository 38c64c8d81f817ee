"""A model that a host has: found there by any of its names, hashed once, passed on by that host."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from clusterctl.engine.events import Event, StepProgress
from clusterctl.errors import RequirementsNotMet
from clusterctl.transfer.weights.manifest import FILE_NAME, parse
from clusterctl.transfer.weights.model_sources import of_host
from tests.contract.transfer.hosts_here import Cluster

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts directories")

INDEX = '{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}'


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, 2)


def plain(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "model.bin").write_bytes(os.urandom(3_000_000))
    (directory / "model.bin.part").write_bytes(b"left over")
    return directory


def test_a_model_is_found_by_its_short_name_and_goes_to_the_others(cluster: Cluster) -> None:
    plain(cluster.own("h1") / "Qwen3-8B")
    told: list[Event] = []
    view = cluster.views["h1"]
    supply = of_host("qwen3-8b", str(cluster.models), view, None, told.append)
    outcome, sent = cluster.push(supply)
    assert (outcome.changed, sent) == (1, 0)
    there = cluster.own("h2") / "Qwen3-8B"
    assert {path.name for path in there.iterdir()} == {"config.json", "model.bin", FILE_NAME}
    assert any(isinstance(event, StepProgress) for event in told)
    told.clear()
    again = of_host("qwen3-8b", str(cluster.models), view, None, told.append)
    assert told == [], "it was hashed again"
    assert cluster.push(again)[0].changed == 0


def test_a_cache_entry_keeps_its_links(cluster: Cluster, tmp_path: Path) -> None:
    entry = cluster.own("h1") / "models--Org--Tiny"
    snapshot = entry / "snapshots" / "c0ffee"
    snapshot.mkdir(parents=True)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("c0ffee")
    blobs = plain(tmp_path / "files").rename(entry / "blobs")
    for name in ("config.json", "model.bin"):
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    supply = of_host(
        "Org/Tiny", str(cluster.models), cluster.views["h1"], None, cluster.events.append
    )
    assert cluster.push(supply)[0].changed == 1
    there = cluster.own("h2") / entry.name / "snapshots" / "c0ffee" / "model.bin"
    assert there.is_symlink()
    assert there.read_bytes() == (blobs / "model.bin").read_bytes()
    text = (cluster.own("h2") / entry.name / FILE_NAME).read_text()
    assert {link.path for link in parse(text).links} == {
        "snapshots/c0ffee/config.json",
        "snapshots/c0ffee/model.bin",
    }


def test_a_shard_that_lacks_there_is_named(cluster: Cluster) -> None:
    half = plain(cluster.own("h1") / "Half")
    shutil.move(half / "model.bin", half / "model-1.safetensors")
    (half / "model.safetensors.index.json").write_text(INDEX)
    with pytest.raises(RequirementsNotMet, match=r"it lacks model-2\.safetensors") as raised:
        of_host("Half", str(cluster.models), cluster.views["h1"], None, cluster.events.append)
    assert raised.value.host == "h1"


def test_a_model_that_is_not_there(cluster: Cluster) -> None:
    with pytest.raises(RequirementsNotMet, match="Nothing is not on h1"):
        of_host("Nothing", str(cluster.models), cluster.views["h1"], None, cluster.events.append)


def test_another_name_for_the_hosts_model(cluster: Cluster) -> None:
    plain(cluster.own("h1") / "mine")
    supply = of_host(
        "mine", str(cluster.models), cluster.views["h1"], "Org/Mine", cluster.events.append
    )
    assert cluster.push(supply)[0].changed == 2
    for name in cluster.views:
        assert (cluster.own(name) / "Org" / "Mine" / "model.bin").is_file()
