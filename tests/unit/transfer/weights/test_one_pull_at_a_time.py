"""Two pulls of one model on this machine: the second is told of the first, and writes nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.commands import model_pull
from clusterctl.errors import LockHeld, StepFailed
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transfer.weights.delivery import Destination
from clusterctl.transfer.weights.downloads import only_one
from tests.fakes.hubs import COMMIT, FakeHubs, running_hubs

HOLDER = """
import sys, time
from pathlib import Path
from clusterctl.transfer.weights.downloads import only_one
with only_one(Path(sys.argv[1]), "Org/Tiny"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_names_the_first_and_how_to_wait_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "hf--Org--Tiny@main"
    second = only_one(directory, "Org/Tiny")
    with only_one(directory, "Org/Tiny"), pytest.raises(LockHeld) as raised, second:
        pass
    assert f"(pid {os.getpid()}, since " in raised.value.summary
    assert raised.value.summary.endswith(": model pull Org/Tiny")
    assert f"tail --pid={os.getpid()} -f /dev/null" in str(raised.value.hint)
    with only_one(directory, "Org/Tiny"):
        pass
    assert list(directory.parent.iterdir()) == []


def test_another_version_does_not_wait(tmp_path: Path) -> None:
    with only_one(tmp_path / "a@1", "Org/Tiny"), only_one(tmp_path / "a@2", "Org/Tiny"):
        pass


def test_what_a_killed_pull_held_is_free(tmp_path: Path) -> None:
    directory = tmp_path / "a"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LockHeld, match=rf"pid {process.pid}"), only_one(directory, "Org/Tiny"):
            pass
        process.kill()
        process.wait(10)
    with only_one(directory, "Org/Tiny"):
        pass


def test_a_disk_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    held = only_one(tmp_path / "file" / "a", "Org/Tiny")
    with pytest.raises(StepFailed, match="cannot be locked") as raised, held:
        pass
    assert "XDG_CACHE_HOME" in str(raised.value.hint)


def test_a_download_begins_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = Host(name="gpu1", address="192.0.2.1", role="head")
    inventory = Inventory(cluster="demo", image="vllm:1", accelerator="cpu", hosts=(head,))
    hubs = FakeHubs(models={"Org/Tiny": {"config.json": b"{}", "model.bin": b"w" * 2000}})
    with running_hubs(hubs), ExitStack() as stack:
        monkeypatch.setenv("HF_ENDPOINT", hubs.endpoint)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        pull = model_pull.HubModel("hf", "Org/Tiny", "Tiny")
        source = model_pull.FromHub(pull, Destination(inventory, ()), stack, lambda _: None)
        fetch = source.find({}).fetch
        directory = tmp_path / "clusterctl" / "models" / f"hf--Org--Tiny@{COMMIT}"
        assert fetch
        with only_one(directory, "Org/Tiny"), pytest.raises(LockHeld):
            fetch()
