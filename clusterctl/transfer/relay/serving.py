"""Answering: the host's own engine on 127.0.0.1, the next relay on the host's address."""

import hashlib
import socket
import threading
from typing import Callable, Dict, Optional, Tuple

from clusterctl.transfer.relay import http_wire
from clusterctl.transfer.relay.delivery import SLOWEST, Delivery, Hung
from clusterctl.transfer.relay.holdings import Holdings
from clusterctl.transfer.relay.http_wire import Request
from clusterctl.transfer.relay.stored import Restarted, Stored, Unavailable

TLS_CLIENT_HELLO = 0x16
NOT_TLS = b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n"
"""Engines try https first, and containerd falls back to http only on an answer that begins with
HTTP/ (core/remotes/docker, httpFallback)."""

Answer = Callable[["Conversation", Request], None]


class Conversation:
    """One connection: requests one after the other."""

    def __init__(self, connection: socket.socket, answer: Answer) -> None:
        self.connection = connection
        self._answer = answer
        self._pending = b""

    def run(self) -> None:
        self.connection.settimeout(SLOWEST)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while self._one():
                pass
        except (OSError, Hung, Restarted, Unavailable, http_wire.BadRequest):
            pass  # the reader is gone, or what it got so far must not look whole
        finally:
            self._end()

    def say(
        self, status: int, headers: Tuple[Tuple[str, str], ...] = (), body: bytes = b""
    ) -> None:
        length = ("Content-Length", str(len(body)))
        self.connection.sendall(http_wire.answer(status, (*headers, length)) + body)

    def _one(self) -> bool:
        head = self._head()
        if head is None:
            return False
        request = http_wire.parse_request(head)
        if request.method not in ("GET", "HEAD"):
            self.say(405)
            return False
        self._answer(self, request)
        return request.keep

    def _head(self) -> Optional[bytes]:
        while b"\r\n\r\n" not in self._pending:
            data = self.connection.recv(65536)
            if not data or len(self._pending) > http_wire.MOST_HEAD:
                return None
            self._pending += data
            if self._pending[0] == TLS_CLIENT_HELLO:
                self.connection.sendall(NOT_TLS)
                return None
        head, _, self._pending = self._pending.partition(b"\r\n\r\n")
        return head

    def _end(self) -> None:
        """Without a reset, which would take what was said away from the reader."""
        try:
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(1.0)
            while self.connection.recv(65536):
                pass
        except OSError:
            pass
        self.connection.close()


class Registry:
    """The engine's side: an OCI registry to read one image from. Paths begin with a random word
    that only who was told the reference knows."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._repository = ""
        self._manifests: Dict[str, Tuple[str, str, bytes]] = {}

    def offer(self, repository: str, tag: str, media_type: str, manifest: bytes) -> None:
        """Answer for `repository`, the random word first, with this manifest."""
        digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
        self._repository = repository
        self._manifests = dict.fromkeys((tag, digest), (digest, media_type, manifest))

    def answer(self, conversation: Conversation, request: Request) -> None:
        if request.path.rstrip("/") == "/v2":
            return conversation.say(200, (("Docker-Distribution-API-Version", "registry/2.0"),))
        root = "/v2/%s/" % self._repository
        kind, _, name = request.path[len(root) :].partition("/")
        known = bool(self._repository) and request.path.startswith(root)
        if known and kind == "manifests" and name in self._manifests:
            return self._manifest(conversation, request, *self._manifests[name])
        blob = self._holdings.find(name[len("sha256:") :]) if known and kind == "blobs" else None
        if blob is None:
            return conversation.say(404)
        return self._blob(conversation, request, blob)

    def _manifest(
        self,
        conversation: Conversation,
        request: Request,
        digest: str,
        media_type: str,
        manifest: bytes,
    ) -> None:
        headers = (
            ("Content-Type", media_type),
            ("Docker-Content-Digest", digest),
            ("Content-Length", str(len(manifest))),
        )
        body = manifest if request.method == "GET" else b""
        conversation.connection.sendall(http_wire.answer(200, headers) + body)

    def _blob(self, conversation: Conversation, request: Request, blob: Stored) -> None:
        try:
            found = http_wire.range_of(request.header("range"), blob.size)
        except http_wire.Unsatisfiable:
            return conversation.say(416, (("Content-Range", "bytes */%d" % blob.size),))
        start, end = found or (0, blob.size)
        headers = [
            ("Content-Type", "application/octet-stream"),
            ("Docker-Content-Digest", "sha256:" + blob.digest),
            ("Accept-Ranges", "bytes"),
            ("Content-Length", str(end - start)),
        ]
        if found:
            headers.append(("Content-Range", "bytes %d-%d/%d" % (start, end - 1, blob.size)))
        connection = conversation.connection
        connection.sendall(http_wire.answer(206 if found else 200, headers))
        if request.method == "GET":
            Delivery(connection, blob, start, end, self._holdings.ask).plain()
        return None


class Handover:
    """The side of other relays: ranges of blobs for who has the token of this run."""

    def __init__(self, holdings: Holdings, token: str) -> None:
        self._holdings = holdings
        self._expected = hashlib.sha256(b"Bearer " + token.encode()).digest()

    def answer(self, conversation: Conversation, request: Request) -> None:
        # Digests are compared: how long that takes tells nothing of the token.
        given = hashlib.sha256(request.header("authorization").encode("latin-1")).digest()
        if given != self._expected:
            return conversation.say(401, (("WWW-Authenticate", "Bearer"),))
        prefix = "/blobs/sha256:"
        known = request.method == "GET" and request.path.startswith(prefix)
        blob = self._holdings.find(request.path[len(prefix) :]) if known else None
        if blob is None:
            return conversation.say(404)
        if blob.fault:
            return conversation.say(503)
        try:
            start, end = http_wire.range_of(request.header("range"), blob.size) or (0, blob.size)
        except http_wire.Unsatisfiable:
            return conversation.say(416)
        headers = (("Content-Type", "application/vnd.clusterctl.frames"),)
        conversation.connection.sendall(http_wire.answer(206, headers))
        return Delivery(conversation.connection, blob, start, end, self._holdings.ask).framed()


def listen(address: str, port: int) -> socket.socket:
    """A listening socket at `port`, or at another one when that is taken. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for wanted in (port, 0):
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((address, wanted))
            listener.listen(64)
        except OSError:
            listener.close()
            if not wanted:
                raise
        else:
            return listener
    raise OSError("no port")


def serve(listener: socket.socket, answer: Answer) -> None:
    """Answer every connection in a thread of its own, until the process ends."""

    def accept() -> None:
        while True:
            connection, _ = listener.accept()
            thread = threading.Thread(target=Conversation(connection, answer).run)
            thread.daemon = True
            thread.start()

    thread = threading.Thread(target=accept)
    thread.daemon = True
    thread.start()
