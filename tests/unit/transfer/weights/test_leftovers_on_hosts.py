"""What runs that were cut short left on a host of a model that is whole there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.engine.step import Change, HostView
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.on_host import IDLE_AFTER, INCOMING, look_at_models
from clusterctl.transfer.weights.receiver import Supply, WeightsReceiver
from clusterctl.transport.local import LocalTransport
from tests.fakes.host_facts import host_facts
from tests.unit.transfer.weights.conftest import MakeModel, deliver, hashed

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts are worked on as root")

Leave = Callable[[str], Path]


@pytest.fixture
def manifest(make_model: MakeModel, here: LocalTransport, models: str, tmp_path: Path) -> Manifest:
    """Of a model that the host has."""
    tree, manifest = hashed(make_model(), tmp_path)
    deliver(tree, manifest, here, models)
    return manifest


@pytest.fixture
def leave(models: str) -> Leave:
    """Makes a staged tree that nobody has written to for long."""

    def left(name: str) -> Path:
        tree = Path(models, INCOMING, name)
        tree.mkdir(parents=True)
        file = tree / "model-1.safetensors"
        file.write_bytes(bytes(1 << 20))
        when = time.time() - 60 * (IDLE_AFTER + 1)
        os.utime(file, (when, when))
        os.utime(tree, (when, when))
        return tree

    return left


def delivery(manifest: Manifest, view: HostView, models: str) -> Transfer:
    name, supply = view.host.name, Supply(manifest, "here")
    route = Route({name: view.transport}, lambda _: "127.0.0.1")
    return Transfer(WeightsReceiver(supply, {name: view}, models, route), route)


@pytest.mark.parametrize("name", ["Tiny-1B.0123456789ab", "Tiny-1B.0123456789ab.old"])
def test_they_are_named_and_removed(
    name: str, manifest: Manifest, leave: Leave, here: LocalTransport, models: str
) -> None:
    left, other = leave(name), leave("Tiny-2B.0123456789ab")
    view = HostView(here.host, host_facts(), here)
    with delivery(manifest, view, models) as step:
        change = step.check(view)
        assert isinstance(change, Change)
        assert change.summary == (
            "remove what an interrupted run left of Tiny-1B: up to 1.0 MiB, "
            "not written to for 60 minutes"
        )
        assert not change.disruptive
        assert left.exists()
        step.apply(view, change)
        assert step.check(view) is None
    assert not left.exists()
    assert other.exists()


@pytest.mark.parametrize("path", [".", "model-1.safetensors"])
def test_what_somebody_may_still_write_stays(
    path: str, manifest: Manifest, leave: Leave, here: LocalTransport, models: str
) -> None:
    left = leave("Tiny-1B.0123456789ab")
    os.utime(left / path)
    found = look_at_models(here, models)
    assert (list(found.incoming), found.idle) == ([left.name], frozenset())
    view = HostView(here.host, host_facts(), here)
    assert delivery(manifest, view, models).check(view) is None
    assert left.exists()


def test_a_tree_that_goes_while_it_is_measured_is_not_there(
    leave: Leave, here: LocalTransport, models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when another run moves it to its name."""
    left = leave("Tiny-1B.0123456789ab")
    du = tmp_path / "bin" / "du"
    du.parent.mkdir()
    du.write_text(f'#!/bin/sh\nrm -r "{left}"\nexec /usr/bin/du "$@"\n')
    du.chmod(0o755)
    monkeypatch.setenv("PATH", f"{du.parent}:{os.environ['PATH']}")

    assert look_at_models(here, models).incoming == {}
    assert not left.exists()
