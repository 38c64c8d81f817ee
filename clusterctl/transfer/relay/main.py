"""The relay as a process: commands and bytes of the source on stdin, its state on stdout.

It exits when stdin ends, and after FORSAKEN seconds without a frame: a silently broken connection
must not leave a relay running that writes the same files as its successor.
"""

import hashlib
import os
import sys
import threading
import time
from typing import Any, BinaryIO, Dict, List, Type

from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.fetching import Holdings
from clusterctl.transfer.relay.serving import PeerHandler, Registry, serve
from clusterctl.transfer.relay.stored import Stored, sweep
from clusterctl.transfer.relay.upstream import (
    SOURCE,
    Peer,
    Source,
    Upstream,
    Upstreams,
    UpstreamStats,
)

STATE_EVERY = 1.0
# Seconds without a frame after which the controller counts as gone; it sends one every few
FORSAKEN = 40.0


class Relay:
    """One run: commands add blobs, start the servers, then set upstreams and blobs to fetch."""

    def __init__(self, commands: BinaryIO, told: BinaryIO) -> None:
        self._commands, self._told = commands, told
        self._telling = threading.Lock()
        self._stats: Dict[str, UpstreamStats] = {}
        self._peers: Dict[Any, Upstream] = {}
        self._heard = time.monotonic()
        self._token = ""
        self._upstreams = Upstreams(15.0)
        self._last: Dict[str, Upstream] = {}  # By name: those that are no relays
        self._source = self._last[SOURCE] = Source(self._stats_of(SOURCE), self.tell)
        self._holdings = Holdings(self._upstreams, self.say)
        Registry.holdings = PeerHandler.holdings = self._holdings

    def run(self) -> None:
        threading.Thread(target=self._watch, daemon=True).start()
        while True:
            frame = wire.read(self._commands)
            if frame is None:
                return
            # While a slow disk delays `deliver`, the controller must not count as gone.
            self._heard = float("inf")
            kind, stream, payload = frame
            if kind != wire.COMMAND:
                self._source.deliver(kind, stream, payload)
            else:
                for name, *rest in wire.parse(payload):
                    if name == "end":
                        return
                    getattr(self, "_on_" + name)(*rest)
            self._heard = time.monotonic()

    def tell(self, kind: bytes, stream: int, payload: bytes) -> None:
        with self._telling:
            self._told.write(wire.pack(kind, stream, payload))
            self._told.flush()

    def say(self, *values: str) -> None:
        self.tell(wire.EVENT, 0, wire.fields(*values).encode("utf-8", "surrogateescape"))

    def _on_ping(self) -> None:
        """Do nothing: any frame shows that the controller is alive."""

    def _on_start(self, token: str, stall: str, address: str, engine: str, peer: str) -> None:
        """Start serving. `engine` and `peer`: ports to reuse if they are free, 0 for any."""
        self._token = token
        self._upstreams.stall = float(stall)
        PeerHandler.expected = hashlib.sha256(f"Bearer {token}".encode()).digest()
        engine_side = serve("127.0.0.1", int(engine), Registry)
        peer_side = serve(address, int(peer), PeerHandler)
        self.say("ports", str(engine_side.port), str(peer_side.port))
        threading.Thread(target=self._report, daemon=True).start()

    def _on_sweep(self, cache: str, seconds: str) -> None:
        sweep(cache, time.time() - int(seconds))

    def _on_blob(self, digest: str, size: str, path: str) -> None:
        self._holdings.add(Stored(digest, int(size), path))

    def _on_place(
        self, digest: str, size: str, path: str, mode: str, piece_size: str, *pieces: str
    ) -> None:
        piece = int(piece_size)
        blob = Stored(digest, int(size), path, list(pieces), piece, int(mode, 8), placed=True)
        self._holdings.add(blob)

    def _on_origin(self, digest: str, size: str, path: str, cached: str) -> None:
        """Add the blob at `path`; if it is missing, add a blob to fetch to `cached`."""
        try:
            self._holdings.add_whole(digest, int(size), path)
        except OSError as error:
            self.say("absent", path, str(error))
            self._on_blob(digest, size, cached)

    def _on_image(self, repository: str, tag: str, media_type: str, manifest: str) -> None:
        content = manifest.encode("utf-8", "surrogateescape")
        Registry.offer(repository, tag, media_type, content)

    def _on_upstreams(self, *words: str) -> None:
        """Set the upstreams, preferred first. Each is four words (name, address, port, number of
        the relay's start), or the name of one that is no relay."""
        found: List[Upstream] = []
        rest = list(words)
        while rest:
            name = rest.pop(0)
            if name in self._last:
                found.append(self._last[name])
            else:
                found.append(self._peer(name, *rest[:3]))
                rest = rest[3:]
        self._upstreams.set(found)

    def _on_want(self, *digests: str) -> None:
        self._holdings.want(digests)

    def _on_clean(self) -> None:
        self._holdings.remove_cached()

    def _peer(self, name: str, address: str, port: str, start: str) -> Upstream:
        """Return the same object for the same relay, and a new one after the relay restarts."""
        key = (name, address, port, start)
        if key not in self._peers:
            stats = self._stats_of(name)
            stats.resting_until = 0.0
            self._peers[key] = Peer(name, stats, address, int(port), self._token)
        return self._peers[key]

    def _stats_of(self, name: str) -> UpstreamStats:
        return self._stats.setdefault(name, UpstreamStats(name))

    def _report(self) -> None:
        last = b""
        while True:
            done, total = self._holdings.totals()
            received = sum(each.received for each in self._stats.values())
            names = ",".join(name for name, each in self._stats.items() if each.streams)
            text = wire.fields(done, total, received, names, self._holdings.waiting())
            state = text.encode("utf-8", "surrogateescape")
            if state != last:
                self.tell(wire.STATE, 0, state)
                last = state
            time.sleep(STATE_EVERY)

    def _watch(self) -> None:
        while time.monotonic() - self._heard < FORSAKEN:
            time.sleep(1.0)
        os._exit(3)


def run(kind: Type[Relay]) -> None:
    """Run a relay until stdin ends."""
    status = 0
    try:
        kind(sys.stdin.buffer, sys.stdout.buffer).run()
    except BrokenPipeError:
        pass
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    # Threads may be in the middle of a write; a later relay resumes from the bytes written.
    os._exit(status)


def main(_: None) -> None:
    """Run the relay until stdin ends."""
    run(Relay)
