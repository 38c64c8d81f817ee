"""Both model hubs on this machine: the parts of their APIs that clusterctl uses, with the ways
they refuse. What it answers is modelled on the documents and clients that huggingface.py and
modelscope.py name; no real hub is asked.

The Hugging Face side redirects weights to a second server, as the real one does, and that one
answers nobody who brings credentials along.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "c0ffee0123456789c0ffee0123456789c0ffee01"
LARGE = 1000
"""Bytes from which a file counts as one for git-lfs."""


@dataclass
class FakeHubs:
    """What the hubs hold, and how they are to misbehave."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Model id: path: content."""
    gated: set[str] = field(default_factory=set)
    """Model ids whose files are for TOKEN only; their listing is public."""
    private: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    """Path: after so many bytes of an answer the connection ends, once each time it is asked."""
    wrong: dict[str, int] = field(default_factory=dict)
    """Path: so many times other bytes are sent."""
    busy: dict[str, int] = field(default_factory=dict)
    """Path: so many times its storage answers 503."""
    ranges: bool = True
    slow: set[str] = field(default_factory=set)
    """Paths whose bytes come 64 KiB every 20 ms."""
    limited: int = 0
    """Seconds that the Hugging Face API wants nobody to ask."""
    asked: list[str] = field(default_factory=list)
    """Request lines with their Range, in order."""
    entrusted: list[str] = field(default_factory=list)
    """Request lines that came with credentials."""
    hold: threading.Event = field(default_factory=threading.Event)
    """While it is not set, what is in `held` waits after its first half."""
    held: set[str] = field(default_factory=set)
    endpoint: str = ""
    storage: str = ""


TOKEN = "hf_secret"


