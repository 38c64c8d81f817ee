"""A host over SSH: one connection, at most four commands at once, output as bytes.

Fabric opens the connection (dialer); commands run on Paramiko channels, because Fabric's own `run`
decodes output as text and does not quote for any shell.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import cast

import fabric
import paramiko

from clusterctl import deadlines
from clusterctl.errors import ConnectionFailed
from clusterctl.inventory.model import Host
from clusterctl.transport.base import Channel
from clusterctl.transport.command import Wire, login_shell_line
from clusterctl.transport.dialer import Dialer, Pulse
from clusterctl.transport.ordered import OrderedChannel
from clusterctl.transport.shell import ShellTransport
from clusterctl.transport.target import target_of
from clusterctl.transport.tcp import SocketChannel

# Commands at once on a host. sshd's MaxSessions is 10 by default, and 2 to 4 on hardened hosts,
# where further commands wait.
CHANNELS = 4

# Status of a login shell that a signal killed: Paramiko drops the message with its number.
_KILLED = 128 + 9


class SshTransport(ShellTransport):
    """Connects at first use, and reconnects if the connection was lost meanwhile."""

    def __init__(
        self,
        host: Host,
        dialer: Dialer | None = None,
        *,
        pulse: Callable[[paramiko.Transport], Pulse] = Pulse,
    ) -> None:
        self._make_pulse = pulse
        self._dialer = dialer or Dialer()
        self._owns_dialer = dialer is None
        super().__init__(host, self._dialer.credentials)
        self._target = target_of(host)
        self._connection: fabric.Connection | None = None
        self._pulse: Pulse | None = None
        self._connecting = threading.Lock()
        self._breaks = 0  # Before this connection
        self._turns = threading.BoundedSemaphore(CHANNELS)

    @property
    def user(self) -> str:
        # The inventory overrides ~/.ssh/config, and resolving costs as much as a login.
        named = self._target.ssh.user
        return named or cast("str", self._dialer.resolve(self._target).connection.user)

    @property
    def breaks(self) -> int:
        with self._connecting:
            return self._breaks + self._is_broken()

    def _is_broken(self) -> bool:
        return self._connection is not None and not self._connection.transport.is_active()

    def connect(self) -> None:
        """Connect now. Raises ConnectionFailed."""
        self._transport()

    def another(self) -> SshTransport:
        return SshTransport(self._host, self._dialer, pulse=self._make_pulse)

    def open_tcp(self, address: str, port: int) -> Channel:
        """Open a `direct-tcpip` channel, which does not count as a command, not for sshd either."""
        try:
            channel = self._transport().open_channel(
                "direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=deadlines.SESSION
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionFailed(
                f"it cannot reach {address}:{port}",
                host=self._host.name,
                hint=f"clusterctl exec --limit {self._host.name} -- ss -ltn",
                detail=str(error),
            ) from error
        return SocketChannel(OrderedChannel(channel), self._host.name)

    def close(self) -> None:
        with self._connecting:
            if self._pulse:
                self._pulse.stop()
            if self._connection:
                self._connection.close()
            self._connection = self._pulse = None
        if self._owns_dialer:
            self._dialer.close()

    def _transport(self) -> paramiko.Transport:
        with self._connecting:
            if self._is_broken():
                self._breaks += 1
                self._connection = None
            if self._connection is None:
                if self._pulse:
                    self._pulse.stop()
                self._connection = self._dialer.connect(self._target)
                self._pulse = self._make_pulse(self._connection.transport)
            return cast("paramiko.Transport", self._connection.transport)

    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        if not self._turns.acquire(timeout=deadlines.TURN):
            raise ConnectionFailed(
                f"{CHANNELS} commands are already running, and none ended within "
                f"{deadlines.TURN:g} s",
                host=self._host.name,
            )
        try:
            channel = self._session()
            channel.exec_command(login_shell_line(argv))
        except (paramiko.SSHException, EOFError, OSError) as error:
            self._turns.release()
            raise self._not_opened(error) from error
        except BaseException:
            self._turns.release()
            raise
        return SshWire(channel), self._turns.release

    def _session(self) -> paramiko.Channel:
        """Open a session; reconnect first if the connection was lost while idle. Retries while sshd
        refuses: MaxSessions are open, and others will end.

        Paramiko keeps the last refusal in one place for all threads, so that the second one gets an
        SSHException without a reason.
        """
        transport = self._transport()
        reconnected = False
        deadline = time.monotonic() + deadlines.SESSION
        while True:
            try:
                return transport.open_session(timeout=deadlines.SESSION)
            except (paramiko.SSHException, EOFError, OSError) as error:
                if transport.is_active():
                    if not isinstance(error, paramiko.SSHException) or time.monotonic() > deadline:
                        raise
                    time.sleep(random.uniform(0.02, 0.2))  # noqa: S311 - jitter
                elif reconnected:
                    raise
                else:
                    transport, reconnected = self._transport(), True
                    deadline = time.monotonic() + deadlines.SESSION

    def _not_opened(self, error: Exception) -> ConnectionFailed:
        detail = str(error) or type(error).__name__
        if self._connection is not None and self._connection.transport.is_active():
            return ConnectionFailed(
                f"sshd opened no session within {deadlines.SESSION:g} s",
                host=self._host.name,
                hint="raise MaxSessions in its /etc/ssh/sshd_config (default 10)",
                detail=detail,
            )
        return ConnectionFailed(
            "the connection was lost before a command could start",
            host=self._host.name,
            hint=self._target.command_line("true"),
            detail=detail,
        )


class SshWire(OrderedChannel):
    """A session channel that runs one command."""

    def send(self, data: bytes) -> None:
        self.sendall(data)

    def recv_stderr(self, size: int) -> bytes:
        while True:
            try:
                return bytes(self._channel.recv_stderr(size))
            except TimeoutError:
                continue

    def close_stdin(self) -> None:
        self.shutdown(socket.SHUT_WR)

    def wait(self, seconds: float | None) -> int | None:
        if not self._channel.status_event.wait(seconds):
            return None
        status: int = self._channel.exit_status
        if status == -1:
            # A lost connection's thread ends a moment after its channels are closed.
            transport = self._channel.get_transport()
            if transport.is_active():
                transport.join(0.5)
            return _KILLED if transport.is_active() else -1
        return status
