"""`image cache`: what it prints of layers on this machine, and that it removes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.transfer.blob_store import BlobStore
from tests.unit.cli.conftest import Run


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the command looks for layers."""
    return tmp_path / ".cache" / "clusterctl"


def test_layers_are_shown_and_removed(clusterctl: Run, directory: Path) -> None:
    assert clusterctl("image", "cache").stdout == f"{directory}: no image layers\n"
    BlobStore(directory).keep(bytes(3 << 20))
    shown = clusterctl("image", "cache").stdout
    assert shown.startswith(f"{directory}: 3.0 MiB of image layers, ")
    assert shown.endswith(" free\nremove them: clusterctl image cache --clear\n")
    read = json.loads(clusterctl("image", "cache", "--json").stdout)
    assert (read["directory"], read["size"], read["cleared"]) == (str(directory), 3 << 20, False)
    removed = clusterctl("image", "cache", "--clear").stdout
    assert removed == f"{directory}: 3.0 MiB of image layers removed\n"
    assert clusterctl("image", "cache").stdout == f"{directory}: no image layers\n"


def test_a_run_that_uses_them_keeps_them(clusterctl: Run, directory: Path) -> None:
    store = BlobStore(directory)
    store.keep(bytes(1000))
    ran = clusterctl("image", "cache", "--clear")
    assert ran.returncode == 7
    assert f"error: another clusterctl is using the layers in {directory}" in ran.stderr
    assert store.recall("anything") is None
    assert clusterctl("image", "cache").stdout.startswith(f"{directory}: 1000 B of image layers")
