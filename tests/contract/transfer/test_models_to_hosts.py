"""Models by real relays and scripts, to hosts that are this machine, each with a models directory
of its own at the same path."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.engine.events import Event, StepProgress
from clusterctl.engine.executor import RunOutcome, execute
from clusterctl.engine.plan import Stage, plan
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, Problems, RequirementsNotMet
from clusterctl.transfer.weights import staging
from clusterctl.transfer.weights.hub import hub_session, needed
from clusterctl.transfer.weights.hub_source import HubSource
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.manifest import FILE_NAME, Manifest, parse
from clusterctl.transfer.weights.receiver import Supply
from clusterctl.transport.base import Transport
from tests.contract.transfer.hosts_here import Cluster
from tests.contract.transport.sshd import eventually
from tests.fakes.hubs import FakeHubs, running_hubs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts directories")

MIB = 1 << 20


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of more than one piece, with an empty file and equal ones."""
    directory = tmp_path / "Tiny-1B"
    directory.mkdir()
    (directory / "config.json").write_text('{"model_type": "llama"}')
    (directory / "tokenizer.json").write_text("{}")
    (directory / "generation_config.json").write_text("{}")
    (directory / "__init__.py").write_text("")
    (directory / "model.bin").write_bytes(os.urandom(MIB) * 70)
    return directory


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, 3)


def same(directory: Path, there: Path) -> bool:
    names = {path.name for path in directory.iterdir()}
    assert {path.name for path in there.iterdir()} == {*names, FILE_NAME}
    return all((there / name).read_bytes() == (directory / name).read_bytes() for name in names)


def test_every_host_gets_it_once_and_a_second_push_moves_nothing(
    cluster: Cluster, model: Path
) -> None:
    supply = cluster.supply(model)
    outcome, sent = cluster.push(supply)
    assert (outcome.changed, dict(outcome.set_aside)) == (3, {})
    assert sent == sum(blob.size for blob in supply.manifest.blobs)
    for name in cluster.views:
        assert same(model, cluster.own(name) / "Tiny-1B")
        text = (cluster.own(name) / "Tiny-1B" / FILE_NAME).read_text()
        assert parse(text) == supply.manifest
        assert list((cluster.own(name) / ".clusterctl-incoming").iterdir()) == []
    assert cluster.push(supply) == (RunOutcome(0, {}), 0)


def test_the_plan_says_what_would_be_brought_and_writes_nothing(
    cluster: Cluster, model: Path
) -> None:
    stage = Stage("Model", tuple(cluster.views), (cluster.delivery(cluster.supply(model)),))
    found = plan((stage,), cluster.views)
    assert len(found.changes) == 3
    assert "bring Tiny-1B: 0.07 GiB in 4 files, from here" in repr(found.changes[0].change)
    assert [list(cluster.own(name).iterdir()) for name in cluster.views] == [[], [], []]


def test_a_host_that_has_it_heads_the_chain(cluster: Cluster, model: Path) -> None:
    supply = cluster.supply(model)
    first = cluster.delivery(supply, "h2")
    with first:
        execute((Stage("Model", ("h2",), (first,)),), cluster.views, cluster.events.append)
    outcome, sent = cluster.push(supply)
    assert (outcome.changed, sent) == (2, 0)
    assert all(same(model, cluster.own(name) / "Tiny-1B") for name in cluster.views)


def test_a_new_version_sends_what_is_new_and_replaces_the_tree(
    cluster: Cluster, model: Path
) -> None:
    cluster.push(cluster.supply(model))
    (model / "config.json").write_text('{"model_type": "llama", "new": 1}')
    (model / "tokenizer.json").unlink()
    supply = cluster.supply(model)
    change = cluster.delivery(supply).check(cluster.views["h1"])
    assert isinstance(change, Change)
    assert change.disruptive
    _, sent = cluster.push(supply)
    assert sent == (model / "config.json").stat().st_size
    assert all(same(model, cluster.own(name) / "Tiny-1B") for name in cluster.views)


