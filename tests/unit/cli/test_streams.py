"""What a run does where its streams are closed or full, its state cannot be kept, or the terminal
is narrow: real processes, real file systems."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

INVENTORY = """\
cluster: demo
image: vllm/vllm-openai:v0.33.0
hosts:
  gpu1: {address: 127.0.0.1, role: head, ssh: {port: 1}}
  gpu2-in-the-far-rack: {address: 127.0.0.1, ssh: {port: 2}}
"""
LOGGING = """
import logging
from clusterctl.reporting.run_log import run_log
with run_log("demo", "check") as log:
    assert log is not None
    for _ in range(3):
        logging.getLogger("clusterctl.run").info("x" * 20_000)
print("done")
"""
REMEMBERING = """
from pathlib import Path
from clusterctl.cli.bootstrap import _remember
_remember(Path("lab.yaml"))
print("done")
"""
FIT = ("fit", "qwen2.5-1.5b", "--gpus", "1xH200")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """clusterctl by a shell, whose words follow the command: `<&-`, `>/dev/full`."""
    file = tmp_path / "lab.yaml"
    file.write_text(INVENTORY)

    def run(*words: str, streams: str = "", state: Path = tmp_path / "state") -> object:
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-m", "clusterctl", *words],
            capture_output=True,
            text=True,
            timeout=120,
            env={
                **os.environ,
                "CLUSTERCTL_INVENTORY": str(file),
                "XDG_STATE_HOME": str(state),
                "NO_COLOR": "1",
            },
        )

    return run  # type: ignore[return-value]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which directories and empty files can be made, and nothing written."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place = tmp_path / "full"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)], check=True)
    try:
        with (place / "ballast").open("wb", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(4096))
            except OSError:
                pass
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize(
    ("words", "streams", "status"),
    [
        (("status",), "<&-", 8),
        (("status",), "<&- 2>&-", 8),
        (("status",), "<&- >&- 2>&-", 8),
        (("check",), "<&-", 4),
        (("check",), ">&-", 4),
        (("--version",), ">&-", 0),
        (FIT, ">&-", 0),
    ],
)
def test_closed_streams_change_no_exit_status(
    run: Run, words: tuple[str, ...], streams: str, status: int
) -> None:
    ran = run(*words, streams=streams)
    assert ran.returncode == status, ran.stderr
    assert ("gpu1" in ran.stdout) == (words == ("status",) and ">&- " not in streams)
    assert "bug" not in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("words", [("status", "--json"), ("--help",)])
def test_a_full_stdout_is_told_in_plain_words(run: Run, words: tuple[str, ...]) -> None:
    ran = run(*words, streams=">/dev/full")
    assert ran.returncode == 5, ran.stderr
    assert ran.stderr.count("stdout cannot be written: No space left on device") == 1
    assert "bug" not in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "Exception" not in ran.stderr


def test_a_full_stderr_stops_nothing(run: Run) -> None:
    ran = run("check", streams="2>/dev/full")
    assert (ran.returncode, ran.stderr) == (4, "")


def test_a_reader_that_leaves_early_is_no_error(run: Run) -> None:
    ran = run("--help", streams="| true")
    assert ran.stderr == ""


def test_a_log_that_cannot_be_written_is_said_once_and_stops_nothing(
    full_disk: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", LOGGING],
        env={**os.environ, "XDG_STATE_HOME": str(full_disk)},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert ran.stderr == "note: the log stopped: No space left on device\n"


def test_an_inventory_that_cannot_be_remembered_is_said_and_stops_nothing(
    full_disk: Path,
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", REMEMBERING],
        env={**os.environ, "XDG_STATE_HOME": str(full_disk)},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr
    assert "cannot be recorded" in ran.stderr
    assert "No space left on device; name it each time: clusterctl -i lab.yaml" in ran.stderr


def test_host_role_and_state_stay_on_a_terminal_of_40_columns(tmp_path: Path) -> None:
    file = tmp_path / "lab.yaml"
    file.write_text(INVENTORY)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 40, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}
    }
    with subprocess.Popen(
        [sys.executable, "-m", "clusterctl", "status"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "CLUSTERCTL_INVENTORY": str(file), "TERM": "xterm", "NO_COLOR": "1",
             "XDG_STATE_HOME": str(tmp_path)},
    ):  # fmt: skip
        os.close(theirs)
        text = _all_of(ours)
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    heading = next(line for line in text.splitlines() if line.startswith("HOST"))
    assert heading.split() == ["HOST", "ROLE", "RAY"]
    row = next(line for line in text.splitlines() if line.startswith("gpu2-in-the-far-rack"))
    assert row.split() == ["gpu2-in-the-far-rack", "worker", "no", "answer"]


def _all_of(terminal: int) -> str:
    """What is written there until its last writer is gone."""
    read = b""
    try:
        while piece := os.read(terminal, 65536):
            read += piece
    except OSError:  # EIO: nobody is left
        pass
    os.close(terminal)
    return read.decode()
