"""One link's relay, kept alive: started, told what to do, started again when it dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed
from clusterctl.transfer import chain_relay
from clusterctl.transfer.chain_courier import Courier
from clusterctl.transfer.chain_feed import Feed
from clusterctl.transfer.chain_line import FeedLine, RelayGone
from clusterctl.transfer.chain_link import Link, Progress
from clusterctl.transfer.chain_relay import NO_PORTS, Ports, Relay
from clusterctl.transfer.chain_tally import Tally
from clusterctl.transfer.content import Blob
from clusterctl.transfer.relay import frames

# Seconds before each attempt to start a relay again; after the last one its host is lost.
BACKOFF = (0.2, 1.0, 2.0, 4.0, 8.0, 8.0)

Say = Callable[[str, str], None]


class Keeper:
    """The relay of `link`. Its thread runs from `start` to `close` or until the host is lost.

    `changed` is notified whenever something did; `moved` is called when the relay listens
    somewhere else than before, or not at all any more.
    """

    def __init__(
        self,
        link: Link,
        blobs: Mapping[str, Blob],
        feed: Feed,
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
        self.paths: dict[str, str] = {}
        self.refused: dict[str, str] = {}
        self._blobs, self._feed, self._image = blobs, feed, image
        self._token, self._stall, self._backoff = token, stall, backoff
        self._say, self._moved, self._changed = say, moved, changed
        self._relay: Relay | None = None
        self._courier: Courier | None = None
        self._telling = threading.Lock()
        self._starts = 0
        self._wanted: list[str] = []
        self._upstreams: tuple[str, ...] = ()
        self._tally = Tally(link.host)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"relay-{link.host}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_settled(self) -> bool:
        """It runs, or never will."""
        return self._relay is not None or self.lost is not None

    @property
    def as_upstream(self) -> tuple[str, ...]:
        """What the relays after it are told: name, address, port, and the number of its start,
        so that one that is back counts as new. () while nobody can reach it."""
        if self.lost is not None or self.ports == NO_PORTS:
            return ()
        return (self.link.host, self.link.address, str(self.ports.peer), str(self._starts))

    def set_upstreams(self, words: Sequence[str]) -> None:
        """Whom it asks, in this order: the words of each `as_upstream`; `source` alone."""
        with self._telling:
            same, self._upstreams = self._upstreams == tuple(words), tuple(words)
            if not same:
                self._tell(frames.fields("upstreams", *words))

    def want(self, digests: Collection[str]) -> None:
        """Have these blobs on the host."""
        with self._telling:
            new = [each for each in digests if each not in self._wanted]
            self._wanted += new
            if new:
                self._tell(self._want(new))

    def relocate(self, paths: Mapping[str, str]) -> None:
        """The next relay finds these blobs at `paths`, by digest, and fetches none of them."""
        with self._telling:
            self.link = replace(self.link, places={}, origin={**self.link.origin, **paths})
            self._wanted = [digest for digest in self._wanted if digest not in paths]

    def progress(self) -> Progress:
        return self._tally.progress(lost=self.lost is not None)

    def close(self, *, clean: bool) -> None:
        """End the relay, tidied up if `clean`."""
        self._closing.set()
        relay = self._relay
        self._tell(*(["clean", "end"] if clean else ["end"]))
        self._thread.join(chain_relay.LAST_WORDS)
        if relay is not None:
            relay.close()
        self._thread.join(1.0)

    def _run(self) -> None:
        attempt = 0
        while not self._closing.is_set():
            began = time.monotonic()
            error = self._live()
            if self._closing.is_set():
                return
            attempt = 0 if time.monotonic() - began > 60 else attempt + 1
            if self.ports == NO_PORTS or attempt > len(self._backoff):
                self._give_up(error)
                return
            number = max(1, attempt)
            tries = f"{number} of {len(self._backoff)}"
            self._say(self.link.host, f"its relay is started again ({tries}): {error.summary}")
            self._closing.wait(self._backoff[number - 1])

    def _live(self) -> ClusterctlError:
        try:
            return self._live_once()
        except Exception as error:  # nobody else would hear of it, and all would wait
            return StepFailed("the relay was not understood", detail=repr(error))

    def _live_once(self) -> ClusterctlError:
        """From a start to its end; why it ended."""
        try:
            rows = chain_relay.holdings(self.link, self._blobs)
            rows += [self._image] if self._image else []
            relay, ports = chain_relay.start(self.link, rows, self._token, self._stall, self.ports)
        except ClusterctlError as error:
            return error
        line = FeedLine(self._feed, relay)
        try:
            if not self._closing.is_set():
                self._begin(relay, ports, line)
                for frame in relay.frames():
                    self._take(line, *frame)
        except (ConnectionFailed, RelayGone):
            pass  # what it last said tells more
        finally:
            line.close()
            self._end(relay)
        return StepFailed("the relay ended", host=self.link.host, detail=relay.last_words() or None)

    def _begin(self, relay: Relay, ports: Ports, line: FeedLine) -> None:
        """Tell a new relay all that its predecessor was told."""
        with self._telling:
            self._courier = Courier(relay, line, self.link.host)
            rows = [frames.fields("upstreams", *self._upstreams)]
            rows += [self._want(self._wanted)] if self._wanted else []
            self._tell(*rows)
            with self._changed:
                self.ports, self._starts = ports, self._starts + 1
                self._relay = relay
                self._changed.notify_all()
        self._moved()

    def _end(self, relay: Relay) -> None:
        with self._telling:
            if self._courier is not None:
                self._courier.leave()
            self._courier = None
        with self._changed:
            self._relay = None
            self._changed.notify_all()
        self._tally.ended()
        relay.close()

    def _take(self, line: FeedLine, kind: bytes, number: int, payload: bytes) -> None:
        if kind in (frames.WANT, frames.ENOUGH):
            line.take(kind, number, payload)
        elif kind == frames.STATE:
            self._tally.take(*frames.parse(payload)[0])
        elif kind == frames.EVENT:
            name, *values = frames.parse(payload)[0]
            self._event(name, *values)

    def _event(self, name: str, first: str, second: str) -> None:
        if name == "wrong":
            self._say(self.link.host, f"{first} sent wrong bytes for {second[:12]}; they come anew")
            self._feed.blame(first, second)
        elif name == "detour":
            self._say(self.link.host, f"gets from the source what a host did not pass on: {first}")
        elif name == "absent":
            self._say(self.link.host, f"{first} is not what it was, and is fetched: {second}")
        else:
            self._settle(name, first, second)

    def _settle(self, name: str, first: str, second: str) -> None:
        with self._changed:
            found = self.paths if name == "done" else self.refused
            found[f"sha256:{first}"] = second
            self._changed.notify_all()

    def _want(self, digests: Sequence[str]) -> str:
        return frames.fields("want", *(self._blobs[each].hex for each in digests))

    def _tell(self, *rows: str) -> None:
        """To the relay if one runs; the next one gets it when it starts."""
        courier = self._courier
        if courier is not None:
            courier.tell(*rows)

    def _give_up(self, error: ClusterctlError) -> None:
        error.host = error.host or self.link.host
        if self._starts:
            self._say(self.link.host, f"the others go on without it: {error.summary}")
        with self._changed:
            self.lost = error
            self._changed.notify_all()
        self._moved()
