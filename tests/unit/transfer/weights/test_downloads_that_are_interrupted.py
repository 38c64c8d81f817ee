"""Ctrl-C while a hub's files come: nothing is waited for that takes long, and what came stays."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from clusterctl.transfer.weights.downloads import Downloads
from clusterctl.transfer.weights.hashing import HashCache
from clusterctl.transfer.weights.hub import hub_session, needed
from clusterctl.transfer.weights.huggingface import HuggingFace
from tests.fakes.hubs import FakeHubs, running_hubs

WEIGHTS = b"w" * (8 << 20)


def test_an_interrupted_download_ends_at_its_next_bytes(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    # Under nohup and in the background Python leaves SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    told: list[int] = []

    def lose_patience(have: int) -> None:
        impatient = max(told, default=0) <= len(WEIGHTS) // 8 < have
        told.append(have)
        if impatient:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    hubs = FakeHubs(models={"Org/Tiny": {"config.json": b"{}", "model.bin": WEIGHTS}})
    hubs.slow = {"model.bin"}
    with running_hubs(hubs), hub_session():
        hub = HuggingFace(hubs.endpoint, False)
        listing = needed(hub.listing("Org/Tiny", None))
        cache = HashCache(tmp_path / "hashes")
        coming = Downloads(tmp_path, hub, listing, "Tiny", told=lose_patience, cache=cache)
        with pytest.raises(KeyboardInterrupt):
            coming.begin()
        coming.stop()
    assert not (tmp_path / "model.bin").exists()
    assert 0 < (tmp_path / "model.bin.part").stat().st_size < len(WEIGHTS)
