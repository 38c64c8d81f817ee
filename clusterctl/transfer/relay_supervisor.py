"""The relay of one host: started over SSH, sent commands, and restarted when it ends."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed
from clusterctl.transfer.chain_link import PIECE, Link, LinkProgress
from clusterctl.transfer.content import Blob
from clusterctl.transfer.relay import wire
from clusterctl.transfer.source_multiplexer import SharedSource, SourceMultiplexer
from clusterctl.transport import python
from clusterctl.transport.base import Channel

# Seconds before each attempt to restart a relay; after the last one its host is lost.
BACKOFF = (0.2, 1.0, 2.0, 4.0, 8.0, 8.0)

PING_EVERY = 5.0  # Seconds; a relay that hears nothing for longer assumes that we are gone

RATE_WINDOW = 5.0  # Seconds over which a rate is averaged

# Age in seconds at which an interrupted run's files in a cache are removed, not resumed.
LEFT_BEHIND = 7 * 24 * 3600

CLEAN_UP = 15.0  # Seconds for a relay to clean up after the command `end`

# The relay as it is sent to hosts.
PROGRAM = python.Program(
    "clusterctl.transfer.relay",
    (
        "wire",
        "clusterctl.transfer.reaching",
        "stored",
        "upstream",
        "fetching",
        "serving",
        "main",
    ),
)

# The one that reads from a hub.
HUB_PROGRAM = python.Program(PROGRAM.package, (*PROGRAM.modules, "web", "hub"))

Say = Callable[[str, str], None]  # Takes host and sentence


@dataclass(frozen=True)
class Ports:
    """Ports on which a relay listens."""

    engine: int  # On 127.0.0.1, for the host's own engine
    peer: int  # On the link's address, for the next relays


NO_PORTS = Ports(0, 0)


class RelayProcess:
    """A relay process on a host; its `frames` must be read to the end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._pending = b""
        self._early: list[wire.Frame] = []
        self._rows: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self._closed = threading.Event()

    def send(self, kind: bytes, stream: int, payload: bytes) -> None:
        """Send a frame. Raises ConnectionFailed if the relay is gone."""
        with self._sending:
            self._channel.send(wire.pack(kind, stream, payload))

    def command(self, *rows: str) -> None:
        """Send commands: rows made by `wire.fields`. Raises ConnectionFailed."""
        self.send(wire.COMMAND, 0, wire.lines(rows))

    def enqueue(self, *rows: str) -> None:
        """Queue commands for `send_queued` to send together; dropped if the relay is gone."""
        self._rows.put(rows)

    def send_queued(self, idle: Callable[[], None]) -> None:
        """Start the thread that sends queued commands and pings until `close`, so that no caller
        waits for a relay that reads slowly. `idle` is called with each ping."""

        def run() -> None:
            with contextlib.suppress(ConnectionFailed):
                while not self._closed.is_set():
                    try:
                        self.command(*self._rows.get(timeout=PING_EVERY))
                    except queue.Empty:
                        self.command("ping")
                        idle()

        threading.Thread(target=run, name="relay-commands", daemon=True).start()

    def _receive(self, timeout: float | None) -> wire.Frame | None:
        """Return the next frame; None at the end of the output. Raises TimeoutError."""
        self._channel.settimeout(timeout)
        header = self._exactly(wire.HEADER.size)
        if header is None:
            return None
        kind, stream, length = wire.HEADER.unpack(header)
        payload = self._exactly(length) if length <= wire.LARGEST else None
        return None if payload is None else (kind, stream, payload)

    def _exactly(self, size: int) -> bytes | None:
        while len(self._pending) < size:
            data = self._channel.recv(65536)
            if not data:
                return None
            self._pending += data
        found, self._pending = self._pending[:size], self._pending[size:]
        return found

    def frames(self) -> Iterator[wire.Frame]:
        yield from self._early
        while frame := self._receive(None):
            yield frame

    def await_ports(self) -> Ports | None:
        """Wait for the ports, and keep other frames for `frames`; return None if the relay ends
        first. Raises TimeoutError."""
        while frame := self._receive(deadlines.RELAY_START):
            name, *values = wire.parse(frame[2])[0]
            if (frame[0], name) == (wire.EVENT, "ports"):
                return Ports(*map(int, values))
            self._early.append(frame)
        return None

    def last_words(self) -> str:
        return self._channel.stderr_tail().strip()

    def close(self) -> None:
        self._closed.set()
        self._rows.put(())
        self._channel.close()


