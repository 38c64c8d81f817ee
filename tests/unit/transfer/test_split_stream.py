"""The splitter of `docker save` streams: every kind of tar header, and what a host runs."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.transfer.archives.contents import split_members
from clusterctl.transfer.archives.split import (
    BrokenArchive,
    Row,
    Splitter,
    clean,
    still_true,
)
from clusterctl.transfer.engine_image import SPLITTER
from clusterctl.transport import python
from tests.fakes.image_archives import MadeImage, sha256

LONG = "/".join(["directory" * 5] * 6)


def archive(form: int) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as tar:
        for name in (f"{LONG}/layer.tar", "short", "./dotted/../plain"):
            entry = tarfile.TarInfo(name)
            entry.size = len(name)
            tar.addfile(entry, io.BytesIO(name.encode()))
        directory = tarfile.TarInfo("empty")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        link = tarfile.TarInfo("deep/link")
        link.type, link.linkname = tarfile.SYMTYPE, f"../{LONG}/layer.tar"
        tar.addfile(link)
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "short"
        tar.addfile(hard)
    return packed.getvalue()


def split(data: bytes, directory: Path, keep: set[str] | None = None) -> str:
    told: list[Row] = []
    Splitter(str(directory), keep, told.append).split(io.BytesIO(data).read)
    return "\n".join(map(json.dumps, told))


def pax(records: bytes) -> bytes:
    """A file behind a pax header of these records."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(records)
    padding = bytes(-len(records) % 512)
    return header.tobuf() + records + padding + tarfile.TarInfo("file").tobuf() + bytes(1024)


def test_a_header_that_no_one_would_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenArchive):
        split(pax(b"11 size=-5\n"), tmp_path)
    assert '["file", "a", 0, ' in split(pax(b"10 path=a\n"), tmp_path)


@pytest.mark.parametrize("name", ["a\tb", "a\nb", "\x85", "ü", "\u2028"])
def test_names_that_would_break_a_line_are_told_as_they_are(tmp_path: Path, name: str) -> None:
    record = f" path={name}\n".encode()
    told = split(pax(str(len(record) + 2).encode() + record), tmp_path)
    assert name in split_members(told, tmp_path)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_header(tmp_path: Path, form: int) -> None:
    found = split_members(split(archive(form), tmp_path), tmp_path)
    for name, content in (
        (f"{LONG}/layer.tar", f"{LONG}/layer.tar"),
        ("short", "short"),
        ("plain", "./dotted/../plain"),
        ("deep/link", f"{LONG}/layer.tar"),
        ("hard", "short"),
    ):
        place = found[name].place
        assert place
        assert place.path.read_text() == content
        assert found[name].hashed() == sha256(content.encode())
    assert "empty" not in found


def test_sizes_beyond_eight_gibibytes(tmp_path: Path) -> None:
    """No octal digits are left for them: GNU writes them in base 256, pax as text."""
    entry = tarfile.TarInfo(f"blobs/sha256/{'a' * 64}")
    entry.size = 30 << 30
    for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        told: list[Row] = []
        splitter = Splitter(str(tmp_path), set(), told.append)
        with pytest.raises(BrokenArchive, match="truncated"):
            splitter.split(io.BytesIO(entry.tobuf(form) + bytes(1 << 20)).read)
        assert told[0][:4] == ["file", entry.name, 30 << 30, "a" * 64]


def test_a_header_without_end_is_not_read_into_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 8 << 30
    with pytest.raises(BrokenArchive, match="one of its headers is damaged: 8589934592 bytes"):
        split(header.tobuf(tarfile.GNU_FORMAT), tmp_path)


@pytest.mark.parametrize("cut", [100, 700, 1024])
def test_a_stream_that_ends_early(tmp_path: Path, cut: int) -> None:
    data = archive(tarfile.GNU_FORMAT)
    with pytest.raises(BrokenArchive, match="the archive is truncated"):
        split(data[:cut], tmp_path)
    assert not list(tmp_path.glob("save-*"))


def test_a_damaged_header(tmp_path: Path) -> None:
    data = bytearray(archive(tarfile.GNU_FORMAT))
    data[3] ^= 1
    with pytest.raises(BrokenArchive, match="damaged"):
        split(bytes(data), tmp_path)


def test_what_was_told_is_true_while_the_files_are_there(tmp_path: Path, image: MadeImage) -> None:
    told = split(image.legacy(), tmp_path)
    assert still_true(told, str(tmp_path), None)
    assert not still_true(told.removesuffix('["end"]'), str(tmp_path), None)
    (tmp_path / sha256(image.layers[0])[7:]).unlink()
    assert not still_true(told, str(tmp_path), None)
    assert still_true(split(image.legacy(), tmp_path, set()), str(tmp_path), set())


def test_a_host_runs_it_and_saves_once(tmp_path: Path, image: MadeImage) -> None:
    (tmp_path / "saved.tar").write_bytes(image.legacy())
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\n[ "$*" = "save sha256:abc" ] && cat {tmp_path}/saved.tar\n')
    docker.chmod(0o755)
    kept = tmp_path / "kept"
    order = {"image": "sha256:abc", "directory": str(kept), "needed": 1000, "keep": None,
             "saving": [str(docker), "save", "sha256:abc"]}  # fmt: skip
    done = subprocess.run(python.argv(), input=SPLITTER.sent(order), capture_output=True)
    assert done.returncode == 0, done.stderr
    assert (kept / sha256(image.layers[1])[7:]).read_bytes() == image.layers[1]
    docker.unlink()
    order["keep"] = [sha256(image.layers[0])]
    again = subprocess.run(python.argv(), input=SPLITTER.sent(order), capture_output=True)
    assert again.stdout == done.stdout, "not saved again"


def test_what_killed_runs_left_is_removed_by_several_at_once(tmp_path: Path) -> None:
    for count in range(2000):
        (tmp_path / f"save-999999999-{count}.part").touch()
    with ThreadPoolExecutor(8) as crew:
        list(crew.map(clean, [str(tmp_path)] * 8))
    assert not list(tmp_path.iterdir())
