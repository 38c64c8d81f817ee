"""One command from stdin to exit status, with a bound on every wait."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from clusterctl.errors import ConnectionFailed
from clusterctl.transport.command import Command
from clusterctl.transport.script import KILL_AFTER

QUIET = 1.0
"""Seconds without a byte after which an ended command's output is taken as complete: what it
left running in the background may hold its stdout open for ever."""

GRACE = KILL_AFTER + 5.0
"""Seconds on top of the limit that the host enforces before this side hangs up."""


LARGEST_OUTPUT = 256 * 2**20  # bytes of stdout; a host that says more is not listened to


class OutputTooLarge(Exception):
    """The command wrote more than LARGEST_OUTPUT."""


class Overdue(Exception):
    """The command ran past its time and past the grace that the host had to end it."""


@dataclass(frozen=True)
class Output:
    """What came out: bytes of stdout, text of stderr, and `seconds` it took."""

    status: int
    stdout: bytes
    stderr: str
    seconds: float


def exchange(command: Command, stdin: bytes, limit: float) -> Output:
    """Send `stdin`, read to the end, wait for the status.

    Raises Overdue, OutputTooLarge, ConnectionFailed.
    """
    started = time.monotonic()
    deadline = started + limit + GRACE
    _feed(command, stdin)
    stdout = _read_to_end(command, deadline)
    status = command.poll(max(0.0, deadline - time.monotonic()))
    if status is None:
        raise Overdue
    if status == -1:
        raise command.lost()
    took = time.monotonic() - started
    return Output(status, stdout, command.whole_stderr(QUIET), took)


def _feed(command: Command, stdin: bytes) -> None:
    """Write in a thread: a command may well write its answer before it has read everything."""
    if not stdin:
        command.close_stdin()
        return
    threading.Thread(target=_write, args=(command, stdin), name="stdin", daemon=True).start()


def _write(command: Command, stdin: bytes) -> None:
    try:
        command.send(stdin)
    except ConnectionFailed:
        return  # it closed its stdin, as `head` does; its status tells whether that was wrong
    command.close_stdin()


def _read_to_end(command: Command, deadline: float) -> bytes:
    command.settimeout(QUIET)
    stdout = bytearray()
    while time.monotonic() < deadline:
        try:
            chunk = command.recv(65536)
        except TimeoutError:
            if command.poll(0) is not None:
                break
            continue
        if not chunk:
            break
        stdout += chunk
        if len(stdout) > LARGEST_OUTPUT:
            raise OutputTooLarge
    return bytes(stdout)
