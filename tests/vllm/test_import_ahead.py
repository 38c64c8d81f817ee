"""What a process imports that waits for the next start is what `vllm serve` imports."""

from __future__ import annotations

import re
import socket
import subprocess
from pathlib import Path

from tests.vllm.engine import Engine

_IMPORT = re.compile(r"^import time:\s+(\d+) \|", re.MULTILINE)
LIMIT = 600.0  # Seconds, on a busy machine; 10 on a quiet one


def test_little_is_left_to_import(engine: Engine, tmp_path: Path) -> None:
    program = engine.place / "bin" / "vllm"
    path = str(Path(__file__).parents[2])
    env = {**engine.env, "PYTHONPATH": path, "PYTHONPROFILEIMPORTTIME": "1"}
    argv = [str(engine.python), "-m", "clusterctl.node.import_ahead", str(program)]
    ours, theirs = socket.socketpair()
    log = tmp_path / "log"
    with ours, theirs, log.open("wb") as output:
        process = subprocess.Popen(
            [*argv, "serve", "--help"],
            stdin=theirs.fileno(), stdout=output, stderr=output, env=env,
        )  # fmt: skip
        theirs.close()
        ours.settimeout(LIMIT)
        assert ours.recv(1) == b"i"
        before = log.stat().st_size
        ours.sendall(b'{"VLLM_API_KEY": "key"}\n')
        assert ours.recv(1) == b"t"
        assert process.wait(LIMIT) == 0

    text = log.read_bytes()
    ahead, later = (
        sum(int(each) for each in _IMPORT.findall(part.decode()))
        for part in (text[:before], text[before:])
    )
    assert b"usage: vllm serve" in text[before:]
    assert later < ahead / 20
