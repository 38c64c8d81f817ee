"""A process that has imported vLLM waits for the next start of a service.

Once a service has been ready for a while, its supervisor starts this module with the interpreter of
`vllm` and the environment of its start. It imports what `vllm serve` does before it looks at its
arguments, and waits. The next start gives it what is secret, and it goes on as that program: with
the same process, session and output. Where it cannot be taken, the start goes as without it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

# In the environment of a service: whether a process waits for its next start
IMPORT_AHEAD = "CLUSTERCTL_IMPORT_AHEAD"
ON, OFF = "on", "off"

# What vLLM's command line imports before it reads its arguments (`main` in entrypoints/cli/main.py
# of 0.25 to 0.33), and its API server after that; a release may lack some.
MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.preload",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
)

_IMPORTED, _TAKEN = b"i", b"t"

# Seconds in which it answers, which the supervisor waits: a few ms, unless it hangs.
_ANSWERS_WITHIN = 2.0

# Seconds: Linux takes the times of files from its last tick, of at most 10 ms.
_FILES_ARE_BEHIND = 0.02


@dataclass(frozen=True)
class StartCommand:
    """What a service's process is started with. Two are equal if one process can be either."""

    argv: List[str]
    env: Dict[str, str]  # Without what is secret
    key: str = field(repr=False)
    secrets: Dict[str, str] = field(compare=False, repr=False)  # Variables; the key is one


class ImportAhead:
    """The process that waits for the next start of one service, if there is one."""

    def __init__(self) -> None:
        self._start: Optional[StartCommand] = None
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._channel: Optional[socket.socket] = None

    def begin(self, start: StartCommand) -> None:
        """Start the process for a start like this one: once, even if that process then ends."""
        if start is self._start or start.env.get(IMPORT_AHEAD, OFF) == OFF:
            return
        self.end()
        self._start = start
        program = shutil.which(start.argv[0], path=start.env.get("PATH"))
        interpreter = _interpreter(program) if program else []
        if not program or not interpreter:
            return
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # Nobody reads its output before it is taken: imports print a few lines.
                self._process = subprocess.Popen(
                    [*interpreter, "-m", __name__, program, *start.argv[1:]],
                    env=start.env,
                    stdin=theirs.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                return
        self._channel = ours

    def take(self, start: StartCommand) -> Optional[subprocess.Popen[bytes]]:
        """Return the process, which is now that of this start. None if there is none that can be:
        then it has ended."""
        process = self._process
        if process and start == self._start and self._hand_over(start):
            self._process = None
        else:
            process = None
        self.end()
        return process

    def end(self) -> None:
        process, self._process = self._process, None
        if self._channel:
            self._channel.close()
            self._channel = None
        if process:
            with contextlib.suppress(ProcessLookupError):  # With what its imports have started
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_ANSWERS_WITHIN)
            if process.stdout:
                process.stdout.close()

    def _hand_over(self, start: StartCommand) -> bool:
        channel = self._channel
        if channel is None:
            return False
        try:
            if channel.recv(1, socket.MSG_DONTWAIT) != _IMPORTED:
                return False
            channel.settimeout(_ANSWERS_WITHIN)
            channel.sendall(json.dumps(start.secrets).encode() + b"\n")
            return channel.recv(1) == _TAKEN
        except OSError:  # It still imports, has ended, or hangs
            return False


def _interpreter(program: str) -> List[str]:
    """Return the words of a Python program's first line that name its interpreter."""
    try:
        with open(program, "rb") as file:  # noqa: PTH123 - reads only its beginning
            line = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return []
    words = line[2:].split() if line.startswith("#!") else []
    return words if any(Path(word).name.startswith("python") for word in words) else []


def wait_for_start(program: str) -> None:
    """Import vLLM, wait for the supervisor's word, and go on as `program` with the rest of the
    command line. End this process where there is no word, or what was imported is out of date."""
    # The channel is stdin, which programs that imports start must not get.
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(program).resolve().parent)  # As for a script
    began = time.time() - _FILES_ARE_BEHIND
    for name in MODULES:
        with contextlib.suppress(Exception):  # Fails again, and is reported, if vLLM needs it
            importlib.import_module(name)
    channel.sendall(_IMPORTED)
    with channel.makefile("rb") as lines:
        word = lines.readline()  # Nothing once the supervisor ended it, or has ended itself
    if not word or _changed_since(began):
        os._exit(0)
    os.environ.update(json.loads(word))
    sys.argv = [program, *sys.argv[2:]]
    with contextlib.suppress(ImportError):  # vLLM names its other processes with it
        titles: Any = importlib.import_module("setproctitle")
        titles.setproctitle("vllm serve")
    channel.sendall(_TAKEN)
    channel.close()
    runpy.run_path(program, run_name="__main__")


def _changed_since(began: float) -> bool:
    """Return whether a file of what is imported was written since then (seconds of the clock), as
    by somebody who installs another release: vLLM's later processes would import that."""
    for module in list(sys.modules.values()):
        try:
            if os.stat(getattr(module, "__file__", None) or "").st_ctime > began:  # noqa: PTH116
                return True
        except OSError:  # Built in, or in an archive
            continue
    return False


if __name__ == "__main__":
    wait_for_start(sys.argv[1])
