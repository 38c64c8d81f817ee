"""Supervises the relay of one host: starts it, sends it commands, restarts it when it ends."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed
from clusterctl.transfer import relay_process
from clusterctl.transfer.chain_link import Link, LinkProgress
from clusterctl.transfer.content import Blob
from clusterctl.transfer.relay import frames
from clusterctl.transfer.relay_process import NO_PORTS, Ports, RelayProcess
from clusterctl.transfer.source_multiplexer import RelayGone, SharedSource, SourceMultiplexer

# Seconds before each attempt to restart a relay; after the last one its host is lost.
BACKOFF = (0.2, 1.0, 2.0, 4.0, 8.0, 8.0)

PING_EVERY = 5.0  # Seconds; a relay that hears nothing for longer assumes that we are gone

RATE_WINDOW = 5.0  # Seconds over which a rate is averaged

Say = Callable[[str, str], None]  # Takes host and sentence


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
        self._blobs, self._source, self._image = blobs, source, image
        self._token, self._stall, self._backoff = token, stall, backoff
        self._say, self._moved, self._changed = say, moved, changed
        self._relay: RelayProcess | None = None
        self._commands: CommandSender | None = None
        self._telling = threading.Lock()
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
    def as_upstream(self) -> tuple[str, ...]:
        """The relay's entry in a list of upstreams: host, address, port, and the number of its
        start, so that a restarted relay counts as new. () while it cannot be reached."""
        if self.lost is not None or self.ports == NO_PORTS:
            return ()
        return (self.link.host, self.link.address, str(self.ports.peer), str(self._starts))

    def set_upstreams(self, words: Sequence[str]) -> None:
        """Set the relay's upstreams, the preferred one first: fields of `as_upstream`, SOURCE."""
        with self._telling:
            same, self._upstreams = self._upstreams == tuple(words), tuple(words)
            if not same:
                self._tell(frames.fields("upstreams", *words))

    def want(self, digests: Collection[str]) -> None:
        """Make the relay fetch these blobs."""
        with self._telling:
            new = [each for each in digests if each not in self._wanted]
            self._wanted += new
            if new:
                self._tell(self._want_command(new))

    def relocate(self, paths: Mapping[str, str]) -> None:
        """Make the next relay serve these blobs from `paths` (digest to path), not fetch them."""
        with self._telling:
            self.link = replace(self.link, places={}, origin={**self.link.origin, **paths})
            self._wanted = [digest for digest in self._wanted if digest not in paths]

    def progress(self) -> LinkProgress:
        return self._figures.progress(lost=self.lost is not None)

    def close(self, *, clean: bool) -> None:
        """Stop the relay; with `clean`, it removes the blobs that it cached."""
        self._closing.set()
        relay = self._relay
        self._tell(*(["clean", "end"] if clean else ["end"]))
        self._thread.join(relay_process.CLEAN_UP)
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

    def _run_once(self) -> ClusterctlError:
        """Run a relay from its start to its end; return why it ended."""
        try:
            rows = relay_process.holdings(self.link, self._blobs)
            rows += [self._image] if self._image else []
            relay, ports = relay_process.start(
                self.link, rows, self._token, self._stall, self.ports
            )
        except ClusterctlError as error:
            return error
        multiplexer = SourceMultiplexer(self._source, relay)
        try:
            if not self._closing.is_set():
                self._begin(relay, ports, multiplexer)
                for kind, number, payload in relay.frames():
                    if kind in (frames.WANT, frames.ENOUGH):
                        multiplexer.take(kind, number, payload)
                    elif kind == frames.STATE:
                        self._figures.take(*frames.parse(payload)[0])
                    elif kind == frames.EVENT:
                        name, first, second = frames.parse(payload)[0]
                        self._take_event(name, first, second)
        except (ConnectionFailed, RelayGone):
            pass  # the error below has its stderr
        finally:
            multiplexer.close()
            with self._telling:
                if self._commands is not None:
                    self._commands.close()
                self._commands = None
            with self._changed:
                self._relay = None
                self._changed.notify_all()
            self._figures.relay_ended()
            relay.close()
        return StepFailed("the relay ended", host=self.link.host, detail=relay.last_words() or None)

    def _begin(self, relay: RelayProcess, ports: Ports, multiplexer: SourceMultiplexer) -> None:
        """Send a new relay the upstreams and requests of its predecessor."""
        with self._telling:
            self._commands = CommandSender(relay, multiplexer, self.link.host)
            rows = [frames.fields("upstreams", *self._upstreams)]
            rows += [self._want_command(self._wanted)] if self._wanted else []
            self._tell(*rows)
            with self._changed:
                self.ports, self._starts = ports, self._starts + 1
                self._relay = relay
                self._changed.notify_all()
        self._moved()

    def _take_event(self, name: str, first: str, second: str) -> None:
        if name == "wrong":
            self._say(
                self.link.host, f"{first} sent wrong bytes for {second[:12]}; fetching them again"
            )
            self._source.report_wrong(first, second)
        elif name == "detour":
            self._say(
                self.link.host, f"fetching from the source what another host did not send: {first}"
            )
        elif name == "absent":
            self._say(self.link.host, f"{first} has changed since, fetching it: {second}")
        else:
            with self._changed:
                found = self.paths if name == "done" else self.refused
                found[f"sha256:{first}"] = second
                self._changed.notify_all()

    def _want_command(self, digests: Sequence[str]) -> str:
        return frames.fields("want", *(self._blobs[each].hex for each in digests))

    def _tell(self, *rows: str) -> None:
        """Send rows to the relay if one runs; `_begin` sends their content to the next one."""
        commands = self._commands
        if commands is not None:
            commands.send(*rows)

    def _give_up(self, error: ClusterctlError) -> None:
        error.host = error.host or self.link.host
        if self._starts:
            self._say(self.link.host, f"the others continue without it: {error.summary}")
        with self._changed:
            self.lost = error
            self._changed.notify_all()
        self._moved()


class CommandSender:
    """Sends commands to one relay in order, and pings in between, until `close`. Uses its own
    thread, so that no caller waits for a relay that reads slowly."""

    def __init__(self, relay: RelayProcess, multiplexer: SourceMultiplexer, host: str) -> None:
        self._relay, self._multiplexer = relay, multiplexer
        self._rows: queue.SimpleQueue[tuple[str, ...]] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name=f"commands-{host}", daemon=True).start()

    def send(self, *rows: str) -> None:
        """Queue rows made by `frames.fields`, to be sent together; dropped if the relay is gone."""
        self._rows.put(rows)

    def close(self) -> None:
        self._closed.set()
        self._rows.put(())

    def _run(self) -> None:
        with contextlib.suppress(ConnectionFailed, RelayGone):
            while not self._closed.is_set():
                try:
                    self._relay.command(*self._rows.get(timeout=PING_EVERY))
                except queue.Empty:
                    self._relay.command("ping")
                    self._multiplexer.keep_alive()


class RelayFigures:
    """Progress figures from the reports of one host's relays. A restarted relay counts from 0; the
    totals continue."""

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
        with self._lock:
            self._done, self._total, self._received = int(done), int(total), int(received)
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
