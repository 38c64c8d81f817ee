"""Blobs in a store: whole or on their way, whoever fetches them."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import LockHeld, RequirementsNotMet, StepFailed
from clusterctl.local_cache import cache_directory
from clusterctl.transfer.blob_store import BlobStore, WrongBytes
from clusterctl.transfer.content import Blob
from tests.fakes.image_archives import sha256

DATA = bytes(range(256)) * 10_000
BLOB = Blob(sha256(DATA), len(DATA))


def pieces(offset: int, data: bytes = DATA) -> Iterator[bytes]:
    for start in range(offset, len(data), 100_000):
        yield data[start : start + 100_000]


def test_it_goes_on_where_it_stopped(store: BlobStore) -> None:
    def broken(offset: int) -> Iterator[bytes]:
        yield from pieces(offset, DATA[:1_000_000])
        raise StepFailed("the link is down")

    with pytest.raises(StepFailed, match="link"):
        store.fill(BLOB, broken)
    assert not store.holds(BLOB)
    asked: list[int] = []

    def rest(offset: int) -> Iterator[bytes]:
        asked.append(offset)
        return pieces(offset)

    path = store.fill(BLOB, rest)
    assert asked == [1_000_000]
    assert path.read_bytes() == DATA
    assert b"".join(store.open(BLOB, 7)) == DATA[7:]


def test_what_is_there_is_not_fetched(store: BlobStore) -> None:
    store.fill(BLOB, pieces)
    store.fill(BLOB, lambda _: pytest.fail("fetched again"))


@pytest.mark.parametrize("wrong", [DATA[:-1] + b"x", DATA + b"more"])
def test_wrong_bytes_are_thrown_away(store: BlobStore, wrong: bytes) -> None:
    with pytest.raises(WrongBytes, match="arrived with a different digest"):
        store.fill(BLOB, lambda offset: pieces(offset, wrong))
    assert not store.part(BLOB.digest).exists()
    store.fill(BLOB, pieces)


def test_wrong_bytes_of_an_earlier_run_are_fetched_anew(store: BlobStore) -> None:
    part = store.part(BLOB.digest)
    part.parent.mkdir(parents=True)
    for left in (b"junk" * 1000, b"junk" * len(DATA)):
        part.write_bytes(left)
        assert store.fill(BLOB, pieces).read_bytes() == DATA
        store.path(BLOB.digest).unlink()


def test_too_few_bytes_are_kept_for_the_next_try(store: BlobStore) -> None:
    with pytest.raises(StepFailed, match="ends after 500000 of 2560000"):
        store.fill(BLOB, lambda offset: pieces(offset, DATA[:500_000]))
    assert store.part(BLOB.digest).stat().st_size == 500_000


def test_while_one_fetches_the_other_is_told(store: BlobStore) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(offset: int) -> Iterator[bytes]:
        begun.set()
        assert go.wait(20)
        return pieces(offset)

    first = threading.Thread(target=store.fill, args=(BLOB, slow))
    first.start()
    assert begun.wait(20)
    other = BlobStore(store.directory)
    with pytest.raises(LockHeld, match="another clusterctl is downloading sha256:") as raised:
        other.fill(BLOB, lambda _: pytest.fail("fetched twice"))
    assert str(raised.value.hint).endswith(f"fuser -v {store.part(BLOB.digest)}")
    go.set()
    first.join()
    assert other.fill(BLOB, lambda _: pytest.fail("fetched twice")).read_bytes() == DATA


def test_a_killed_process_leaves_what_it_had(store: BlobStore, tmp_path: Path) -> None:
    program = f"""
import os, sys
from pathlib import Path
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.content import Blob
def fetch(offset):
    yield bytes(range(256)) * 5000
    os.kill(os.getpid(), 9)
BlobStore(Path(sys.argv[1])).fill(Blob({BLOB.digest!r}, {BLOB.size}), fetch)
"""
    done = subprocess.run([sys.executable, "-c", program, str(store.directory)])
    assert done.returncode == -9
    asked: list[int] = []

    def rest(offset: int) -> Iterator[bytes]:
        asked.append(offset)
        return pieces(offset)

    assert store.fill(BLOB, rest).read_bytes() == DATA
    assert asked == [1_280_000]


def test_a_full_disk_says_what_to_do(tmp_path: Path) -> None:
    """A link where the store should be: writing fails, whoever runs this."""
    (tmp_path / "store").symlink_to("/proc/none")
    with pytest.raises(RequirementsNotMet, match="cannot be written") as raised:
        BlobStore(tmp_path / "store").fill(Blob(sha256(b"x"), 1), lambda _: iter((b"x",)))
    assert "XDG_CACHE_HOME" in str(raised.value.hint)


def test_a_directory_that_cannot_be_written_serves_a_dry_run_all_the_same() -> None:
    store = BlobStore(Path("/proc/none"))  # also root can make nothing there
    data = b"a manifest"
    blob = Blob(sha256(data), len(data))
    assert store.keep(data).read_bytes() == data
    assert store.holds(blob)
    assert b"".join(store.open(blob)) == data
    store.remember("manifest", "kind")
    assert store.recall("manifest") is None


def test_references_survive(store: BlobStore) -> None:
    assert store.recall("gzip-abc") is None
    store.remember("gzip-abc", {"digest": "sha256:1", "size": 3})
    assert BlobStore(store.directory).recall("gzip-abc") == {"digest": "sha256:1", "size": 3}
    (store.directory / "refs" / "gzip-abc.json").write_text("{damaged")
    assert store.recall("gzip-abc") is None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert cache_directory() == Path("/somewhere/cache/clusterctl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/ann")
    assert cache_directory() == Path("/home/ann/.cache/clusterctl")


def test_a_stale_lock_holder_does_not_keep_the_name(store: BlobStore) -> None:
    """Its writer renamed the part while we waited for the lock: the blob is there."""
    part = store.part(BLOB.digest)
    part.parent.mkdir(parents=True)
    part.write_bytes(DATA)
    with part.open("rb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        part.rename(store.path(BLOB.digest))
        store.fill(BLOB, lambda _: pytest.fail("fetched again"))


def test_nobody_else_reads_layers_also_where_an_earlier_version_left_them_open(
    tmp_path: Path,
) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    for name in ("cache", "new/cache"):
        made = BlobStore(tmp_path / name)
        made.fill(BLOB, pieces)
        assert made.directory.stat().st_mode & 0o777 == 0o700
