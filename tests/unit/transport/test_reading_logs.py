"""The program that reads logs on hosts, run as it runs there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusterctl.transport import log_reader

START = (
    sys.executable,
    "-c",
    "import json, sys; from clusterctl.transport.log_reader import main; "
    "main(json.loads(sys.argv[1]))",
)


@contextmanager
def started(path: Path, lines: int, *, follow: bool) -> Iterator[subprocess.Popen[bytes]]:
    order = json.dumps({"path": str(path), "lines": lines, "follow": follow})
    pipe = subprocess.PIPE
    with subprocess.Popen([*START, order], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        yield process
        process.kill()


def read(path: Path, lines: int = 10) -> tuple[int, bytes, bytes]:
    with started(path, lines, follow=False) as process:
        out, err = process.communicate(timeout=20)
        return process.returncode, out, err


def test_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert read(log, 2) == (0, b"line 98\nline 99\n", b"")
    assert read(log, 1000)[1] == log.read_bytes()
    assert read(log, 0) == (0, b"", b"")


def test_a_log_that_is_not_there_names_the_others(tmp_path: Path) -> None:
    for name in ("ray.log", "tiny.log", "ray.log.1"):
        (tmp_path / name).touch()
    assert read(tmp_path / "x.log") == (log_reader.MISSING, b"", b"ray\ntiny\n")


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_only_a_regular_file_is_a_log(tmp_path: Path, kind: str) -> None:
    log, secret = tmp_path / "ray.log", tmp_path / "secret"
    secret.write_text("the host's own")
    if kind == "link":
        log.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(log)
    else:
        log.mkdir()
    status, out, err = read(log)
    assert (status, out) == (1, b"")
    assert f"{log} cannot be read".encode() in err


def test_an_endless_log_is_read_from_near_its_end(tmp_path: Path) -> None:
    log = tmp_path / "ray.log"
    with log.open("wb") as file:
        file.truncate(1 << 42)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    status, out, _ = read(log, 1)
    assert (status, out) == (0, b"last\n")
    assert len(read(log, 2)[1]) <= log_reader.LONGEST


def test_it_follows_into_the_next_log_but_through_no_link_and_ends_with_its_reader(
    tmp_path: Path,
) -> None:
    log, secret = tmp_path / "ray.log", tmp_path / "secret"
    secret.write_text("the host's own\n")
    log.write_text("one\n")
    with started(log, 10, follow=True) as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == b"one\n"
        with log.open("a") as file:
            file.write("two\n")
        assert process.stdout.readline() == b"two\n"
        log.unlink()
        log.symlink_to(secret)
        time.sleep(3 * log_reader.PAUSE)  # it looks at what is there now
        log.unlink()
        log.write_text("three\n")
        assert process.stdout.readline() == b"three\n"
        process.stdin.close()
        assert process.wait(20) == 0
