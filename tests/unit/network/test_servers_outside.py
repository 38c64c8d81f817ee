"""Servers of the inventory that hosts do not reach: `check` says so before anything is changed."""

from __future__ import annotations

import socket
import subprocess
from typing import Any

from clusterctl.inventory.model import Host, Inventory, Packages, Proxy
from clusterctl.network.outside import unreached
from clusterctl.transport.base import CommandResult
from tests.fakes.ports import port_of, reserved
from tests.fakes.transport import Call, FakeTransport, starts

HOSTS = (Host(name="a", address="10.0.0.1", role="head"), Host(name="b", address="10.0.0.2"))


def notes(nodes: tuple[str, ...] = (), **packages: Any) -> tuple[str, ...]:
    """What is said where both hosts are this machine."""
    transports = {host.name: FakeTransport(host) for host in HOSTS}

    def run(call: Call) -> CommandResult:
        ran = subprocess.run(call.argv, capture_output=True, text=True, check=False)
        return CommandResult(call.argv, ran.returncode, ran.stdout, ran.stderr)

    for transport in transports.values():
        transport.on(starts("timeout"), answer=run)
    made = Inventory(cluster="demo", image="i:1", hosts=HOSTS, packages=Packages(**packages))
    return unreached(made, transports, nodes)


def test_a_proxy_that_refuses_is_named_with_its_hosts_and_the_reason() -> None:
    with reserved() as held:
        port = port_of(held)
        url = f"http://127.0.0.1:{port}"
        (note,) = notes(proxy=Proxy(http=url, https=url))
        assert note == (
            f"a, b: 127.0.0.1:{port} (packages.proxy) cannot be reached: Connection refused"
        )
        assert notes(("a", "b"), proxy=Proxy(http=url)) == ()


def test_an_index_without_a_name_is_said_once() -> None:
    (note,) = notes(pip_index="https://no-such-index.invalid/simple")
    assert note.startswith("a: no-such-index.invalid:443 (packages.pip_index) cannot be reached: ")


def test_what_answers_or_is_behind_the_proxy_is_not_mentioned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert notes(proxy=Proxy(http=url), pip_index="https://pypi.corp.invalid/simple") == ()
        behind = notes(
            proxy=Proxy(http=url, no_proxy=(".corp.invalid",)),
            pip_index="https://pypi.corp.invalid/simple",
        )
        assert [note.split(" ")[1] for note in behind] == ["pypi.corp.invalid:443"]
