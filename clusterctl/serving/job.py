"""Run a command in a node container and follow it: a user's script, a benchmark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field

from clusterctl.containers.drivers import driver_for
from clusterctl.errors import CommandFailed, ConnectionFailed
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transport import python
from clusterctl.transport.base import Channel, Transport

PROGRAM = python.Program("clusterctl.node", ("job",))

_LOOK = 0.5  # seconds between two checks whether the user asked to stop
_BEAT = 15.0  # seconds between bytes that show that this run is alive
_LARGEST_FRAME = 16 * 2**20  # bytes, as `node.job` sends at most


@dataclass(frozen=True)
class Job:
    """A command, which runs in its own directory (0700) that is removed with it.

    Files and variables are sent over stdin, so secrets may be among them.
    """

    argv: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict, repr=False)  # By name
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    result: str = ""  # File that the command writes, to be read at its end


@dataclass(frozen=True)
class JobResult:
    status: int  # 128 + n if signal n ended it
    result: bytes | None  # The content of `Job.result`; None if it was not written


@dataclass(frozen=True)
class JobOutput:
    """Receives the command's output as it arrives, and notes for the user."""

    stdout: Callable[[bytes], object]
    stderr: Callable[[bytes], object]
    note: Callable[[str], object]


def run_job(
    head: Transport, cluster: str, job: Job, output: JobOutput, cancelled: threading.Event
) -> JobResult:
    """Run the command in the head's node container; return once it and everything that it started
    have ended.

    Once `cancelled` is set, the command is interrupted as by Ctrl-C, and killed after 15 s. Raises
    ConnectionFailed if the connection breaks, which ends the command too, and CommandFailed.
    """
    driver = driver_for(head)
    inside = driver.exec_argv(container_name(cluster), ("python3",))
    with driver.host_open(python.argv(inside)) as channel:
        python.begin(channel, PROGRAM, asdict(job))
        return _follow(channel, output, cancelled, head.host.name)


def _follow(
    channel: Channel, output: JobOutput, cancelled: threading.Event, host: str
) -> JobResult:
    channel.settimeout(_LOOK)
    ended = threading.Event()
    # Not in this thread, which waits while nobody reads the output, as in `| less`.
    threading.Thread(target=_beat, args=(channel, ended), name="beat", daemon=True).start()
    pending, result = b"", None
    try:
        while True:
            if cancelled.is_set() and not ended.is_set():
                ended.set()
                channel.close_stdin()
            try:
                chunk = channel.recv(65536)
            except TimeoutError:
                continue
            if not chunk:
                raise python.failure(channel, "running the command", host)
            pending += chunk
            while (frame := _frame(pending, host)) is not None:
                kind, data, pending = frame
                if kind == b"o":
                    output.stdout(data)
                elif kind == b"e":
                    output.stderr(data)
                elif kind == b"n":
                    output.note(data.decode(errors="replace"))
                elif kind == b"f":
                    result = data
                elif kind == b"x":
                    return JobResult(int(data), result)
    finally:
        ended.set()


def _beat(channel: Channel, ended: threading.Event) -> None:
    while not ended.wait(_BEAT):
        with suppress(ConnectionFailed):  # which the other thread finds out
            channel.send(b".")


def _frame(pending: bytes, host: str) -> tuple[bytes, bytes, bytes] | None:
    """Return kind and content of the first frame, and the rest; None while it is incomplete."""
    head, newline, rest = pending.partition(b"\n")
    if not newline and len(head) < 32:
        return None
    kind, _, size = head.partition(b" ")
    if not newline or not size.isdigit() or int(size) > _LARGEST_FRAME:
        raise CommandFailed(
            "running the command failed: unexpected output of clusterctl's own program",
            host=host,
            detail=head[:200].decode(errors="replace"),
        )
    if len(rest) < int(size):
        return None
    return kind, rest[: int(size)], rest[int(size) :]
