"""A registry on loopback that behaves as badly as it is told to."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from clusterctl.transfer.content import OCI_INDEX, OCI_MANIFEST
from tests.fakes.image_archives import MadeImage, sha256


@dataclass
class Request:
    path: str
    authorization: str
    range: str


@dataclass
class RegistryServer:
    """`demand`: token, basic, or nothing. The lists are used up from their front, one entry for
    each answer of their kind."""

    demand: str = ""
    login: tuple[str, str] | None = None
    """Who may read; None for everybody who has a token."""
    token_life: int = 10**9
    """Requests that a token is good for."""
    ignore_ranges: bool = False
    cut: deque[int] = field(default_factory=deque)
    """A blob's answer ends after so many bytes."""
    answers: deque[tuple[int, dict[str, str]]] = field(default_factory=deque)
    """Statuses and headers in place of what was asked for; 0 hangs up."""
    redirect: str = ""
    """URL that blobs are to be had from."""
    gate: threading.Event | None = None
    """The rest of a blob is sent only when it is set."""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)
    """What was asked for a token with, by POST; nobody gets one so, but is led to `redirect`."""
    tokens: int = 0
    port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def add(self, name: str, *images: MadeImage) -> str:
        """The reference to pull; several images become an index."""
        path, tag = name.split(":")
        for image in images:
            self.manifests[f"{path}/{sha256(image.manifest)}"] = image.manifest
            self.manifests[name.replace(":", "/")] = image.manifest
            for data in (image.config, *image.layers):
                self.blobs[sha256(data)] = data
        if len(images) > 1:
            entries = [image.entry for image in images]
            index = {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}
            self.manifests[f"{path}/{tag}"] = json.dumps(index).encode()
        return f"{self.address}/{name}"

    def blob_requests(self, data: bytes) -> list[Request]:
        return [one for one in self.requests if one.path.endswith(f"/blobs/{sha256(data)}")]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    registry: RegistryServer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        said = self.headers.get("Authorization", "")
        if url.path == "/token":
            self._token(parse_qs(url.query), said)
            return
        self.registry.requests.append(Request(url.path, said, self.headers.get("Range", "")))
        if url.path == "/v2/":
            self._send(200, b"{}")
        elif not self._admitted(said):
            self._challenge()
        elif self.registry.answers:
            self._say(*self.registry.answers.popleft())
        elif "/manifests/" in url.path:
            self._manifest(url.path)
        else:
            self._blob(url.path)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.registry.forms.append(body.decode())
        self._send(307, b"", {"Location": f"{self.registry.redirect}/token"})

    def _admitted(self, said: str) -> bool:
        server = self.registry
        if server.demand == "token":
            number, _, rest = said.removeprefix("Bearer t").partition("-")
            if not rest or int(number) != server.tokens:
                return False
            used = sum(one.authorization == said for one in server.requests)
            return used <= server.token_life
        return server.demand != "basic" or said == _basic(server.login)

    def _challenge(self) -> None:
        how = f'Basic realm="{self.registry.address}"'
        if self.registry.demand == "token":
            realm = f"http://{self.registry.address}/token"
            how = f'Bearer realm="{realm}",service="test",scope="repository:acme/vllm:pull"'
        self._send(401, b'{"errors":[]}', {"WWW-Authenticate": how})

    def _token(self, query: dict[str, list[str]], said: str) -> None:
        assert query["service"] == ["test"]
        assert query["scope"] == ["repository:acme/vllm:pull"]
        if self.registry.login and said != _basic(self.registry.login):
            self._send(401, b"{}")
            return
        self.registry.tokens += 1
        self._send(200, json.dumps({"token": f"t{self.registry.tokens}-secret"}).encode())

    def _say(self, status: int, headers: dict[str, str]) -> None:
        if status:
            self._send(status, b"{}", headers)
        else:
            self.close_connection = True

    def _manifest(self, path: str) -> None:
        name = path.removeprefix("/v2/").replace("/manifests/", "/")
        data = self.registry.manifests.get(name)
        if data is None:
            self._send(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
            return
        kind = OCI_INDEX if OCI_INDEX.encode() in data else OCI_MANIFEST
        self._send(200, data, {"Content-Type": kind})

    def _blob(self, path: str) -> None:
        server, name = self.registry, path.rpartition("/")[2]
        if server.redirect:
            self._send(307, b"", {"Location": f"{server.redirect}{path}"})
        elif name not in server.blobs:
            self._send(404, b"{}")
        else:
            self._part(server.blobs[name])

    def _part(self, data: bytes) -> None:
        first = self.headers.get("Range", "").removeprefix("bytes=").rstrip("-")
        start = int(first) if first and not self.registry.ignore_ranges else 0
        status, headers = (206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})
        if not start:
            status, headers = 200, {}
        end = self.registry.cut.popleft() if self.registry.cut else len(data) - start
        body = data[start:]
        self._head(status, len(body), headers)
        begin = min(end, 300_000)
        self.wfile.write(body[:begin])
        if self.registry.gate:
            self.wfile.flush()
            assert self.registry.gate.wait(20)
        self.wfile.write(body[begin:end])
        self.close_connection = end < len(body)

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._head(status, len(body), headers or {})
        self.wfile.write(body)

    def _head(self, status: int, size: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(size), **headers}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the library
        del format, args


def _basic(login: tuple[str, str] | None) -> str:
    return f"Basic {base64.b64encode(':'.join(login or ('', '')).encode()).decode()}"


@contextmanager
def registry_server(tls: ssl.SSLContext | None = None) -> Iterator[RegistryServer]:
    server = RegistryServer()
    handler = type("Handler", (_Handler,), {"registry": server})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        http.daemon_threads = True
        if tls:
            http.socket = tls.wrap_socket(http.socket, server_side=True)
        server.port = http.server_address[1]
        thread = threading.Thread(target=http.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        http.shutdown()
        thread.join()