def start(
    link: Link, rows: Sequence[str], token: str, stall: float, ports: Ports
) -> tuple[RelayProcess, Ports]:
    """Start the relay of `link`, on its previous `ports` if they are free. It serves no request
    until it has processed the commands in `rows`.

    Raises PythonMissing, StepFailed, and what `Transport.open_channel` raises.
    """
    channel = link.transport.open_channel(python.argv(link.python), sudo=True)
    relay = RelayProcess(channel)
    try:
        with contextlib.suppress(ConnectionFailed, TimeoutError):
            channel.send((HUB_PROGRAM if link.web else PROGRAM).sent())
            relay.command(
                *rows, wire.fields("start", token, stall, link.address, ports.engine, ports.peer)
            )
            if found := relay.await_ports():
                return relay, found
        error = python.failure(channel, "starting the relay", link.host)
    except BaseException:
        relay.close()
        raise
    relay.close()
    if isinstance(error, python.PythonMissing | ConnectionFailed):
        raise error
    raise StepFailed(
        f"the relay did not start at {link.address}",
        host=link.host,
        hint=f"clusterctl exec --limit {link.host} -- ip -brief address",
        detail=error.detail,
    )


def holdings(link: Link, blobs: Mapping[str, Blob]) -> list[str]:
    """Return the commands that send a relay the path of every blob, present or to be written."""
    rows = [wire.fields("sweep", link.cache, LEFT_BEHIND)]
    if web := link.web:
        known = (json.dumps(dict(each)) for each in (web.outside.proxy, web.headers, web.urls))
        rows.append(wire.fields("hub", web.outside.ca, *known))
    for blob in blobs.values():
        cached, place = f"{link.cache}/{blob.hex}", link.places.get(blob.digest)
        named = (blob.hex, blob.size)
        if blob.digest in link.origin:
            rows.append(wire.fields("origin", *named, link.origin[blob.digest], cached))
        elif place is None:
            rows.append(wire.fields("blob", *named, cached))
        else:
            mode = f"{place.mode:o}"
            rows.append(wire.fields("place", *named, place.path, mode, PIECE, *place.pieces))
    return rows


