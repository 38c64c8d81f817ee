"""When the GCS gets the tables of before, and when not."""

from __future__ import annotations

import io
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.node.files import Journal
from clusterctl.node.gcs_store import FAILED_STARTS, LEAST_FREE, GcsStore

TOKEN = "12345678"


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    tables = tmp_path / "tables"
    tables.mkdir()
    assert store(tables).env(TOKEN)["RAY_gcs_storage_path"] == str(tables)
    (tables / "MANIFEST-1").write_text("tables")
    (tables / "lost").mkdir()
    return tables


def store(tables: Path, ray: str = "2.60.0") -> GcsStore:
    return GcsStore(tables, ray, Journal(tables.parent / "journal.jsonl", "gpu1", io.StringIO()))


def told(tables: Path) -> list[str]:
    journal = tables.parent / "journal.jsonl"
    lines = journal.read_text().splitlines() if journal.exists() else []
    return [json.loads(line)["text"] for line in lines]


def test_tables_are_found_again(tables: Path) -> None:
    assert store(tables).env(TOKEN)["RAY_gcs_storage"] == "rocksdb"
    assert (tables / "MANIFEST-1").exists()
    assert told(tables) == []


@pytest.mark.parametrize(
    ("ray", "token", "of"),
    [("2.61.0", TOKEN, "Ray 2.60.0, token 12345678"), ("2.60.0", "of-another-cluster", TOKEN)],
)
def test_of_another_ray_or_cluster_they_are_deleted(
    tables: Path, ray: str, token: str, of: str
) -> None:
    assert store(tables, ray).env(token)["RAY_gcs_storage"] == "rocksdb"
    assert [entry.name for entry in tables.iterdir()] == ["of"]
    assert of in told(tables)[0]


def test_ones_with_which_ray_does_not_start_are_deleted(tables: Path) -> None:
    again = store(tables)
    for _ in range(FAILED_STARTS):
        assert again.env(TOKEN)
        assert (tables / "MANIFEST-1").exists()
        again.failed()

    assert again.env(TOKEN)["RAY_gcs_storage"] == "rocksdb"
    assert not (tables / "MANIFEST-1").exists()
    assert "Ray did not start with them 3 times in a row" in told(tables)[0]


@pytest.mark.parametrize("ray", ["2.56.1", "2.40.0", ""])
def test_a_ray_that_does_not_know_them_gets_none(tables: Path, ray: str) -> None:
    assert store(tables, ray).env(TOKEN) == {}


def test_without_a_directory_they_are_in_memory(tmp_path: Path) -> None:
    assert store(tmp_path / "none").env(TOKEN) == {}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    size = LEAST_FREE + 2**20
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tables", disk], check=True)
    yield disk
    subprocess.run(["umount", disk], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a disk")
def test_on_a_full_disk_they_are_in_memory_and_none_are_left(small_disk: Path) -> None:
    tables = small_disk / "tables"
    tables.mkdir()
    again = store(tables)
    assert again.env(TOKEN)
    (tables / "MANIFEST-1").write_text("tables")
    (small_disk / "logs").write_bytes(b"x" * 2**21)

    assert again.env(TOKEN) == again.env(TOKEN) == {}
    assert not list(tables.iterdir())
    assert [text.partition(":")[0] for text in told(tables)] == ["kept in memory"]

    (small_disk / "logs").unlink()
    assert again.env(TOKEN)["RAY_gcs_storage"] == "rocksdb"
