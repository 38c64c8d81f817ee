"""A step that sends missing content to several hosts at once, through one chain of relays.

The first host that lacks something prepares the transfer for all of them, so that every problem is
reported before the first byte; the last host ends it. The next run resumes an interrupted one. A
`Receiver` implements how hosts receive images or weights; the bytes come from a `BlobSource`, or
from a host that heads the chain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl.containers.driver import Say
from clusterctl.engine.events import EventSink, Note
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import ClusterctlError, Problems, StepFailed
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import CACHE, FilePlace, Link, LinkProgress, in_order
from clusterctl.transfer.content import Blob, BlobSource, ImageContent
from clusterctl.transport.base import Closing, Transport

# Bytes per second of a link below which uncompressed layers are compressed: a core compresses some
# 60 to 100 MB/s.
SLOW_LINK = 500_000_000 // 8


class NetworkPlace(Protocol):
    """A host's place in the cluster's network."""

    @property
    def node_ip(self) -> str: ...

    @property
    def speed(self) -> int | None:
        """Mbit/s, if known."""


@dataclass(frozen=True)
class Route:
    """How to reach hosts, and how fast bytes may be sent. Callables take a host's name."""

    transports: Mapping[str, Transport]
    address: Callable[[str], str]  # At which other hosts reach it
    limit_rate: int | None = None  # Bytes per second that the source sends, in all
    compress: bool | None = None  # Uncompressed layers on the way; None: if the link is slow
    speed: Callable[[str], int | None] = lambda _: None  # Mbit/s of that network, if known
    cache: Callable[[str], str] = lambda _: CACHE  # Directory of the relay's cache
    say: Callable[[str, str], None] = lambda _host, _text: None  # Gets host and sentence
    chain: Callable[..., Chain] = Chain

    @classmethod
    def over(
        cls,
        transports: Mapping[str, Transport],
        node: Callable[[str], NetworkPlace],
        sink: EventSink,
        limit_rate: int | None = None,
        compress: bool | None = None,
    ) -> Route:
        """Return the route over the cluster's network; `node` returns a host's place in it."""
        return cls(
            transports,
            lambda name: node(name).node_ip,
            limit_rate,
            compress,
            speed=lambda name: node(name).speed,
            say=lambda host, text: sink(Note(text, host)),
        )

    @property
    def compresses(self) -> bool:
        """Whether this machine compresses uncompressed layers before sending them."""
        if self.compress is None:
            return self.limit_rate is not None and self.limit_rate < SLOW_LINK
        return self.compress

    def link(
        self,
        host: str,
        origin: Mapping[str, str] | None = None,
        places: Mapping[str, FilePlace] | None = None,
    ) -> Link:
        return Link(
            self.transports[host],
            self.address(host),
            cache=self.cache(host),
            places=places or {},
            origin=origin or {},
            speed=self.speed(host),
        )


@dataclass(frozen=True)
class Sending:
    """The blobs that one chain sends, their source, and the receiving hosts."""

    expected: Mapping[str, int]  # Bytes to receive, by receiving host
    links: Sequence[Link]  # Hosts that receive through the chain
    holder: Link | None = None  # Host that has all blobs and heads the chain
    source: BlobSource | None = None  # Blobs that this machine can send
    blobs: Sequence[Blob] = ()
    image: ImageContent | None = None
    packed: Collection[str] = ()  # Digests of blobs to compress on their way from this machine
    # Hosts that could not be prepared, and why.
    failures: Mapping[str, ClusterctlError] = field(default_factory=dict)


class Receiver(Protocol):
    """How hosts receive one kind of content."""

    @property
    def what(self) -> str:
        """Kind of content: image, model."""

    def check(self, view: HostView) -> Change | Unknown | None:
        """See Step."""

    def settle(self, view: HostView) -> bool:
        """Apply changes that need no transfer on a host; return whether it is complete."""

    def prepare(self, first: HostView, say_on: Callable[[str], Say]) -> Sending:
        """Prepare all hosts and the source. `first` is the host that needs the transfer first;
        `say_on` returns the progress callback of a host. Raises the problems of all hosts
        together."""

    def receive(self, view: HostView, chain: Chain) -> None:
        """Receive the content on this host, complete and verified. Raises StepFailed."""

    def describe(self, progress: LinkProgress, expected: int) -> str:
        """Return a progress line; `expected` in bytes."""

    def clear(self) -> None:
        """Remove temporary files of `prepare`; called when every host has the content."""


@dataclass(frozen=True)
class Moved:
    """Bytes moved by a transfer."""

    sent: int = 0  # From this machine, to all hosts together
    received: Mapping[str, int] = field(default_factory=dict)  # By host


