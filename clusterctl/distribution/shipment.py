"""One image on its way to several hosts at once: looked at per host, sent by one chain.

Steps ask a shipment host by host. The first that has something to send looks at all hosts, so
that every problem is told before the first byte, and starts the chain; the last one ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.distribution.engine_stock import EngineStock, HeldImage, take_stock
from clusterctl.distribution.image_origin import Origin
from clusterctl.distribution.image_plan import (
    choose_delivery,
    problems,
    same_image,
)
from clusterctl.distribution.image_proof import insist_on_start
from clusterctl.distribution.relay_pull import is_relay_name
from clusterctl.distribution.sending import Sending, Terms
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import ClusterctlError, Problems, StepFailed, raise_all
from clusterctl.transport.fanout import fan_out, values

_GIB = 1024**3

Stocks = Mapping[str, EngineStock]
Find = Callable[[Stocks], "Origin | Unknown"]
"""Chooses where the image comes from, by what the hosts that answered have."""


class Engines(Protocol):
    """Host views to drivers."""

    def __call__(self, view: HostView) -> ContainerDriver: ...


@dataclass(frozen=True)
class Moved:
    """Bytes that were moved."""

    sent: int = 0
    """From the operator's machine, to all hosts together."""
    received: Mapping[str, int] = field(default_factory=dict)
    """By host."""


@dataclass
class _State:
    origin: Origin | None = None
    seen: Mapping[str, EngineStock] | None = None
    """What the hosts had when the first of them was checked."""
    unused: dict[str, EngineStock] = field(default_factory=dict)
    """Those of `seen` that no check has used yet."""
    sending: Sending | None = None
    failure: ClusterctlError | None = None
    """Why nothing can be sent."""