def test_a_relay_that_dies_while_the_model_is_put_in_place_brings_no_second_copy(
    cluster: Cluster, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settle, supply = staging.settle, cluster.supply(model)

    def settle_and_kill(transport: Transport, manifest: Manifest, directory: str) -> None:
        settle(transport, manifest, directory)
        name = transport.host.name
        before = cluster.relay(name)
        assert before
        os.kill(before, signal.SIGKILL)
        assert eventually(lambda: cluster.relay(name) not in (None, before))
        time.sleep(1.0)  # for what it might begin to fetch

    monkeypatch.setattr(staging, "settle", settle_and_kill)
    outcome, sent = cluster.push(supply)
    assert (outcome.changed, dict(outcome.set_aside)) == (3, {})
    assert sent == sum(blob.size for blob in supply.manifest.blobs)
    for name in cluster.views:
        assert same(model, cluster.own(name) / "Tiny-1B")
        assert list((cluster.own(name) / ".clusterctl-incoming").iterdir()) == []


def test_what_was_left_on_one_host_goes_while_another_gets_the_model(
    cluster: Cluster, model: Path
) -> None:
    supply = cluster.supply(model)
    cluster.push(supply)
    left = cluster.own("h1") / ".clusterctl-incoming" / "Tiny-1B.0123456789ab.old"
    left.mkdir()
    os.utime(left, (0, 0))
    shutil.rmtree(cluster.own("h2") / "Tiny-1B")
    outcome, sent = cluster.push(supply)
    assert (outcome.changed, dict(outcome.set_aside), sent) == (2, {}, 0)
    assert not left.exists()
    assert all(same(model, cluster.own(name) / "Tiny-1B") for name in cluster.views)
    assert cluster.push(supply) == (RunOutcome(0, {}), 0)


def test_all_hosts_without_room_are_named_before_the_first_byte(
    cluster: Cluster, model: Path
) -> None:
    supply = cluster.supply(model)
    large = tuple(
        replace(file, size=file.size * 2**20) if file.path == "model.bin" else file
        for file in supply.manifest.files
    )
    delivery = cluster.delivery(replace(supply, manifest=replace(supply.manifest, files=large)))
    stage = Stage("Model", tuple(cluster.views), (delivery,))
    with pytest.raises(Problems) as raised:
        plan((stage,), cluster.views)
    assert [error.host for error in raised.value.errors] == ["h1", "h2", "h3"]
    assert all(isinstance(error, RequirementsNotMet) for error in raised.value.errors)
    assert all("are free" in error.summary for error in raised.value.errors)


SLOW = """\
#!{python}
import hashlib, os, sys, time

real = hashlib.sha256


def sha256(*data):
    deadline = time.monotonic() + 60
    while not os.path.exists("{told}") and time.monotonic() < deadline:
        time.sleep(0.1)
    return real(*data)


hashlib.sha256 = sha256
code = sys.argv.index("-c") + 1
sys.argv = sys.argv[code:]
exec(sys.argv[0])
"""
"""A host's Python that hashes nothing until it was told how far hashing is."""


def test_each_host_says_in_its_own_line_how_far_hashing_there_is(
    cluster: Cluster, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python3"
    program.write_text(SLOW.format(python=sys.executable, told=tmp_path / "told"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name in ("h1", "h2"):
        shutil.copytree(model, cluster.own(name) / "Tiny-1B")
    told: set[str] = set()

    def see(event: Event) -> None:
        own = f"hashing the files that {getattr(event, 'host', '')} has: "
        if isinstance(event, StepProgress) and event.text.startswith(own):
            told.add(event.host)
        if told == {"h1", "h2"}:
            (tmp_path / "told").touch()

    assert cluster.run(cluster.delivery(cluster.supply(model)), see).changed == 3
    assert told == {"h1", "h2"}


def test_a_file_that_changes_while_it_is_sent_is_named(cluster: Cluster, model: Path) -> None:
    supply = cluster.supply(model)
    with (model / "model.bin").open("r+b") as file:
        file.seek(60 * MIB)
        file.write(b"written meanwhile")
    outcome, _ = cluster.push(supply)
    errors: list[ClusterctlError] = list(outcome.set_aside.values())
    assert len(errors) == 3
    assert all("model.bin changed while it was read" in error.summary for error in errors)
    assert not any((cluster.own(name) / "Tiny-1B").exists() for name in cluster.views)
    mended, _ = cluster.push(cluster.supply(model))
    assert mended.changed == 3


def test_hosts_have_the_first_bytes_before_the_hub_has_sent_the_last(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    weights = os.urandom(MIB) * 70
    hubs = FakeHubs(models={"Org/Tiny": {"config.json": b"{}", "model.bin": weights}})
    hubs.held = {"model.bin"}
    with ExitStack() as stack:
        stack.enter_context(running_hubs(hubs))
        stack.enter_context(hub_session())
        hub = HuggingFace(hubs.endpoint, False)
        listing = needed(hub.listing("Org/Tiny", None))
        arriving = HubSource(hub, listing, say=lambda _: None, cache=cluster.cache)
        supply = Supply(arriving.manifest("Tiny"), "hf", arriving)
        sink = _opens(hubs, "h2", tmp_path)
        delivery = cluster.delivery(supply)
        stage = Stage("Model", tuple(cluster.views), (delivery,))
        with delivery:
            execute((stage,), cluster.views, sink)
    for name in cluster.views:
        assert (cluster.own(name) / "Tiny" / "model.bin").read_bytes() == weights
        manifest = parse((cluster.own(name) / "Tiny" / FILE_NAME).read_text())
        assert manifest == supply.manifest
        assert manifest.origin == listing.origin


def _opens(hubs: FakeHubs, host: str, folder: Path) -> Callable[[Event], None]:
    """Lets the hub go on once bytes of what it sent so far are on `host`'s disk."""

    def see(event: Event) -> None:
        if isinstance(event, StepProgress) and event.host == host:
            parts = list((folder / host).rglob("model.bin.part"))
            if any(part.stat().st_blocks for part in parts):
                hubs.hold.set()

    return see


def test_what_hosts_have_of_a_new_revision_is_not_downloaded(
    cluster: Cluster, tmp_path: Path
) -> None:
    weights = os.urandom(MIB) * 70
    (tmp_path / "Tiny").mkdir()
    (tmp_path / "Tiny" / "model.bin").write_bytes(weights)
    (tmp_path / "Tiny" / "config.json").write_text('{"old": 1}')
    cluster.push(cluster.supply(tmp_path / "Tiny"))
    hubs = FakeHubs(models={"Org/Tiny": {"config.json": b"{}", "model.bin": weights}})
    with running_hubs(hubs), hub_session():
        hub = HuggingFace(hubs.endpoint, False)
        listing = needed(hub.listing("Org/Tiny", None))
        arriving = HubSource(hub, listing, say=lambda _: None, cache=cluster.cache)
        outcome, sent = cluster.push(Supply(arriving.manifest("Tiny"), "hf", arriving))
    assert (outcome.changed, sent) == (3, 2)
    assert not [line for line in hubs.asked if "model.bin" in line]
    assert (cluster.own("h3") / "Tiny" / "config.json").read_text() == "{}"