@dataclass
class _ChainRun:
    """A running chain, and the hosts that use it."""

    sending: Sending
    chain: Chain
    waiting: set[str]  # Hosts that have not finished
    arrived: set[str] = field(default_factory=set)


class Transfer(Closing):
    """Step that sends the content of `receiver` to hosts that lack it. Leaving the context stops
    the transfer."""

    def __init__(self, receiver: Receiver, route: Route) -> None:
        self.title = receiver.what
        self.moved = Moved()
        self._receiver, self._route = receiver, route
        self._run: _ChainRun | None = None
        self._failure: ClusterctlError | None = None  # Why nothing can be sent
        self._says: dict[str, Say] = {}  # Progress callbacks of receiving hosts
        self._said: dict[str, str] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """Stop a running chain; received bytes are kept for the next run."""
        with self._lock:
            run, self._run = self._run, None
        if run:
            self._end(run, complete=False)

    def check(self, view: HostView) -> Change | Unknown | None:
        """See Step. Raises RequirementsNotMet for a host that cannot take the content."""
        self._failure = None
        return self._receiver.check(view)

    def apply(self, view: HostView, _change: Change) -> None:
        """See Step. Raises StepFailed."""
        if self._receiver.settle(view):
            return
        name = view.host.name
        self._says[name] = view.say
        run = self._begun(view)
        try:
            if name in run.sending.expected:
                self._receiver.receive(view, run.chain)
                with self._lock:
                    run.arrived.add(name)
            elif not self._receiver.settle(view):
                raise StepFailed(
                    "it answered only after the transfer to the others had started",
                    host=name,
                    hint="run the same command again",
                )
        finally:
            with self._lock:
                self._says.pop(name, None)
                run.waiting.discard(name)
                is_last = not run.waiting and self._run is run
                if is_last:
                    self._run = None
            if is_last:
                self._end(run, complete=run.arrived >= run.sending.expected.keys())

    def _begun(self, view: HostView) -> _ChainRun:
        """Return the running chain; the first host starts it for all."""
        with self._lock:
            if self._run is None and self._failure is None:
                try:
                    self._run = self._begin(view)
                except ClusterctlError as error:
                    self._failure = error
            name = view.host.name
            if self._run is None:
                raise _share_of(self._failure, name, self.title)
            if name in self._run.sending.failures:
                raise self._run.sending.failures[name]
            return self._run

    def _begin(self, first: HostView) -> _ChainRun:
        def say_on(host: str) -> Say:
            """Return the progress callback of `host`, or of `first` while `host` has none."""

            def say(text: str) -> None:
                self._says.get(host, first.say)(text)

            return say

        sending = self._receiver.prepare(first, say_on)
        holder = [sending.holder] if sending.holder else []
        chain = self._route.chain(
            [*holder, *in_order(sending.links)] if sending.links else [],
            sending.blobs,
            source=sending.source,
            image=sending.image,
            limit_rate=self._route.limit_rate,
            packed=sending.packed,
            report=self._report,
            say=self._route.say,
        )
        if sending.links:
            chain.start()
        return _ChainRun(sending, chain, set(sending.expected))

    def _end(self, run: _ChainRun, *, complete: bool) -> None:
        """Stop the chain. Caches are kept for the next run if a host is incomplete."""
        run.chain.close(keep=not complete, done=run.arrived)
        progress = run.chain.progress()
        received = {
            name: progress[name].received for name in run.sending.expected if name in progress
        }
        sent = self.moved.sent + run.chain.sent
        self.moved = Moved(sent, {**self.moved.received, **received})
        if complete:
            self._receiver.clear()

    def _report(self, progress: LinkProgress) -> None:
        name = progress.host
        with self._lock:
            say, run = self._says.get(name), self._run
            if say is None or run is None or progress.lost or name in run.arrived:
                return
            text = self._receiver.describe(progress, run.sending.expected.get(name, 0))
            known, self._said[name] = self._said.get(name), text
        if text != known:
            say(text)


def _share_of(error: ClusterctlError | None, host: str, what: str) -> ClusterctlError:
    """Return the error in `error` that belongs to `host` or to no host. If all belong to other
    hosts, return a StepFailed saying that the `what` was not sent, with the first error as the
    cause."""
    if error is None:
        return StepFailed(f"the {what} was not sent", host=host)
    found = error.errors if isinstance(error, Problems) else (error,)
    for single in found:
        if single.host in (host, None):
            return single
    return StepFailed(f"the {what} was not sent: {found[0]}", host=host, hint=found[0].hint)
