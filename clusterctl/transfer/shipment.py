"""One image on its way to several hosts at once: looked at per host, sent by one chain.

A shipment is a step. The first host that has something to get begins the sending for all of
them, so that every problem is told before the first byte; the last one ends it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.meter import GIB
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import ClusterctlError, StepFailed, raise_all
from clusterctl.transfer.engine_stock import EngineStock, HeldImage, take_stock
from clusterctl.transfer.image_origin import Origin
from clusterctl.transfer.image_plan import choose_delivery, problems, same_image
from clusterctl.transfer.image_proof import insist_on_start
from clusterctl.transfer.relay_pull import is_relay_name
from clusterctl.transfer.sending import Sending, Terms
from clusterctl.transfer.shared_failure import share_of
from clusterctl.transport.closing import Closing
from clusterctl.transport.fanout import fan_out, values

# Seconds for which what a host said of its images is taken for true: a plan, its agreement and its
# first stage are one look. What is changed here is looked at again at once.
FRESH = 15.0

Stocks = Mapping[str, EngineStock]
# Chooses where the image comes from, by what the hosts that answered have.
Find = Callable[[Stocks], "Origin | Unknown"]


@dataclass(frozen=True)
class Moved:
    """Bytes that were moved."""

    sent: int = 0  # From the operator's machine, to all hosts together
    received: Mapping[str, int] = field(default_factory=dict)  # By host


@dataclass
class _State:
    origin: Origin | None = None
    # When, and what a host had.
    seen: dict[str, tuple[float, EngineStock]] = field(default_factory=dict)
    sending: Sending | None = None
    failure: ClusterctlError | None = None  # Why nothing can be sent


class Shipment(Closing):
    """A step: the host has the image, by its name, and containers start from it. It goes to the
    hosts of `targets`; `drivers` are those of all hosts that may have it already."""

    title = "image"

    def __init__(
        self,
        find: Find,
        drivers: Mapping[str, ContainerDriver],
        targets: tuple[str, ...],
        terms: Terms,
    ) -> None:
        self._find, self._drivers, self._targets = find, drivers, targets
        self._terms = terms
        self._state = _State()
        self._lock = threading.RLock()
        self.moved = Moved()

    def close(self) -> None:
        """End a sending that goes on; what came so far stays for the next run."""
        with self._lock:
            sending, self._state.sending = self._state.sending, None
        if sending:
            self._end(sending, keep=True)

    def origin(self) -> Origin | Unknown:
        """Where it comes from; found once. Raises when it exists nowhere."""
        with self._lock:
            if self._state.origin is None:
                found = self._find(self._look())
                if isinstance(found, Unknown):
                    self._state.seen.clear()  # a host gets it first
                    return found
                self._state.origin = found
            return self._state.origin

    def settled(self) -> bool:
        """Whether nothing is to be done on any host, as far as they answer."""
        stocks, origin = self._look(), self.origin()
        if isinstance(origin, Unknown) or not stocks.keys() >= set(self._targets):
            return False
        return not any(_lacks(self._closely(name, origin), origin) for name in self._targets)

    def check(self, view: HostView) -> Change | Unknown | None:
        """What has to be done for one host. Raises RequirementsNotMet for a host that never can
        take the image, as far as that is known before the image is read."""
        self._look()
        self._stock(view.host.name)
        self._state.failure = None
        origin = self.origin()
        if isinstance(origin, Unknown):
            return origin
        stock = self._closely(view.host.name, origin)
        here = same_image(stock, origin.wanted)
        if here is not None:
            return _naming(here, origin.wanted.reference)
        if origin.content is not None:
            raise_all(problems(view.host.name, stock, origin.content))
        return Change(_summary(origin, stock))

    def apply(self, view: HostView, change: Change) -> None:
        """Bring the image to one host and prove that it is there. Raises StepFailed."""
        del change
        origin, name = self.origin(), view.host.name
        if isinstance(origin, Unknown):
            raise StepFailed(origin.reason, host=name)
        stock = self._closely(name, origin)
        here = same_image(stock, origin.wanted)
        if stock.tagged(origin.wanted.reference) is None:
            self._terms.before(view)
        try:
            if here is not None:
                _name(self._drivers[name], here, origin.wanted.reference)
            else:
                self._deliver(origin, view)
        finally:
            with self._lock:
                self._state.seen.pop(name, None)

    def _deliver(self, origin: Origin, view: HostView) -> None:
        sending = self._begun(origin, view)
        arrived = False
        try:
            sending.deliver(view, self._drivers[view.host.name])
            arrived = True
        finally:
            self._leave(sending, view.host.name, arrived=arrived)

    def _look(self) -> dict[str, EngineStock]:
        """What the hosts have that can be asked."""
        with self._lock:
            if not self._state.seen:
                values(fan_out({name: name for name in self._drivers}, self._stock))
            return {name: stock for name, (_, stock) in self._state.seen.items()}

    def _stock(self, name: str) -> EngineStock:
        when, stock = self._state.seen.get(name, (0.0, None))
        fresh = stock is not None and time.monotonic() - when < FRESH
        return stock if stock and fresh else self._take(name)

    def _take(self, name: str) -> EngineStock:
        origin = self._state.origin
        reference = origin.wanted.reference if origin else ""
        stock = take_stock(self._drivers[name], self._terms.cache(name), reference)
        self._state.seen[name] = (time.monotonic(), stock)
        return stock

    def _closely(self, name: str, origin: Origin) -> EngineStock:
        """With the name looked up by itself, where engines do not list all that they have."""
        stock = self._stock(name)
        if stock.containerd and stock.tagged(origin.wanted.reference) is None:
            return self._take(name)
        return stock

    def _begun(self, origin: Origin, view: HostView) -> Sending:
        """The sending under way; the first host begins it for all."""
        with self._lock:
            if self._state.failure is not None:
                raise share_of(self._state.failure, view.host.name, "image")
            if self._state.sending is None:
                try:
                    self._state.sending = self._begin(origin, view.say)
                except ClusterctlError as error:
                    self._state.failure = error
                    raise share_of(error, view.host.name, "image") from error
            return self._state.sending

    def _begin(self, origin: Origin, say: Say) -> Sending:
        stocks = values(fan_out({name: name for name in self._targets}, self._stock))
        lacking = {
            name: stock for name, stock in stocks.items() if not same_image(stock, origin.wanted)
        }
        layers = origin.wanted.layers
        missing = {each for stock in lacking.values() for each in layers[stock.common(layers) :]}
        supply = origin.supply(missing, say)
        raise_all(
            problem
            for name, stock in lacking.items()
            for problem in problems(name, stock, supply.content)
        )
        sending = Sending(supply, origin, lacking, self._terms)
        sending.start()
        return sending

    def _leave(self, sending: Sending, name: str, *, arrived: bool) -> None:
        with self._lock:
            last = sending.leave(name, arrived=arrived)
            if last:
                self._state.sending = None
        if last:
            self._end(sending, keep=not sending.all_arrived)

    def _end(self, sending: Sending, *, keep: bool) -> None:
        self.moved = Moved(sending.sent, sending.received)
        sending.close(keep=keep)


def _lacks(stock: EngineStock, origin: Origin) -> bool:
    here = same_image(stock, origin.wanted)
    return here is None or _naming(here, origin.wanted.reference) is not None


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


def _summary(origin: Origin, stock: EngineStock) -> str:
    """Such as `get vllm/vllm-openai:v1 from gpu1`, or `...: 1.20 of 9.80 GiB from bundle.tar`."""
    reference = origin.wanted.reference
    verb = "replace" if stock.tagged(reference) else "get"
    if origin.content is None:
        return f"{verb} {reference} from {origin.name}"
    delivery = choose_delivery(stock, origin.content)
    packed = f"{delivery.size / GIB:.2f} of {origin.content.size / GIB:.2f} GiB"
    return f"{verb} {reference}: {packed} from {origin.name}, by {delivery.way.words}"
