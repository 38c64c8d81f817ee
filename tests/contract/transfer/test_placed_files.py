"""Blobs that become files: weights, in pieces side by side."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from clusterctl.transfer.chain_link import PIECE, FilePlace
from clusterctl.transfer.content import Blob
from tests.contract.transfer.conftest import MIB, Bench

PlaceOf = Callable[[Path, bytes, int], FilePlace]
NOTED = 8 * MIB
"""A killed relay may lose this much of each piece under way: parts.NOTED_EVERY."""


def test_a_file_appears_whole_and_under_its_name(bench: Bench, place_of: PlaceOf) -> None:
    blobs = [bench.source.add(size) for size in (2 * PIECE + 5, PIECE, 300)]
    links = []
    for number in (1, 2):
        folder = bench.folder / f"model {number}%\t"
        places = {
            blob.digest: place_of(
                folder / f"{size}.safetensors", bench.source.data[blob.digest], PIECE
            )
            for size, blob in enumerate(blobs)
        }
        links.append(bench.link(number, places=places))

    with bench.chain(links, blobs) as chain:
        bench.bring(chain, ["h1", "h2"], blobs)
        assert chain.sent == sum(blob.size for blob in blobs)
    for number in (1, 2):
        found = sorted((bench.folder / f"model {number}%\t").iterdir())
        assert [file.name for file in found] == [f"{size}.safetensors" for size in range(3)]
        assert {file.stat().st_mode & 0o777 for file in found} == {0o644}


def test_a_killed_relay_loses_a_little_of_each_piece(bench: Bench, place_of: PlaceOf) -> None:
    blob = bench.source.add(4 * PIECE)
    place = place_of(bench.folder / "model" / "weights", bench.source.data[blob.digest], PIECE)
    chain = bench.chain([bench.link(1, places={blob.digest: place})], [blob])
    asked: list[int] = []

    def kill_once(_blob: Blob, position: int) -> None:
        asked.append(position)
        if len(asked) == blob.size // 2 // MIB:
            os.kill(bench.pid(1), signal.SIGKILL)

    bench.source.gate = kill_once
    with chain:
        bench.bring(chain, ["h1"], [blob])
        # What was on its way when the relay died was sent in vain, too: a window per piece.
        assert chain.sent - blob.size < 4 * (NOTED + 4 * MIB)
    assert [text for _, text in bench.said if "restarting its relay" in text]


def test_a_piece_that_changed_on_disk_comes_again(bench: Bench, place_of: PlaceOf) -> None:
    blob = bench.source.add(3 * PIECE)
    path = bench.folder / "weights"
    content = bench.source.data[blob.digest]
    place = place_of(path, content, PIECE)
    Path(f"{path}.part").write_bytes(b"?" * 5 + content[5:])
    Path(f"{path}.part.pieces").write_text(
        f"boot before\ndone 0 {PIECE}\ndone 1 {PIECE}\nhave 2 1000\ndone 2 junk\ndone 99 1\nhave"
    )

    with bench.chain([bench.link(1, places={blob.digest: place})], [blob]) as chain:
        bench.bring(chain, ["h1"], [blob])
        assert chain.sent == 2 * PIECE - 1000


def test_a_file_that_is_there_already_is_checked_and_kept(bench: Bench, place_of: PlaceOf) -> None:
    blob = bench.source.add(PIECE + 1)
    path = bench.folder / "weights"
    path.write_bytes(bench.source.data[blob.digest])
    inode = path.stat().st_ino
    place = place_of(path, bench.source.data[blob.digest], PIECE)

    with bench.chain([bench.link(1, places={blob.digest: place})], [blob]) as chain:
        bench.bring(chain, ["h1"], [blob])
        assert chain.sent == 0
    assert path.stat().st_ino == inode


def test_files_that_are_moved_are_still_passed_on(bench: Bench, place_of: PlaceOf) -> None:
    """A host that has its whole model puts it in place while slower hosts still read there."""
    blobs = [bench.source.add(size) for size in (PIECE + 5, 300)]
    before = bench.source.add(MIB)
    had = bench.folder / "had"
    had.write_bytes(bench.source.data[before.digest])
    staged = bench.folder / "staged"
    places = {
        blob.digest: place_of(staged / blob.hex, bench.source.data[blob.digest], PIECE)
        for blob in blobs
    }
    first = bench.link(1, places=places, origin={before.digest: str(had)})

    with bench.chain([first, bench.link(2)], [*blobs, before]) as chain:
        bench.bring(chain, ["h1"], blobs)
        staged.rename(bench.folder / "model")
        had.unlink()
        bench.bring(chain, ["h2"], [*blobs, before])
        assert chain.sent == sum(blob.size for blob in blobs)


def test_a_relay_that_is_started_again_finds_what_was_moved(
    bench: Bench, place_of: PlaceOf
) -> None:
    blob = bench.source.add(PIECE + 5)
    staged, model = bench.folder / "staged", bench.folder / "model"
    place = place_of(staged / "weights", bench.source.data[blob.digest], PIECE)
    first = bench.link(1, places={blob.digest: place})

    with bench.chain([first, bench.link(2)], [blob]) as chain:
        bench.bring(chain, ["h1"], [blob])
        staged.rename(model)
        chain.relocate("h1", {blob.digest: str(model / "weights")})
        os.kill(bench.pid(1), signal.SIGKILL)
        bench.bring(chain, ["h2"], [blob])
        assert chain.sent == blob.size
    assert not staged.exists()


def test_two_relays_do_not_write_one_file(bench: Bench) -> None:
    """A session that hangs may leave its relay behind for a while."""
    blob = bench.source.add(4 * MIB)
    first = bench.chain(bench.links(1), [blob])
    second = bench.chain(bench.links(1), [blob])
    with first:
        first.fetch("h1", [blob.digest], 60)
        with second:
            bench.bring(second, ["h1"], [blob])
            assert second.sent == 0


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_place_without_pieces_is_one_piece(bench: Bench, pieces: int) -> None:
    blob = bench.source.add(3 * MIB)
    place = FilePlace(str(bench.folder / "weights"), (blob.hex,) * pieces, 0o600)

    with bench.chain([bench.link(1, places={blob.digest: place})], [blob]) as chain:
        bench.bring(chain, ["h1"], [blob])
    assert (bench.folder / "weights").stat().st_mode & 0o777 == 0o600
