"""Commands that end while their stdin is being closed do not cost the connection: paramiko#1115.

The order of messages is forced: the other side's CLOSE is handled between making a message and
sending it, which on a busy machine happens by itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import paramiko
import pytest

from clusterctl.transport.dialer import Dialer
from clusterctl.transport.ordered import OrderedChannel
from clusterctl.transport.ssh import SshWire
from clusterctl.transport.target import target_of
from tests.contract.transport.conftest import StartSshd
from tests.contract.transport.sshd import Sshd

pytestmark = pytest.mark.sshd


@contextmanager
def ended_command(sshd: Sshd, dialer: Dialer) -> Iterator[tuple[paramiko.Transport, Any]]:
    """A channel whose command has ended, and whose CLOSE is on its way or here."""
    connection = dialer.connect(target_of(sshd.host()))
    channel = connection.transport.open_session()
    channel.exec_command("true")
    yield connection.transport, channel
    connection.close()


def alive(transport: paramiko.Transport) -> bool:
    """Whether the connection still carries a command."""
    channel = transport.open_session(timeout=10)
    channel.exec_command("exit 7")
    return bool(channel.recv_exit_status() == 7)


class PoliteLock:
    """A lock after which the thread of the test lets others go first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.2)

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_an_end_of_file_is_not_sent_behind_the_channels_end(sshd: Sshd, dialer: Dialer) -> None:
    with ended_command(sshd, dialer) as (transport, channel):
        channel.lock = PoliteLock()
        channel.out_buffer_cv = threading.Condition(channel.lock)
        closer = threading.Thread(target=channel.close)
        make = channel._send_eof

        def make_while_another_closes() -> Any:
            if closer.ident is None:
                closer.start()
            return make()

        channel._send_eof = make_while_another_closes
        OrderedChannel(channel).send_eof()
        closer.join()
        assert alive(transport)


def test_data_for_a_closed_channel_is_refused_here(sshd: Sshd, dialer: Dialer) -> None:
    with ended_command(sshd, dialer) as (transport, channel):
        channel.close()
        channel._wait_for_send_window = lambda size: size  # it was open when that was asked
        with pytest.raises(OSError, match="closed"):
            OrderedChannel(channel).send_some(b"hello")
        assert alive(transport)


def test_many_short_commands_with_input_leave_the_connection_alone(
    start_sshd: StartSshd, dialer: Dialer
) -> None:
    """More sessions than they are: a busy sshd counts those that it has yet to end."""
    daemon = start_sshd({"MaxSessions": "100"})
    with ended_command(daemon, dialer) as (transport, _):
        for _ in range(50):
            channel = transport.open_session()
            channel.exec_command("true")
            ordered = OrderedChannel(channel)
            with contextlib.suppress(OSError):
                ordered.sendall(b"x" * 100_000)
            ordered.send_eof()
            channel.close()
        assert alive(transport)


@pytest.mark.parametrize("ending", [SshWire, OrderedChannel])
def test_to_close_a_channel_of_a_broken_connection_is_no_error(
    sshd: Sshd,
    dialer: Dialer,
    monkeypatch: pytest.MonkeyPatch,
    ending: Callable[[paramiko.Channel], OrderedChannel],
) -> None:
    connection = dialer.connect(target_of(sshd.host()))
    channel = connection.transport.open_session()
    channel.exec_command("cat")

    def broken(out: bytes) -> None:
        raise EOFError

    monkeypatch.setattr(connection.transport.packetizer, "write_all", broken)
    ending(channel).close()
    assert channel.closed
    connection.close()
