"""One transfer: what several hosts lack, brought to all of them at once by one chain of relays.

A transfer is a step. The first host that has something to get prepares the sending for all of
them, so that every problem is reported before the first byte; the last one ends it. A second run
resumes what was interrupted. How hosts take in images, or weights, is for a `Receiver`; where
bytes come from is for a `BlobSource`, or for a host that heads the chain.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from clusterctl.containers.driver import Say
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import ClusterctlError, Problems, StepFailed
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import CACHE, FilePlace, Link, LinkProgress, slow_last
from clusterctl.transfer.content import Blob, BlobSource, ImageContent
from clusterctl.transport.base import Closing, Transport


@dataclass(frozen=True)
class Route:
    """How hosts are reached, and how fast bytes may leave. Functions take a host's name."""

    transports: Mapping[str, Transport]
    address: Callable[[str], str]  # At which the other hosts reach it
    limit_rate: int | None = None  # Bytes a second that leave the source, in all
    speed: Callable[[str], int | None] = lambda _: None  # Mbit/s of that network, if known
    cache: Callable[[str], str] = lambda _: CACHE  # Where blobs wait there
    python: Callable[[str], tuple[str, ...]] = lambda _: ()  # See Link.python
    say: Callable[[str, str], None] = lambda _host, _text: None  # What a user should know
    chain: Callable[..., Chain] = Chain

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
            python=self.python(host),
        )


@dataclass(frozen=True)
class Sending:
    """What one chain carries, and to whom."""

    expected: Mapping[str, int]  # By host that takes something in: the bytes it has to receive
    links: Sequence[Link]  # The hosts that get it by the chain
    holder: Link | None = None  # A host that has it all and heads the chain
    source: BlobSource | None = None  # What this machine can give
    blobs: Sequence[Blob] = ()
    image: ImageContent | None = None
    # Hosts that could not be prepared, and why.
    failures: Mapping[str, ClusterctlError] = field(default_factory=dict)


class Receiver(Protocol):
    """How hosts take in one kind of content."""

    @property
    def what(self) -> str:
        """What it is: image, model."""

    def check(self, view: HostView) -> Change | Unknown | None:
        """See Step."""

    def settle(self, view: HostView) -> bool:
        """Do on a host what needs no bytes; return whether nothing is left to be done there."""

    def prepare(self, first: HostView, say_on: Callable[[str], Say]) -> Sending:
        """Make all hosts and the source ready. `first` is the host that began; `say_on` gives
        the progress line of each host. Raises the problems of all hosts together."""

    def receive(self, view: HostView, chain: Chain) -> int:
        """Have it on this host, complete and proven. Return the bytes that this machine sent to
        it beside the chain. Raises StepFailed."""

    def describe(self, progress: LinkProgress, expected: int) -> str:
        """A progress line; `expected` in bytes."""

    def clear(self) -> None:
        """Remove what `prepare` left, after every host has it."""


@dataclass(frozen=True)
class Moved:
    """Bytes that were moved."""

    sent: int = 0  # From this machine, to all hosts together
    received: Mapping[str, int] = field(default_factory=dict)  # By host


@dataclass
class _ChainRun:
    """A chain at work."""

    sending: Sending
    chain: Chain
    waiting: set[str]  # Hosts that are not done with it
    arrived: set[str] = field(default_factory=set)
    sent_beside: int = 0


class Transfer(Closing):
    """The step that brings to hosts what `receiver` takes in. A context manager: when it is left,
    no part of the transfer is running."""

    def __init__(self, receiver: Receiver, route: Route) -> None:
        self.title = receiver.what
        self.moved = Moved()
        self._receiver, self._route = receiver, route
        self._run: _ChainRun | None = None
        self._failure: ClusterctlError | None = None  # Why nothing can be sent
        self._says: dict[str, Say] = {}  # Of hosts that are receiving
        self._said: dict[str, str] = {}
        self._lock = threading.RLock()

    def close(self) -> None:
        """End a chain that is still at work; what came so far stays for the next run."""
        with self._lock:
            run, self._run = self._run, None
        if run:
            self._end(run, complete=False)

    def check(self, view: HostView) -> Change | Unknown | None:
        """See Step. Raises RequirementsNotMet for a host that cannot take it in."""
        self._failure = None
        return self._receiver.check(view)

    def apply(self, view: HostView, change: Change) -> None:
        """See Step. Raises StepFailed."""
        del change
        if self._receiver.settle(view):
            return
        name = view.host.name
        self._says[name] = view.say
        run = self._begun(view)
        arrived = False
        try:
            if name not in run.sending.expected:
                if self._receiver.settle(view):
                    return
                raise StepFailed(
                    "it answered only after the transfer to the others had begun",
                    host=name,
                    hint="run the same command again",
                )
            beside = self._receiver.receive(view, run.chain)
            arrived = True
            with self._lock:
                run.sent_beside += beside
        finally:
            self._leave(run, name, arrived=arrived)

    def _begun(self, view: HostView) -> _ChainRun:
        """The run at work; the first host begins it for all."""
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
            """The line of that host once it has one, until then the line of `first`."""

            def say(text: str) -> None:
                self._says.get(host, first.say)(text)

            return say

        sending = self._receiver.prepare(first, say_on)
        holder = [sending.holder] if sending.holder else []
        chain = self._route.chain(
            [*holder, *slow_last(sending.links)] if sending.links else [],
            sending.blobs,
            source=sending.source,
            image=sending.image,
            limit_rate=self._route.limit_rate,
            report=self._report,
            say=self._route.say,
        )
        if sending.links:
            chain.start()
        return _ChainRun(sending, chain, set(sending.expected))

    def _leave(self, run: _ChainRun, name: str, *, arrived: bool) -> None:
        with self._lock:
            self._says.pop(name, None)
            run.waiting.discard(name)
            if arrived:
                run.arrived.add(name)
            if run.waiting or self._run is not run:
                return
            self._run = None
        self._end(run, complete=run.arrived >= run.sending.expected.keys())

    def _end(self, run: _ChainRun, *, complete: bool) -> None:
        """Caches stay where something is missing: the next run resumes from them."""
        run.chain.close(keep=not complete, done=run.arrived)
        progress = run.chain.progress()
        received = {
            name: progress[name].received for name in run.sending.expected if name in progress
        }
        sent = self.moved.sent + run.chain.sent + run.sent_beside
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
    """The host's own part of an error that concerns several; without one, that the `what` was not
    sent, and why."""
    if error is None:
        return StepFailed(f"the {what} was not sent", host=host)
    found = error.errors if isinstance(error, Problems) else (error,)
    for single in found:
        if single.host in (host, None):
            return single
    return StepFailed(f"the {what} was not sent: {found[0]}", host=host, hint=found[0].hint)
