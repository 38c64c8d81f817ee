"""A command run in the node container for clusterctl, such as a user's script or a benchmark.

Sent over stdin by `transport.python`, together with its argument (`serving.job.Job`); nothing has
to be installed. The caller then sends any byte at least every SILENCE seconds. When stdin ends or
stays silent, the user pressed Ctrl-C or the caller is gone: the command is interrupted, and killed
GRACE seconds later.

stdout carries frames: a line of a letter and a number of bytes, then these bytes. `o` and `e` are
the command's stdout and stderr, `f` is the content of the result file, `n` a note for the user, and
`x` the exit status, which is the last frame.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Any, Dict, List

SILENCE = 120.0  # Seconds; a longer pause of the network ends the command
GRACE = 15.0  # Seconds from SIGINT to SIGKILL: vLLM ends its ranks within 5 s
LARGEST_RESULT = 16 * 2**20  # Bytes

# In the environment of the command and all its descendants, whatever their session; its value is
# the name of the command's directory.
MARK = "CLUSTERCTL_JOB"
_PREFIX = "clusterctl-job-"
_LOCK = ".lock"
_ROUNDS = 20  # Of SIGKILL: a process may fork between the listing and the signal


def main(argument: Dict[str, Any]) -> None:
    """Run the command, and exit once nothing of it is left."""
    ended = end_orphans()
    if ended:
        _send(b"n", b"ended %d processes of an earlier run that was killed" % ended)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))  # 0700
    directory = made.with_name(made.name[1:])
    try:
        with (made / _LOCK).open("w") as lock:  # held until this process ends
            fcntl.flock(lock, fcntl.LOCK_EX)
            made.rename(directory)  # only now `end_orphans` of another run sees it
            status = _run(directory, argument)
            result = directory / argument["result"] if argument["result"] else None
            if result and result.is_file() and result.stat().st_size <= LARGEST_RESULT:
                _send(b"f", result.read_bytes())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _send(b"x", b"%d" % status)


def _run(directory: Path, argument: Dict[str, Any]) -> int:
    """Return the exit status of the command; 128 + n if signal n ended it."""
    for name, text in argument["files"].items():
        (directory / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    own = {"PYTHONUNBUFFERED": "1", "TMPDIR": str(directory), MARK: directory.name}
    try:
        child = subprocess.Popen(
            argument["argv"],
            cwd=directory,
            env={**os.environ, **own, **argument["env"]},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        _send(b"e", f"{argument['argv'][0]}: {error.strerror}\n".encode())
        return 127
    pumps = [
        threading.Thread(target=_pump, args=(kind, pipe), daemon=True)
        for kind, pipe in ((b"o", child.stdout), (b"e", child.stderr))
        if pipe
    ]
    threading.Thread(target=_follow, args=(child,), daemon=True).start()
    for pump in pumps:
        pump.start()
    status = child.wait()
    # What the command left running would keep its GPUs, and the pipes open.
    kill_marked([directory.name])
    for pump in pumps:
        pump.join(5.0)
    return 128 - status if status < 0 else status


def _pump(kind: bytes, pipe: IO[bytes]) -> None:
    while True:
        data = os.read(pipe.fileno(), 65536)
        if not data:
            return
        _send(kind, data)


def _follow(child: subprocess.Popen[bytes]) -> None:
    """End the command once the caller no longer wants it."""
    stdin = sys.stdin.buffer.fileno()
    while select.select([stdin], [], [], SILENCE)[0] and os.read(stdin, 4096):
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    time.sleep(GRACE)
    child.kill()


def end_orphans() -> int:
    """Kill the commands of earlier runs that were killed themselves; return how many processes."""
    orphans = []
    for directory in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        with contextlib.suppress(OSError), (directory / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            orphans.append(directory)
    ended = kill_marked([directory.name for directory in orphans])
    for directory in orphans:
        shutil.rmtree(directory, ignore_errors=True)
    return ended


def kill_marked(names: List[str]) -> int:
    """Kill every process whose environment has MARK with one of the values; return how many."""
    marks = {f"{MARK}={name}".encode() for name in names}
    killed = set()
    for _ in range(_ROUNDS if marks else 0):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):  # ended meanwhile; a zombie has none
                    if marks.intersection((entry / "environ").read_bytes().split(b"\0")):
                        found.append(int(entry.name))
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(found)
        if not found:
            break
        time.sleep(0.05)
    return len(killed)


_writing = threading.Lock()


def _send(kind: bytes, data: bytes) -> None:
    # Output that nobody reads any more must not end this process before the command has ended.
    with _writing, contextlib.suppress(OSError):
        sys.stdout.buffer.write(b"%s %d\n" % (kind, len(data)) + data)
        sys.stdout.buffer.flush()
