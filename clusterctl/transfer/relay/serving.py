"""HTTP servers: for the host's engine on 127.0.0.1, for the next relay on the host's address."""

import contextlib
import hashlib
import os
import select
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any, Callable, ClassVar, Dict, Optional, Tuple, Type

from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.fetching import Holdings
from clusterctl.transfer.relay.stored import Restarted, Segment, Stored, Unavailable

TURN = 8 << 20  # Bytes sent at a time

SLOWEST = 300.0  # Seconds without room in the socket's buffer, after which the connection is closed

HEAD_LIMIT = 10.0  # Seconds to name a blob, and with the token where one is needed
MOST_STRANGERS = 128  # Connections that have not done so; with more, the oldest one is closed
FAREWELL = 2.0  # Seconds to wait for a reader to take the last bytes

SIGN_OF_LIFE = 3.0  # Seconds without bytes after which a waiting relay gets an empty frame

Ask = Callable[[Stored, Segment], None]  # Starts a fetch of the segment unless one runs

TLS_CLIENT_HELLO = b"\x16"

# Engines try https first; containerd falls back to http only if the answer begins with HTTP/
# (core/remotes/docker, httpFallback).
NOT_TLS = b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n"


class Hung(Exception):
    """The reader closed the connection, or read nothing for SLOWEST seconds."""


class Delivery:
    """Sends bytes [start, end) of a blob over a connection."""

    def __init__(
        self, connection: socket.socket, blob: Stored, start: int, end: int, ask: Ask
    ) -> None:
        self._connection, self._blob, self._ask = connection, blob, ask
        self._position, self._end = start, end

    def plain(self) -> None:
        """Send the bytes as an HTTP body. Raises OSError, Hung, Restarted, Unavailable."""

        def check_alive() -> None:
            # An engine that waits for a body sends nothing, unless it closes the connection.
            poller = select.poll()
            poller.register(self._connection, select.POLLIN | select.POLLHUP)
            if poller.poll(0) and not self._connection.recv(1, socket.MSG_PEEK):
                raise Hung

        self._run(lambda _count: None, check_alive)

    def framed(self) -> None:
        """Send the bytes in frames, for relays (see wire). Raises OSError, Hung, Unavailable."""

        def announce(count: int) -> None:
            self._connection.sendall(wire.LENGTH.pack(count), socket.MSG_MORE)

        try:
            self._run(announce, lambda: self._connection.sendall(wire.LENGTH.pack(0)))
        except Restarted:
            self._connection.sendall(wire.LENGTH.pack(wire.RESTART))

    def _run(self, announce: Callable[[int], None], idle: Callable[[], None]) -> None:
        blob, file = self._blob, -1
        segment = blob.segment_at(self._position)
        turn = segment.round
        self._ask(blob, segment)
        try:
            while self._position < self._end:
                if blob.segment_at(self._position) is not segment:
                    segment = blob.segment_at(self._position)
                    turn = segment.round
                    self._ask(blob, segment)
                count = blob.wait(self._position, turn, SIGN_OF_LIFE)
                if not count:
                    idle()
                    continue
                if file < 0:
                    file = blob.open_for_reading(segment, turn)
                count = min(count, TURN, self._end - self._position)
                announce(count)
                self._send_file(file, count)
        finally:
            if file >= 0:
                os.close(file)

    def _send_file(self, file: int, count: int) -> None:
        while count:
            try:
                sent = os.sendfile(self._connection.fileno(), file, self._position, count)
            except BlockingIOError:
                poller = select.poll()
                poller.register(self._connection, select.POLLOUT)
                if not poller.poll(SLOWEST * 1000):
                    raise Hung from None
                continue
            if not sent:
                raise OSError("%s is shorter than it was" % self._blob.path)
            self._position += sent
            count -= sent


