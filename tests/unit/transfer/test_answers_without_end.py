"""Servers, and proxies before them, whose answers do not end: little of one is read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.inventory.model import Host
from clusterctl.transfer.registry_image import RegistryImage
from clusterctl.transfer.weights.host_transport import HostTransport
from clusterctl.transfer.weights.hub import hub_session
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transport.local import LocalTransport

CHUNK = b" " * (1 << 20)
MOST = 256
"""MiB, after which the server ends after all: a test that fails is to end too."""


class Endless(ThreadingHTTPServer):
    """Answers `status` and blanks for ever; `sent` in MiB, what sockets keep among it."""

    daemon_threads = True

    def __init__(self, status: int, token: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.token = status, token
        self.sent = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Endless

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody reads it."""

    def do_GET(self) -> None:
        status = self.server.token if self.path.startswith("/token") else self.server.status
        if self.path.endswith("/again"):
            status = 404
        self.send_response(status)
        if status == 401:
            realm = f'Bearer realm="http://{self.server.address}/token",service="x"'
            self.send_header("WWW-Authenticate", realm)
        if status == 307:
            self.send_header("Location", f"{self.path}/again")
        self.end_headers()
        try:
            for _ in range(MOST):
                self.wfile.write(CHUNK)
                self.server.sent += 1
        except OSError:
            self.close_connection = True


@pytest.fixture
def endless() -> Iterator[Callable[..., Endless]]:
    running: list[Endless] = []

    def start(status: int, token: int = 200) -> Endless:
        server = Endless(status, token)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        running.append(server)
        return server

    yield start
    for server in running:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "token"),
    [(307, 200), (404, 200), (429, 200), (500, 200), (401, 200), (401, 403), (401, 404)],
)
def test_a_registrys_words_are_read_as_far_as_they_are_shown(
    endless: Callable[..., Endless], pulled: Callable[..., RegistryImage], status: int, token: int
) -> None:
    server = endless(status, token)
    with pytest.raises((StepFailed, RequirementsNotMet)) as raised:
        pulled(f"{server.address}/acme/vllm:1")
    assert len(raised.value.detail or "") <= 1000
    assert server.sent < MOST / 4


@pytest.mark.parametrize("by_host", [False, True])
@pytest.mark.parametrize("status", [200, 307, 404, 500])
def test_so_are_a_hubs(endless: Callable[..., Endless], by_host: bool, status: int) -> None:
    host = HostTransport(LocalTransport(Host(name="gpu1", address="localhost")))
    server = endless(status)
    hub = HuggingFace(f"http://{server.address}", False)
    with hub_session(host if by_host else None), pytest.raises(ClusterctlError):
        hub.listing("Org/Tiny-1B", None)
    assert server.sent < (MOST / 4 if status != 200 else MOST / 2)
