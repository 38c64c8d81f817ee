"""`status --watch` and `logs -f` go on until Ctrl-C, which is their ordinary end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path, inventory: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(*words: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "clusterctl", "-i", str(inventory), *words],
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm", "NO_COLOR": "1"},
            cwd=Path(__file__).parents[3],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def _interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def _out(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_watching_into_a_pipe_prints_a_screen_a_look(start: Start) -> None:
    process = start("status", "--watch")
    screens = 0
    for line in _out(process):
        screens += line.startswith("cluster nowhere")
        if screens == 2:
            break
    assert _interrupted(process) == (0, "")


def test_ctrl_c_while_python_ends_prints_no_traceback() -> None:
    program = (
        "import atexit, signal, sys\n"
        "from clusterctl.__main__ import main\n"
        "atexit.register(signal.raise_signal, signal.SIGINT)\n"
        "sys.argv = ['clusterctl', '--version']\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (-signal.SIGINT, "")
    assert ran.stdout.startswith("clusterctl ")


def test_ctrl_c_while_it_starts_prints_no_traceback() -> None:
    program = (
        "import signal, sys\n"
        "from clusterctl.__main__ import main\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'clusterctl.cli.app':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "main()\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (130, "")


def test_watching_for_machines_prints_a_document_a_line(start: Start) -> None:
    process = start("status", "--watch", "--json")
    documents = [json.loads(_out(process).readline()) for _ in range(2)]
    assert [document["cluster"] for document in documents] == ["nowhere", "nowhere"]
    assert _interrupted(process) == (0, "")


def test_a_terminal_without_colour_gets_none(start: Start) -> None:
    ours, theirs = os.openpty()
    process = start("status", stdout=theirs)
    os.close(theirs)
    seen, decoder = "", getincrementaldecoder("utf-8")()  # a character may come in two parts
    while "fix:" not in seen:
        assert select.select([ours], [], [], 60)[0], seen
        seen += decoder.decode(os.read(ours, 4096))
    process.communicate(timeout=30)
    os.close(ours)
    assert "\x1b[3" not in seen.replace("\x1b[3m", "")
