"""A small HTTP proxy: it writes down what it is asked for, and resolves names itself."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class FakeProxy:
    ip: str
    names: dict[str, int]
    """Name that only the proxy knows: a port at `ip`."""
    asked: list[str] = field(default_factory=list)
    """host:port of each request, in order."""
    url: str = ""

    def asked_for(self, name: str) -> bool:
        return any(one.partition(":")[0] == name for one in self.asked)


class _Handler(BaseHTTPRequestHandler):
    proxy: FakeProxy

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""

    def do_CONNECT(self) -> None:
        port = self._port_of(self.path)
        if port is None:
            return
        with socket.create_connection((self.proxy.ip, port)) as there:
            self.send_response(200)
            self.end_headers()
            both = {self.connection: there, there: self.connection}
            while ready := select.select(list(both), [], [], 30)[0]:
                for one in ready:
                    data = one.recv(65536)
                    if not data:
                        return
                    both[one].sendall(data)

    def do_GET(self) -> None:
        where = urlsplit(self.path)
        port = self._port_of(where.netloc)
        if port is None:
            return
        there = HTTPConnection(self.proxy.ip, port, timeout=30)
        headers = {name: value for name, value in self.headers.items() if name != "Connection"}
        try:
            there.request("GET", where._replace(scheme="", netloc="").geturl(), headers=headers)
            with there.getresponse() as answer:
                data = answer.read()
        except (OSError, HTTPException):
            self.send_error(502, "no answer")
            return
        finally:
            there.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _port_of(self, place: str) -> int | None:
        self.proxy.asked.append(place)
        port = self.proxy.names.get(place.partition(":")[0])
        if port is None:
            self.send_error(502, "no such name")
        return port


@contextmanager
def running_proxy(
    names: dict[str, int], ip: str = "127.0.0.1", port: int = 0
) -> Iterator[FakeProxy]:
    """Run one at `ip` that knows these names, each for a port there."""
    proxy = FakeProxy(ip, names)
    kind = type("Handler", (_Handler,), {"proxy": proxy})
    with ThreadingHTTPServer((ip, port), kind) as server:
        server.daemon_threads = True
        proxy.url = f"http://{ip}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()
