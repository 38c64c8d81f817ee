"""The first hop of a chain goes through a real SSH connection."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.transfer.content import Blob
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.dialer import Dialer
from clusterctl.transport.ssh import SshTransport
from tests.contract.transfer.conftest import MIB, Bench
from tests.contract.transport.sshd import SSHD, Sshd, make_key, running_sshd, session_of

pytestmark = [
    pytest.mark.sshd,
    pytest.mark.skipif(not Path(SSHD).exists(), reason="sshd is not installed"),
]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    key = make_key(tmp_path / "id")
    with running_sshd(tmp_path / "sshd", client_key=key) as daemon:
        yield daemon


@pytest.fixture
def transports(sshd: Sshd, tmp_path: Path) -> Iterator[list[SshTransport]]:
    """To h1 and h2, which are both this machine."""
    dialer = Dialer(Credentials(environment={}), ssh_config=tmp_path / "no_ssh_config")
    made = [SshTransport(sshd.host(f"h{number}"), dialer) for number in (1, 2)]
    yield made
    for transport in made:
        transport.close()
    dialer.close()


def test_blobs_come_through_ssh_and_on_to_the_next_host(
    bench: Bench, transports: list[SshTransport]
) -> None:
    blobs = [bench.source.add(size) for size in (20 * MIB, 5 * MIB, 100)]
    links = [
        replace(bench.link(number), transport=transport, python=())
        for number, transport in enumerate(transports, 1)
    ]

    with bench.chain(links, blobs) as chain:
        bench.bring(chain, ["h1", "h2"], blobs)

        assert chain.sent == sum(blob.size for blob in blobs)


def test_a_connection_that_breaks_is_made_again(
    bench: Bench, transports: list[SshTransport]
) -> None:
    blob = bench.source.add(40 * MIB)
    links = [
        replace(bench.link(number), transport=transport, python=())
        for number, transport in enumerate(transports, 1)
    ]
    broken: list[int] = []

    def break_once(_blob: Blob, position: int) -> None:
        if position >= 20 * MIB and not broken:
            broken.append(session_of(transports[0]))
            os.kill(broken[0], signal.SIGKILL)

    bench.source.gate = break_once
    with bench.chain(links, [blob]) as chain:
        bench.bring(chain, ["h1", "h2"], [blob])

        assert chain.sent < 1.5 * blob.size
    assert [host for host, text in bench.said if "restarting its relay" in text] == ["h1"]
