"""The script that hashes files on a host, when nobody hears it any more."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from importlib import resources
from pathlib import Path

import pytest

SIZE = 1 << 40
"""Bytes of a file without blocks: read for longer than anybody waits here."""

QUICK_AT_FIRST = """\
#!/bin/sh
if [ -e "{mark}" ]; then exec cat >/dev/null; fi
: >"{mark}"
echo 00 -
"""
"""A sha256sum that is at the end of the file at once; the pieces take it their time."""


@pytest.mark.parametrize("piece_size", ["", str(SIZE // 2)])
def test_reading_ends_with_the_session(piece_size: str, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as made:
        made.truncate(SIZE)
    if piece_size:
        program = tmp_path / "sha256sum"
        program.write_text(QUICK_AT_FIRST.format(mark=tmp_path / "mark"))
        program.chmod(0o755)
    script = resources.files("clusterctl.transfer.weights").joinpath("hash.sh").read_text()
    with subprocess.Popen(
        ["sh", "-c", script, "hash", piece_size, "0.1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        start_new_session=True,
        text=True,
    ) as hashing:
        assert hashing.stdin is not None
        assert hashing.stdout is not None
        try:
            hashing.stdin.write(f"{large}\n")
            hashing.stdin.close()
            words = [hashing.stdout.readline().split("\t")[0] for _ in range(2)]
            hashing.stdout.close()
            assert words == ["at", "at"]
            assert hashing.wait(60) != 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(hashing.pid, signal.SIGKILL)