class Shipment:
    """A step: the host has the image, by its name, and containers start from it. It goes to the
    hosts of `targets`; `views` are all that may have it already."""

    title = "image"

    def __init__(
        self,
        find: Find,
        views: Mapping[str, HostView],
        targets: tuple[str, ...],
        engines: Engines,
        terms: Terms,
    ) -> None:
        self._find, self._views, self._targets = find, views, targets
        self._engines, self._terms = engines, terms
        self._state = _State()
        self._lock = threading.RLock()
        self.moved = Moved()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self._lock:
            sending, self._state.sending = self._state.sending, None
        if sending:
            self._end(sending, keep=True)

    def origin(self) -> Origin | Unknown:
        """Where it comes from; found once. Raises when it exists nowhere."""
        with self._lock:
            if self._state.origin is None:
                found = self._find(self._seen())
                if isinstance(found, Unknown):
                    self._state.seen = None  # a host gets it first
                    return found
                self._state.origin = found
            return self._state.origin

    def check(self, view: HostView) -> Change | Unknown | None:
        """What has to be done for one host. Raises RequirementsNotMet for a host that never can
        take the image, as far as that is known before the image is read."""
        stock = self._stock(view)
        origin = self.origin()
        if isinstance(origin, Unknown):
            return origin
        reference = origin.wanted.reference
        if stock.containerd and stock.tagged(reference) is None:
            stock = self._take(view)
        here = same_image(stock, origin.wanted)
        if here is not None:
            return _naming(here, reference)
        if origin.content is not None:
            raise_all(problems(view.host.name, stock, origin.content))
        return Change(_summary(origin, stock, replaces=stock.tagged(reference) is not None))

    def apply(self, view: HostView, change: Change) -> None:
        """Bring the image to one host and prove that it is there. Raises StepFailed."""
        del change
        self._state.unused.clear()
        origin, driver = self.origin(), self._engines(view)
        if isinstance(origin, Unknown):
            raise StepFailed(origin.reason, host=view.host.name)
        here = same_image(self._take(view), origin.wanted)
        if here is not None:
            _name(driver, here, origin.wanted.reference)
            return
        sending = self._begun(origin, view)
        if driver.image(origin.wanted.reference) is None:
            self._terms.before(view)
        arrived = False
        try:
            sending.deliver(view, driver)
            arrived = True
        finally:
            self._leave(sending, view, arrived=arrived)

    def _stock(self, view: HostView) -> EngineStock:
        with self._lock:
            self._seen()
            known = self._state.unused.pop(view.host.name, None)
        return known or self._take(view)

    def _take(self, view: HostView) -> EngineStock:
        origin = self._state.origin
        reference = origin.wanted.reference if origin else ""
        return take_stock(self._engines(view), self._terms.cache(view), reference)

    def _seen(self) -> Mapping[str, EngineStock]:
        with self._lock:
            if self._state.seen is None:
                self._state.seen = self._look(self._views)
                self._state.unused = dict(self._state.seen)
            return self._state.seen

    def _look(self, views: Mapping[str, HostView]) -> dict[str, EngineStock]:
        """Of the hosts that can be asked."""
        return values(fan_out(views, self._take))

    def _begun(self, origin: Origin, view: HostView) -> Sending:
        """The sending under way; the first host begins it for all."""
        with self._lock:
            if self._state.failure is not None:
                raise _own(self._state.failure, view.host.name)
            if self._state.sending is None:
                try:
                    self._state.sending = self._begin(origin, view.say)
                except ClusterctlError as error:
                    self._state.failure = error
                    raise _own(error, view.host.name) from error
            return self._state.sending

    def _begin(self, origin: Origin, say: Say) -> Sending:
        stocks = self._look({name: self._views[name] for name in self._targets})
        lacking = {
            name: stock for name, stock in stocks.items() if not same_image(stock, origin.wanted)
        }
        layers = origin.wanted.layers
        missing = {each for stock in lacking.values() for each in layers[stock.common(layers) :]}
        supply = origin.supply(missing, say)
        found = [
            problem
            for name, stock in lacking.items()
            for problem in problems(name, stock, supply.content)
        ]
        raise_all(found)
        sending = Sending(supply, origin, lacking, self._views, self._terms)
        sending.start()
        return sending

    def _leave(self, sending: Sending, view: HostView, *, arrived: bool) -> None:
        with self._lock:
            last = sending.leave(view.host.name, arrived=arrived)
            if last:
                self._state.sending = None
        if last:
            self._end(sending, keep=not sending.all_arrived)

    def _end(self, sending: Sending, *, keep: bool) -> None:
        self.moved = Moved(sending.sent, sending.received)
        sending.close(keep=keep)


def _naming(here: HeldImage, reference: str) -> Change | None:
    """What a run that was cut short left to be done for an image that is there."""
    if reference not in here.tags:
        return Change(f"name {reference} what is there already")
    if any(map(is_relay_name, here.tags)):
        return Change(f"remove temporary names of {reference}")
    return None


def _name(driver: ContainerDriver, here: HeldImage, reference: str) -> None:
    insist_on_start(driver, here.id, reference)
    driver.tag(here.id, reference)
    for name in filter(is_relay_name, here.tags):
        driver.remove_image(name)


def _summary(origin: Origin, stock: EngineStock, *, replaces: bool) -> str:
    """Such as `get vllm/vllm-openai:v1 from gpu1` or `...: 1200 of 9800 MiB from bundle.tar`."""
    reference = origin.wanted.reference
    verb = "replace" if replaces else "get"
    if origin.content is None:
        return f"{verb} {reference} from {origin.name}"
    delivery = choose_delivery(stock, origin.content)
    packed = f"{delivery.size / _GIB:.2f} of {origin.content.size / _GIB:.2f} GiB"
    return f"{verb} {reference}: {packed} from {origin.name}, by {delivery.way.words}"


def _own(error: ClusterctlError, host: str) -> ClusterctlError:
    """What one host is told of a failure that concerns several: its own part in it."""
    found = error.errors if isinstance(error, Problems) else (error,)
    for single in found:
        if single.host in (host, None):
            return single
    return StepFailed(f"the image was not sent: {found[0]}", host=host, hint=found[0].hint)