class RelaySupervisor:
    """Supervises the relay of `link` in a thread, from `start` to `close` or the loss of its host.

    `changed` is notified after every change of state; `moved` is called after every start of the
    relay, and when its host is lost.
    """

    def __init__(
        self,
        link: Link,
        blobs: Mapping[str, Blob],
        source: SharedSource,
        *,
        token: str,
        stall: float,
        backoff: Sequence[float],
        image: str | None,
        say: Say,
        moved: Callable[[], None],
        changed: threading.Condition,
    ) -> None:
        self.link = link
        self.ports = NO_PORTS
        self.lost: ClusterctlError | None = None
        self.paths: dict[str, str] = {}  # Of blobs that are complete, by digest
        self.refused: dict[str, str] = {}  # Why blobs cannot be written there, by digest
        self.unserved: ClusterctlError | None = None  # Why its hub does not serve a blob
        self._blobs, self._source, self._image = blobs, source, image
        self._token, self._stall, self._backoff = token, stall, backoff
        self._say, self._moved, self._changed = say, moved, changed
        self._relay: RelayProcess | None = None
        self._commanding = threading.Lock()
        self._starts = 0
        self._wanted: list[str] = []
        self._upstreams: tuple[str, ...] = ()
        self._figures = RelayFigures(link.host)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"relay-{link.host}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_decided(self) -> bool:
        """Whether the relay runs or the host is lost."""
        return self._relay is not None or self.lost is not None

    @property
    def problem(self) -> ClusterctlError | None:
        """Why its host gets no more; None if there is no such reason."""
        for refusal in self.refused.values():
            return StepFailed(
                f"cannot write received data to disk: {refusal}",
                host=self.link.host,
                hint=f"clusterctl exec --limit {self.link.host} -- df -h",
            )
        return self.lost or self.unserved

    @property
    def as_upstream(self) -> tuple[str, ...]:
        """The relay's entry in a list of upstreams: host, address, port, and how often it was
        started, so that a restarted relay counts as new. () while it cannot be reached."""
        if self.lost is not None or self.ports == NO_PORTS:
            return ()
        return (self.link.host, self.link.address, str(self.ports.peer), str(self._starts))

    def set_upstreams(self, words: Sequence[str]) -> None:
        """Set the relay's upstreams, the preferred one first: fields of `as_upstream`, SOURCE."""
        with self._commanding:
            same, self._upstreams = self._upstreams == tuple(words), tuple(words)
            if self._relay and not same:
                self._relay.enqueue(wire.fields("upstreams", *words))

    def want(self, digests: Collection[str]) -> None:
        """Make the relay fetch these blobs."""
        with self._commanding:
            new = [each for each in digests if each not in self._wanted]
            self._wanted += new
            if self._relay and new:
                self._relay.enqueue(self._want_command(new))

    def relocate(self, paths: Mapping[str, str]) -> None:
        """Make the next relay serve these blobs from `paths` (digest to path), not fetch them."""
        with self._commanding:
            self.link = replace(self.link, places={}, origin={**self.link.origin, **paths})
            self._wanted = [digest for digest in self._wanted if digest not in paths]

    def progress(self) -> LinkProgress:
        return self._figures.progress(lost=self.lost is not None)

    def close(self, *, clean: bool) -> None:
        """Stop the relay; with `clean`, it removes the blobs that it cached."""
        with self._commanding:
            self._closing.set()
            relay = self._relay
            if relay is not None:
                relay.enqueue(*(["clean", "end"] if clean else ["end"]))
        self._thread.join(CLEAN_UP)
        if relay is not None:
            relay.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        attempt = 0
        while not self._closing.is_set():
            began = time.monotonic()
            try:
                error = self._run_once()
            except Exception as failure:  # else the thread would end unnoticed, and all would wait
                error = StepFailed("the relay's answer is not valid", detail=repr(failure))
            if self._closing.is_set():
                return
            attempt = 0 if time.monotonic() - began > 60 else attempt + 1
            if self.ports == NO_PORTS or attempt > len(self._backoff):
                self._give_up(error)
                return
            number = max(1, attempt)
            tries = f"{number} of {len(self._backoff)}"
            self._say(self.link.host, f"restarting its relay ({tries}): {error.summary}")
            self._closing.wait(self._backoff[number - 1])

    def _give_up(self, error: ClusterctlError) -> None:
        error.host = error.host or self.link.host
        if self._starts:
            self._say(self.link.host, f"the others continue without it: {error.summary}")
        with self._changed:
            self.lost = error
            self._changed.notify_all()
        self._moved()

    def _run_once(self) -> ClusterctlError:
        """Run a relay from its start to its end; return why it ended."""
        rows = holdings(self.link, self._blobs) + ([self._image] if self._image else [])
        try:
            relay, ports = start(self.link, rows, self._token, self._stall, self.ports)
        except ClusterctlError as error:
            return error
        multiplexer = SourceMultiplexer(self._source, relay)
        try:
            if self._begin(relay, ports, multiplexer):
                self._moved()
                for kind, number, payload in relay.frames():
                    if kind in (wire.WANT, wire.ENOUGH):
                        multiplexer.take(kind, number, payload)
                    elif kind == wire.STATE:
                        self._figures.take(*wire.parse(payload)[0])
                    elif kind == wire.EVENT:
                        name, first, second = wire.parse(payload)[0]
                        self._take_event(name, first, second)
        except ConnectionFailed:
            pass  # the error below has its stderr
        finally:
            multiplexer.close()
            with self._commanding, self._changed:
                self._relay = None
                self._changed.notify_all()
            self._figures.relay_ended()
            relay.close()
        return StepFailed("the relay ended", host=self.link.host, detail=relay.last_words() or None)

    def _begin(self, relay: RelayProcess, ports: Ports, multiplexer: SourceMultiplexer) -> bool:
        """Send a new relay the upstreams and requests of its predecessor, unless `close` was
        called."""
        with self._commanding:
            if self._closing.is_set():
                return False
            relay.send_queued(multiplexer.keep_alive)
            wanted = [self._want_command(self._wanted)] if self._wanted else []
            relay.enqueue(wire.fields("upstreams", *self._upstreams), *wanted)
            with self._changed:
                self.ports, self._starts = ports, self._starts + 1
                self._relay = relay
                self._changed.notify_all()
        return True

    def _take_event(self, name: str, first: str, second: str) -> None:
        say = partial(self._say, self.link.host)
        if name == "wrong":
            say(f"{first} sent wrong bytes for {second[:12]}; fetching them again")
            self._source.report_wrong(first, second)
        elif name == "detour":
            say(f"fetching from the source what another host did not send: {first}")
        elif name == "absent":
            say(f"{first} has changed since; fetching it: {second}")
        elif name == "unserved" and self.link.web:
            with self._changed:
                self.unserved = self.link.web.unserved(first, json.loads(second))
                self._changed.notify_all()
        else:
            with self._changed:
                found = self.paths if name == "done" else self.refused
                found[f"sha256:{first}"] = second
                self._changed.notify_all()

    def _want_command(self, digests: Sequence[str]) -> str:
        return wire.fields("want", *(self._blobs[each].hex for each in digests))


