"""Hashing on a host ends with the SSH session that asked for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError
from clusterctl.transfer.weights.hashing import hashes
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.ssh import SshTransport
from tests.contract.transport.sshd import SSHD, eventually, make_key, running_sshd, session_of

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.skipif(not Path(SSHD).exists(), reason="sshd is not installed"),
]


@pytest.fixture
def transport(tmp_path: Path) -> Iterator[SshTransport]:
    key = make_key(tmp_path / "id")
    dialer = Dialer(Credentials(environment={}), ssh_config=tmp_path / "no_ssh_config")
    with running_sshd(tmp_path / "sshd", client_key=key) as daemon:
        made = SshTransport(daemon.host("h1"), dialer)
        yield made
        made.close()
        dialer.close()


def readers(file: Path) -> list[int]:
    """Processes that have it open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            opened = {each.readlink() for each in (entry / "fd").iterdir()}
        except OSError:  # it has ended, or is another user's
            continue
        if file in opened:
            found.append(int(entry.name))
    return found


def test_it_ends_where_the_connection_is_lost(transport: SshTransport, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as made:
        made.truncate(1 << 40)  # without blocks, and read for longer than anybody waits here
    begun, errors = threading.Event(), list[ClusterctlError]()

    def read() -> None:
        try:
            hashes(transport, [str(large)], 1 << 40, say=lambda _: begun.set(), every=0.1)
        except ClusterctlError as error:
            errors.append(error)

    session = session_of(transport)
    reading = threading.Thread(target=read)
    reading.start()
    try:
        assert begun.wait(60)
        assert readers(large)
    finally:
        os.kill(session, signal.SIGKILL)
    reading.join(60)
    assert errors
    ended = eventually(lambda: not readers(large))
    for process in readers(large):  # nor does a test that fails leave one
        os.kill(process, signal.SIGKILL)
    assert ended
