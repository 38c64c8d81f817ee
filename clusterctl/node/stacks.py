"""Python stacks of vLLM's processes, without ptrace, which the container may not use.

Each process registers `faulthandler` for a signal and its own file (`register`, called as a vLLM
plugin). The handler needs no interpreter lock, so it also answers in a process that loops or hangs
in a collective. A stopped process does not answer, but its state shows that.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
from pathlib import Path
from typing import IO, List

from clusterctl.node.files import read_file

DIRECTORY = "CLUSTERCTL_STACKS"  # Variable with the directory of the files, one for each pid

# Of the real-time signals, which neither vLLM, Ray nor PyTorch uses.
SIGNAL = signal.SIGRTMIN + 9

LONGEST = 64 * 2**10  # Bytes of a process's stacks

_FILES: List[IO[bytes]] = []  # Open as long as the process runs

_FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<name>.*)$')


def register() -> None:
    """Write the stacks of all threads to a file whenever SIGNAL arrives. Called by vLLM."""
    directory = os.environ.get(DIRECTORY)
    if not directory or _FILES:
        return
    _open_own(directory)
    # vLLM forks its engine from the API server, and calls no plugin in it again.
    os.register_at_fork(after_in_child=lambda: _open_own(directory))


def _open_own(directory: str) -> None:
    with contextlib.suppress(OSError):  # A process is served without stacks rather than not at all
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(Path(directory, str(os.getpid())), flags, 0o600)
        file = os.fdopen(descriptor, "wb", buffering=0)
        faulthandler.register(SIGNAL, file, all_threads=True)
        _FILES[:] = [file]


def ask_for(pid: int) -> bool:
    """Send SIGNAL if the process handles it (it would die otherwise). Return whether it does."""
    try:
        status = Path("/proc", str(pid), "status").read_text("utf-8", "replace")
        caught = re.search(r"^SigCgt:\s*([0-9a-f]+)", status, re.MULTILINE)
        if caught is None or not int(caught[1], 16) >> (SIGNAL - 1) & 1:
            return False
        os.kill(pid, SIGNAL)
    except OSError:
        return False
    return True


def written_by(directory: Path, pid: int) -> str:
    """Return the stacks that a process last wrote; "" if it wrote none."""
    try:
        text = read_file(directory / str(pid), 2**26).decode("utf-8", "replace")
    except OSError:
        return ""
    # Each answer ends with the main thread; the file has all answers since the start.
    return text[-LONGEST:]


def forget(directory: Path) -> None:
    """Remove the files of processes that have ended, and empty the others."""
    with contextlib.suppress(OSError):
        for path in directory.iterdir():
            with contextlib.suppress(OSError):
                if Path("/proc", path.name).exists():
                    os.truncate(path, 0)
                else:
                    path.unlink()


def call_of(stacks: str) -> str:
    """Return where the thread that does vLLM's work is: its innermost frame, and vLLM's innermost
    frame if that differs. "" if there is no such thread."""
    threads = [block.splitlines()[1:] for block in re.split(r"(?=^(?:Current t|T)hread )", stacks,
                                                          flags=re.MULTILINE) if block]  # fmt: skip
    frames = [[match for line in thread if (match := _FRAME.match(line))] for thread in threads]
    # The main thread is the last one; a worker's loop may run in another.
    for found in reversed(frames):
        own = next((frame for frame in found if "/vllm/" in frame["file"]), None)
        if own:
            inner = _place(found[0])
            return inner if own is found[0] else f"{inner} called by {_place(own)}"
    return _place(frames[-1][0]) if frames and frames[-1] else ""


def _place(frame: re.Match[str]) -> str:
    path = frame["file"]
    short = path[path.index("/vllm/") + 1 :] if "/vllm/" in path else Path(path).name
    return f"{frame['name']} ({short}:{frame['line']})"