class RelayFigures:
    """Progress figures reported by one host's relays. A restarted relay counts from 0; the totals
    continue."""

    def __init__(self, host: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._host, self._clock = host, clock
        self._lock = threading.Lock()
        self._before = 0  # Bytes that earlier relays received
        self._received = self._done = self._total = 0
        self._sources: tuple[str, ...] = ()
        self._waiting: str | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def take(self, done: str, total: str, received: str, sources: str, waiting: str) -> None:
        """Record a state report of the relay; the arguments are its fields."""
        counts = int(done), int(total), int(received)
        if not all(0 <= count < 1 << 63 for count in counts):
            raise ValueError(f"no counts of bytes: {counts}")
        with self._lock:
            self._done, self._total, self._received = counts
            self._sources = tuple(filter(None, sources.split(",")))
            self._waiting = waiting or None
            self._sample()

    def relay_ended(self) -> None:
        with self._lock:
            self._before += self._received
            self._received = 0
            self._sources, self._waiting = (), "waiting for its relay to restart"

    def progress(self, *, lost: bool) -> LinkProgress:
        with self._lock:
            self._sample()
            (start, before), (end, after) = self._samples[0], self._samples[-1]
            return LinkProgress(
                host=self._host,
                done=self._done,
                total=self._total,
                received=self._before + self._received,
                rate=(after - before) / (end - start) if end - start > 0.1 else 0.0,
                sources=self._sources,
                waiting=None if lost else self._waiting,
                lost=lost,
            )

    def _sample(self) -> None:
        now = self._clock()
        self._samples.append((now, self._before + self._received))
        while self._samples[0][0] < now - RATE_WINDOW:
            self._samples.popleft()