class Handler(BaseHTTPRequestHandler):
    """Serves one connection, one request after the other."""

    server: "Server"
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.0"  # invalid requests get a status line, too
    timeout = SLOWEST
    disable_nagle_algorithm = True

    def handle(self) -> None:
        try:
            if self.rfile.peek(1)[:1] == TLS_CLIENT_HELLO:  # type: ignore[attr-defined]
                self.wfile.write(NOT_TLS)
            else:
                super().handle()
        except (OSError, Hung, Restarted, Unavailable):
            pass  # the reader is gone, or must not take its bytes for a complete blob

    def do_GET(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.do_GET()

    def refuse(self) -> None:
        self.close_connection = True
        self.say(405)

    do_POST = do_PUT = do_PATCH = do_DELETE = refuse  # noqa: N815 - as http.server calls

    def say(
        self, status: int, headers: Tuple[Tuple[str, str], ...] = (), body: bytes = b""
    ) -> None:
        self.head(status, *headers, ("Content-Length", str(len(body))))
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def head(self, status: int, *headers: Tuple[str, str]) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()

    def send_error(self, code: int, *_: Any) -> None:
        """Answer input that is not a request, without http.server's error page."""
        self.close_connection = True
        self.say(code)

    def log_message(self, *_: Any) -> None:
        pass


def user_of(connection: socket.socket) -> Optional[int]:
    """Return the user ID of the other end of a TCP connection over 127.0.0.1; None if unknown."""
    ours, theirs = connection.getsockname()[1], connection.getpeername()[1]
    ends = ["0100007F:%04X" % port for port in (theirs, ours)]
    with open("/proc/net/tcp", encoding="ascii") as table:
        for row in table:
            fields = row.split()
            if fields[1:3] == ends:
                return int(fields[7])
    return None


class Registry(Handler):
    """Serves one image to the host's container engine, as an OCI registry. Users other than root
    and this process's own are refused. Paths begin with a random word, so that only clients with
    the reference can pull; but all users can see it in the arguments of the pull."""

    holdings: Holdings
    repository = ""  # the random word first
    manifests: ClassVar[
        Dict[str, Tuple[str, str, bytes]]
    ] = {}  # by tag and digest: digest, type, content

    def handle(self) -> None:
        try:
            user = user_of(self.connection)
        except OSError:
            return
        if user in (0, os.geteuid()):
            super().handle()

    @classmethod
    def offer(cls, repository: str, tag: str, media_type: str, manifest: bytes) -> None:
        digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
        cls.repository = repository
        cls.manifests = dict.fromkeys((tag, digest), (digest, media_type, manifest))

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.rstrip("/") == "/v2":
            return self.say(200, (("Docker-Distribution-API-Version", "registry/2.0"),))
        root = f"/v2/{self.repository}/"
        kind, _, name = path[len(root) :].partition("/")
        known = bool(self.repository) and path.startswith(root)
        if known:
            self.server.is_known(self.connection)
        if known and kind == "manifests" and name in self.manifests:
            digest, media_type, manifest = self.manifests[name]
            headers = (("Content-Type", media_type), ("Docker-Content-Digest", digest))
            return self.say(200, headers, manifest)
        blob = self.holdings.find(name[len("sha256:") :]) if known and kind == "blobs" else None
        return self.say(404) if blob is None else self._blob(blob)

    def _blob(self, blob: Stored) -> None:
        try:
            found = wire.range_of(self.headers.get("Range", ""), blob.size)
        except wire.Unsatisfiable:
            return self.say(416, (("Content-Range", f"bytes */{blob.size}"),))
        start, end = found or (0, blob.size)
        partly = [("Content-Range", f"bytes {start}-{end - 1}/{blob.size}")] if found else []
        self.head(
            206 if found else 200,
            ("Content-Type", "application/octet-stream"),
            ("Docker-Content-Digest", f"sha256:{blob.digest}"),
            ("Accept-Ranges", "bytes"),
            ("Content-Length", str(end - start)),
            *partly,
        )
        if self.command == "GET":
            Delivery(self.connection, blob, start, end, self.holdings.ask).plain()
        return None


class PeerHandler(Handler):
    """Serves ranges of blobs to other relays that have the token of this run. The body has no
    Content-Length, since it is framed: see wire."""

    holdings: Holdings
    expected = b""  # sha256 of the Authorization header

    def do_GET(self) -> None:
        # Comparing digests leaks nothing of the token through timing.
        given = self.headers.get("Authorization", "").encode("latin-1", "replace")
        if hashlib.sha256(given).digest() != self.expected:
            return self.say(401, (("WWW-Authenticate", "Bearer"),))
        self.server.is_known(self.connection)
        prefix = "/blobs/sha256:"
        known = self.command == "GET" and self.path.startswith(prefix)
        blob = self.holdings.find(self.path[len(prefix) :]) if known else None
        if blob is None:
            return self.say(404)
        if blob.fault:
            return self.say(503)
        try:
            start, end = wire.range_of(self.headers.get("Range", ""), blob.size) or (0, blob.size)
        except wire.Unsatisfiable:
            return self.say(416)
        self.head(206, ("Content-Type", "application/vnd.clusterctl.frames"))
        return Delivery(self.connection, blob, start, end, self.holdings.ask).framed()


class Server(socketserver.ThreadingTCPServer):
    """Serves each connection in its own thread, until the process ends. (HTTPServer would look up
    the name of its address.)"""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64
    head_limit = HEAD_LIMIT

    def __init__(self, address: str, port: int, handler: Type[Handler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), handler)
        self._strangers: Dict[socket.socket, float] = {}  # When each connected, oldest first
        self._meeting = threading.Lock()

    def get_request(self) -> Tuple[socket.socket, Any]:
        """Accept a connection. Pause after a failure, such as a lack of descriptors: the server
        would retry in a busy loop."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(0.1)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._meeting:
            self._strangers[request] = time.monotonic()
            if len(self._strangers) > MOST_STRANGERS:
                self._turn_away(next(iter(self._strangers)))
        super().process_request(request, client_address)

    def is_known(self, request: socket.socket) -> None:
        """Note that the client has the secret of this run, and may take its time."""
        with self._meeting:
            self._strangers.pop(request, None)

    def service_actions(self) -> None:
        """Disconnect clients that are slow to send a request; called twice a second."""
        before = time.monotonic() - self.head_limit
        with self._meeting:
            for request in [each for each, since in self._strangers.items() if since < before]:
                self._turn_away(request)

    def _turn_away(self, request: socket.socket) -> None:
        del self._strangers[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)  # its thread, which waits for bytes, closes it

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def shutdown_request(self, request: Any) -> None:
        """Close without a TCP reset, which would discard bytes that the client has not read yet."""
        self.is_known(request)
        until = time.monotonic() + FAREWELL
        try:
            request.shutdown(socket.SHUT_WR)
            request.settimeout(1.0)
            while request.recv(65536) and time.monotonic() < until:
                pass
        except OSError:
            pass
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # errors of unknown clients; stderr is for failures of the relay itself


def serve(address: str, port: int, handler: Type[Handler]) -> Server:
    """Listen on `port`, or on a free port if it is taken. Raises OSError."""
    try:
        server = Server(address, port, handler)
    except OSError:
        if not port:
            raise
        server = Server(address, 0, handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
