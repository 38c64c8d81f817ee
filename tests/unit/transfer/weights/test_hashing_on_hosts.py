"""The program that hashes files on a host, when nobody hears it any more."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.transfer.weights.hashing import PROGRAM
from clusterctl.transport import python

SIZE = 1 << 40
"""Bytes of a file without blocks: read for longer than anybody waits here."""


@pytest.mark.parametrize("piece_size", [0, SIZE // 2])
def test_reading_ends_with_the_session(piece_size: int, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as made:
        made.truncate(SIZE)
    with subprocess.Popen(
        python.argv(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as hashing:
        assert hashing.stdin is not None
        assert hashing.stdout is not None
        try:
            asked = {"paths": [str(large)], "piece": piece_size, "samples": 0, "every": 0.1}
            hashing.stdin.write(PROGRAM.sent(asked))
            hashing.stdin.close()
            words = [list(json.loads(hashing.stdout.readline())) for _ in range(2)]
            hashing.stdout.close()
            assert words == [["at"], ["at"]]
            assert hashing.wait(60) != 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(hashing.pid, signal.SIGKILL)
