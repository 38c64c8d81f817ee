"""This machine as a host: a transport over subprocesses, for inventories with `localhost`."""

from __future__ import annotations

import contextlib
import getpass
import os
import select
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from typing import IO, cast

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Channel
from clusterctl.transport.command import Wire
from clusterctl.transport.credentials import Credentials, environment_of_children
from clusterctl.transport.shell import ShellTransport
from clusterctl.transport.tcp import SocketChannel

_HANG_UP_GRACE = 1.0
# Milliseconds between checks whether another thread closed the wire.
_CLOSED_CHECK_MS = 200


class LocalTransport(ShellTransport):
    """Runs commands on the machine that clusterctl runs on."""

    def __init__(self, host: Host, credentials: Credentials | None = None) -> None:
        super().__init__(host, credentials or Credentials())

    @property
    def user(self) -> str:
        return "root" if os.geteuid() == 0 else account()

    def connect(self) -> None:
        """Do nothing: there is no connection."""

    @property
    def breaks(self) -> int:
        return 0

    def another(self) -> LocalTransport:
        return LocalTransport(self._host, self._credentials)

    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        return LocalWire(argv), lambda: None

    def open_tcp(self, address: str, port: int) -> Channel:
        try:
            connection = socket.create_connection((address, port), timeout=deadlines.FORWARD)
        except OSError as error:
            raise ConnectionFailed(
                f"nothing listens at {address}:{port}", host=self._host.name, detail=str(error)
            ) from error
        connection.settimeout(None)
        return SocketChannel(connection, self._host.name)

    def close(self) -> None:
        """Do nothing: no state is kept between commands."""


class LocalWire:
    """A child process in its own session, so that hanging up also reaches its children."""

    def __init__(self, argv: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            env=environment_of_children(),
        )
        self._stdin = cast("IO[bytes]", self._process.stdin)
        os.set_blocking(self._stdin.fileno(), False)
        self._stdout = cast("IO[bytes]", self._process.stdout)
        self._stderr = cast("IO[bytes]", self._process.stderr)
        self._timeout: float | None = None
        self._closed = False

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def send(self, data: bytes) -> None:
        """Write all of `data`, without blocking, so that `close` is noticed."""
        rest = memoryview(data)
        try:
            poller = select.poll()
            poller.register(self._stdin, select.POLLOUT)
            while rest:
                while not poller.poll(_CLOSED_CHECK_MS):
                    if self._closed:
                        raise BrokenPipeError("closed")
                with contextlib.suppress(BlockingIOError):
                    rest = rest[os.write(self._stdin.fileno(), rest) :]
        except ValueError as error:  # closed by another thread
            raise BrokenPipeError("stdin is closed") from error

    def recv(self, size: int) -> bytes:
        try:
            _readable(self._stdout.fileno(), self._timeout)
            return os.read(self._stdout.fileno(), size)
        except ValueError:  # closed meanwhile by another thread
            return b""

    def recv_stderr(self, size: int) -> bytes:
        """Read stderr. Closes it here, since only the reading thread knows when it is done."""
        while not self._closed:
            with contextlib.suppress(TimeoutError):
                _readable(self._stderr.fileno(), _CLOSED_CHECK_MS / 1000)
                data = os.read(self._stderr.fileno(), size)
                if data:
                    return data
                break
        self._stderr.close()
        return b""

    def close_stdin(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def wait(self, seconds: float | None) -> int | None:
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status  # death by signal n, as shells show it

    def close(self) -> None:
        self._closed = True
        self.close_stdin()
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            # A root child (sudo) may not be killable; it ends at the end of its stdin.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)
            self.wait(_HANG_UP_GRACE)
        self._stdout.close()


def _readable(descriptor: int, seconds: float | None) -> None:
    """Wait until there is something to read. Raises TimeoutError after `seconds`."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    if not poller.poll(None if seconds is None else max(0, int(seconds * 1000))):
        raise TimeoutError


def account() -> str:
    """The user's name; `uid N` without an entry in passwd, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # OSError from Python 3.13 on
        return f"uid {os.getuid()}"