@contextmanager
def running_hubs(
    hubs: FakeHubs, address: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> Iterator[FakeHubs]:
    """Serve both APIs at `hubs.endpoint` until the end."""
    front, storage = (_server(hubs, address, kind) for kind in (_Front, _Storage))
    if tls:
        for server in (front, storage):
            server.socket = tls.wrap_socket(server.socket, server_side=True)
    scheme = "https" if tls else "http"
    hubs.endpoint = f"{scheme}://{address}:{front.server_address[1]}"
    hubs.storage = f"{scheme}://{address}:{storage.server_address[1]}"
    try:
        yield hubs
    finally:
        hubs.hold.set()
        for server in (front, storage):
            server.shutdown()
            server.server_close()


def _server(hubs: FakeHubs, address: str, kind: type[_Answers]) -> ThreadingHTTPServer:
    server = ThreadingHTTPServer((address, 0), type("Handler", (kind,), {"hubs": hubs}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


class _Answers(BaseHTTPRequestHandler):
    hubs: FakeHubs
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.hubs.asked.append(f"{self.path} {self.headers.get('Range', '')}".strip())
        if self.headers.get("Authorization") or self.headers.get("Cookie"):
            self.hubs.entrusted.append(self.path)
        where = urlsplit(self.path)
        self.answer(unquote(where.path), {k: v[0] for k, v in parse_qs(where.query).items()})

    def answer(self, path: str, query: dict[str, str]) -> None:
        raise NotImplementedError

    def document(self, status: int, document: object, **headers: str) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.body(body)

    def body(self, data: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(data)

    def file(self, path: str, data: bytes, **headers: str) -> None:
        """`data`, or the range asked for, with the faults that `hubs` has for `path`."""
        if self.hubs.wrong.get(path, 0):
            self.hubs.wrong[path] -= 1
            data = bytes(255 - byte for byte in data)
        asked = self.headers.get("Range") if self.hubs.ranges else None
        first, _, last = (asked or "bytes=0-").removeprefix("bytes=").partition("-")
        begin, end = int(first), min(int(last or len(data)) + 1, len(data))
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        rest = data[begin:end]
        self.send_header("Content-Length", str(len(rest)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        cut = self.hubs.cut.get(path)
        if path in self.hubs.held:
            self.wfile.write(rest[: len(rest) // 2])
            self.hubs.hold.wait(30)
            rest = rest[len(rest) // 2 :]
        while path in self.hubs.slow and rest:
            self.wfile.write(rest[:65536])
            rest = rest[65536:]
            time.sleep(0.02)
        self.body(rest if cut is None else rest[:cut])
        self.close_connection = cut is not None


class _Front(_Answers):
    def answer(self, path: str, query: dict[str, str]) -> None:
        if path.startswith("/api/v1/models/"):
            self.modelscope(path.removeprefix("/api/v1/models/"), query)
        elif path.startswith("/api/models/"):
            self.hf_api(path.removeprefix("/api/models/"), query)
        else:
            self.hf_file(path)

    @property
    def known(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def hf_api(self, path: str, query: dict[str, str]) -> None:
        organisation, name, _revision, revision = path.split("/", 3)
        model = f"{organisation}/{name}"
        if self.hubs.limited:
            self.document(429, {"error": "rate limit"}, Retry_After=str(self.hubs.limited))
        elif model not in self.hubs.models or (model in self.hubs.private and not self.known):
            self.refuse(401, "RepoNotFound", "Repository not found")
        elif revision not in {"main", COMMIT}:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            files = sorted(self.hubs.models[model].items())
            siblings = [_hf_entry(path, data, "blobs" in query) for path, data in files]
            self.document(200, {"id": model, "sha": COMMIT, "siblings": siblings})

    def hf_file(self, path: str) -> None:
        organisation, name, _, _, file = path.lstrip("/").split("/", 4)
        model = f"{organisation}/{name}"
        data = self.hubs.models[model][file]
        if model in self.hubs.gated and not self.known:
            self.refuse(403, "GatedRepo", "Access to this model is restricted.")
        elif len(data) < LARGE:
            self.file(file, data, X_Repo_Commit=COMMIT, ETag=f'"{_git_sha1(data)}"')
        else:
            self.send_response(302)
            self.send_header("Location", f"{self.hubs.storage}/{model}/{file}?signed=1")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def refuse(self, status: int, code: str, text: str) -> None:
        self.document(status, {"error": text}, X_Error_Code=code, X_Error_Message=text)

    def modelscope(self, path: str, query: dict[str, str]) -> None:
        organisation, name, rest = path.split("/", 2)
        model = f"{organisation}/{name}"
        if model not in self.hubs.models or query["Revision"] != "master":
            self.document(404, {"Code": 10010205001, "Message": "not found", "Success": False})
        elif model in self.hubs.private and f"m_session_id={TOKEN}" not in str(self.headers):
            self.document(403, {"Code": 10010205002, "Message": "no access", "Success": False})
        elif rest == "repo/files":
            found = [_modelscope_entry(p, d) for p, d in self.hubs.models[model].items()]
            folder = {"Path": "folder", "Name": "folder", "Type": "tree", "Size": 0}
            self.document(200, {"Code": 200, "Data": {"Files": [folder, *found]}})
        else:
            self.file(query["FilePath"], self.hubs.models[model][query["FilePath"]])


class _Storage(_Answers):
    def answer(self, path: str, query: dict[str, str]) -> None:
        if self.headers.get("Authorization") or self.headers.get("Cookie"):
            self.document(400, {"error": "only one auth mechanism allowed"})
            return
        organisation, name, file = path.lstrip("/").split("/", 2)
        if self.hubs.busy.get(file, 0):
            self.hubs.busy[file] -= 1
            self.document(503, {"error": "overloaded"})
            return
        self.file(file, self.hubs.models[f"{organisation}/{name}"][file])


def _hf_entry(path: str, data: bytes, blobs: bool) -> dict[str, object]:
    if not blobs:
        return {"rfilename": path}
    entry: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": _git_sha1(data)}
    if len(data) >= LARGE:
        oid = hashlib.sha256(data).hexdigest()
        entry["lfs"] = {"sha256": oid, "size": len(data), "pointerSize": 134}
    return entry


def _git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _modelscope_entry(path: str, data: bytes) -> dict[str, object]:
    return {
        "Path": path,
        "Name": path.rpartition("/")[2],
        "Type": "blob",
        "Size": len(data),
        "Sha256": hashlib.sha256(data).hexdigest(),
        "Revision": COMMIT,
        "CommittedDate": 1700000000,
        "IsLFS": len(data) >= LARGE,
    }
