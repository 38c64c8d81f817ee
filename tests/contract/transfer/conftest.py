"""Chains of real relay processes on this machine."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pytest

from clusterctl.inventory.model import Host
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import FilePlace, Link, LinkProgress
from clusterctl.transfer.content import CHUNK, Blob
from clusterctl.transport.local import LocalTransport

FETCH_LIMIT = 120.0
MIB = 1 << 20


@dataclass
class MemorySource:
    """A source of random blobs. `gate` is called before each piece, with blob and position."""

    data: dict[str, bytes] = field(default_factory=dict)
    gate: Callable[[Blob, int], None] = lambda _blob, _position: None

    def add(self, size: int) -> Blob:
        content = os.urandom(min(size, MIB)) * (size // MIB + 1)
        # Random at both ends, so that two blobs of a size differ and a shifted one shows.
        content = content[: max(0, size - 16)] + os.urandom(min(size, 16))
        blob = Blob(f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))
        self.data[blob.digest] = content
        return blob

    def open(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        content = self.data[blob.digest]
        for start in range(offset, len(content), CHUNK):
            self.gate(blob, start)
            yield content[start : start + CHUNK]


class RunningChain(Chain):
    """Runs while the context is entered. After an error caches are kept."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(keep=error is not None)


@dataclass
class Bench:
    """Hosts h1, h2, ... that are all this machine, each with its own folder."""

    folder: Path
    source: MemorySource = field(default_factory=MemorySource)
    said: list[tuple[str, str]] = field(default_factory=list)
    seen: list[LinkProgress] = field(default_factory=list)

    def link(self, number: int, python: Sequence[str] = (), **options: object) -> Link:
        """The host h`number`; its relay has a variable RELAY that says so."""
        name = f"h{number}"
        return Link(
            LocalTransport(Host(name=name, address="localhost")),
            "127.0.0.1",
            cache=str(self.folder / name),
            python=("env", f"RELAY={self.folder}/{name}", *(python or ("python3",))),
            **options,  # type: ignore[arg-type]
        )

    def links(self, count: int) -> list[Link]:
        return [self.link(number) for number in range(1, count + 1)]

    def chain(
        self, links: Sequence[Link], blobs: Sequence[Blob], **options: object
    ) -> RunningChain:
        settings = {"source": self.source, "say": self._hear, "report": self.seen.append}
        return RunningChain(links, blobs, **{**settings, **options})  # type: ignore[arg-type]

    def bring(self, chain: Chain, hosts: Sequence[str], blobs: Sequence[Blob]) -> None:
        """Fetch everything on all hosts at once, and compare every byte."""
        found: dict[str, dict[str, str]] = {}
        digests = [blob.digest for blob in blobs]

        def fetch(host: str) -> None:
            found[host] = chain.fetch(host, digests, FETCH_LIMIT)

        threads = [threading.Thread(target=fetch, args=(host,)) for host in hosts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == sorted(hosts)
        for paths in found.values():
            for digest, path in paths.items():
                assert Path(path).read_bytes() == self.source.data[digest]

    def pid(self, number: int) -> int:
        """The process of a host's relay."""
        mark = f"RELAY={self.folder}/h{number}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "environ").read_bytes().split(b"\0")
                name = (entry / "comm").read_text()
            except OSError:
                continue
            if mark in words and name.startswith("python"):
                return int(entry.name)
        raise AssertionError(f"no relay of h{number} runs")

    def _hear(self, host: str, text: str) -> None:
        self.said.append((host, text))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def place_of() -> Callable[[Path, bytes, int], FilePlace]:
    """Where a file is to be, with the digests of its pieces."""

    def make(path: Path, content: bytes, piece: int) -> FilePlace:
        pieces = [content[at : at + piece] for at in range(0, len(content), piece)]
        return FilePlace(str(path), tuple(hashlib.sha256(each).hexdigest() for each in pieces))

    return make
