"""Ctrl-C while a hub's files come: nothing is waited for that takes long, and what came stays."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.transfer.weights.download import Downloads
from clusterctl.transfer.weights.hashing import HashCache
from clusterctl.transfer.weights.hub import HubFile

SIZE = 1000
PIECE_EVERY = 0.01
"""Seconds: all of the slow file would take ten."""


class Slowly:
    """A hub: one file comes byte by byte, and at another one the user loses patience."""

    def __init__(self) -> None:
        self._began = threading.Event()
        self._never = threading.Event()

    def __call__(self, url: str, headers: Mapping[str, str], offset: int) -> Iterator[bytes]:
        if url == "impatient":
            assert self._began.wait(10)
            raise KeyboardInterrupt
        for _ in range(SIZE):
            yield b"x"
            self._began.set()
            self._never.wait(PIECE_EVERY)


def test_an_interrupted_download_ends_at_its_next_piece(tmp_path: Path) -> None:
    files = [HubFile("a.json", 1, "impatient"), HubFile("b.bin", SIZE, "slow")]
    coming = Downloads(tmp_path, Slowly(), {}, cache=HashCache(tmp_path / "hashes"))
    with pytest.raises(KeyboardInterrupt):
        coming.run(files)
    assert not (tmp_path / "b.bin").exists()
    assert 0 < (tmp_path / "b.bin.part").stat().st_size < SIZE
