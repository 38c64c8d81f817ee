"""A chain at work: every host that lacks an image gets it in the way that suits it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.containers.driver import ContainerDriver, Say
from clusterctl.containers.meter import MIB
from clusterctl.engine.step import HostView
from clusterctl.errors import StepFailed
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import CACHE, Link, LinkProgress, fetch_limit, slow_last
from clusterctl.transfer.engine_stock import EngineStock
from clusterctl.transfer.image_load import load_by_stream, load_from_cache
from clusterctl.transfer.image_origin import Origin, Supply
from clusterctl.transfer.image_plan import Delivery, Way, choose_delivery
from clusterctl.transfer.image_proof import image_id, prove
from clusterctl.transfer.relay_pull import pull
from clusterctl.transport.base import Transport


@dataclass(frozen=True)
class Terms:
    """How an image is sent."""

    transports: Mapping[str, Transport]
    address: Callable[[str], str]  # By a host's name: the address that the others reach it at
    limit_rate: int | None = None  # Bytes a second that leave the source, in all
    # By a host's name: Mbit/s of the network of that address, if known.
    speed: Callable[[str], int | None] = lambda _: None
    cache: Callable[[str], str] = lambda _: CACHE  # By a host's name: where blobs wait there
    # Called before an image comes to a host that has none of that name.
    before: Callable[[HostView], None] = lambda _: None
    # What a user should know: host, sentence.
    say: Callable[[str, str], None] = lambda _host, _text: None
    chain: Callable[..., Chain] = Chain  # Makes the chain


class Sending:
    """The chain for `lacking`, the hosts that have not got the image of `supply`."""

    def __init__(
        self,
        supply: Supply,
        origin: Origin,
        lacking: Mapping[str, EngineStock],
        terms: Terms,
    ) -> None:
        self._supply, self._origin = supply, origin
        self._stocks = dict(lacking)
        self._deliveries = {
            name: choose_delivery(stock, supply.content) for name, stock in lacking.items()
        }
        self._waiting = set(lacking)
        self._arrived: set[str] = set()
        self._saying: dict[str, Say] = {}
        self._said: dict[str, str] = {}
        self._lock = threading.Lock()
        self._chain = terms.chain(
            _links(supply, self._deliveries, terms),
            source=None if supply.holder else supply.blobs,
            image=supply.content,
            limit_rate=terms.limit_rate,
            report=self._report,
            say=terms.say,
        )

    def start(self) -> None:
        """Raises the errors of all hosts when no relay starts at all."""
        if any(delivery.way is not Way.STREAM for delivery in self._deliveries.values()):
            self._chain.start()

    def deliver(self, view: HostView, driver: ContainerDriver) -> None:
        """Bring the image to this host, prove it, and give it its name."""
        with self._lock:
            self._saying[view.host.name] = view.say
        if view.host.name not in self._stocks:
            raise StepFailed(
                "it answered only after the sending to the others had begun",
                host=view.host.name,
                hint="run the same command again",
            )
        stock, delivery = self._stocks[view.host.name], self._deliveries[view.host.name]
        brought_as = self._bring(view, driver, delivery)
        view.say("starting a container from it")
        identifier = image_id(self._supply.content, containerd=stock.containerd)
        prove(driver, self._supply.content, identifier)
        driver.tag(identifier, self._origin.wanted.reference)
        if brought_as:
            driver.remove_image(brought_as)

    def leave(self, host: str, *, arrived: bool) -> bool:
        """The host is done with; whether it was the last one."""
        with self._lock:
            self._waiting.discard(host)
            self._saying.pop(host, None)
            if arrived:
                self._arrived.add(host)
            return not self._waiting

    @property
    def all_arrived(self) -> bool:
        return self._arrived == set(self._deliveries)

    @property
    def sent(self) -> int:
        """Bytes that left the operator's machine."""
        streamed = (
            delivery.size
            for name, delivery in self._deliveries.items()
            if delivery.way is Way.STREAM and name in self._arrived
        )
        return self._chain.sent + sum(streamed)

    @property
    def received(self) -> dict[str, int]:
        """Bytes by host."""
        found = self._chain.progress()
        return {name: found[name].received for name in self._deliveries if name in found}

    def close(self, *, keep: bool) -> None:
        """End the chain; with `keep`, what came so far stays for the next run."""
        self._chain.close(keep=keep, done=self._arrived)
        if not keep:
            self._origin.clear()

    def _bring(self, view: HostView, driver: ContainerDriver, delivery: Delivery) -> str | None:
        """The temporary name that it has there now, if any."""
        if delivery.way is Way.PULL:
            return pull(driver, self._chain, view.say)
        if delivery.way is Way.LOAD:
            self._load(view, driver, delivery)
        else:
            view.say("no relay can run here: sending it over SSH, for this host alone")
            content = self._supply.content
            load_by_stream(driver, content, delivery.layers, self._supply.blobs, view.say)
        return None

    def _load(self, view: HostView, driver: ContainerDriver, delivery: Delivery) -> None:
        content = self._supply.content
        wanted = [layer.digest for layer in delivery.layers]
        limit = fetch_limit(delivery.size)
        paths = self._chain.fetch(view.host.name, wanted, timeout=limit) if wanted else {}
        config = b"".join(self._supply.blobs.open(content.config))
        view.say("loading the layers that were missing")
        load_from_cache(driver, content, config, paths)

    def _report(self, progress: LinkProgress) -> None:
        with self._lock:
            say = self._saying.get(progress.host)
            if say is None or progress.lost:
                return
            text = progress_text(progress, self._deliveries[progress.host].size)
            known, self._said[progress.host] = self._said.get(progress.host), text
        if text != known:
            say(text)


def _links(
    supply: Supply,
    deliveries: Mapping[str, Delivery],
    terms: Terms,
) -> list[Link]:
    """The holder first; hosts where no relay can run are left out."""

    def link(name: str, origin: Mapping[str, str]) -> Link:
        return Link(
            terms.transports[name],
            terms.address(name),
            cache=terms.cache(name),
            origin=origin,
            speed=terms.speed(name),
        )

    served = [name for name, delivery in deliveries.items() if delivery.way is not Way.STREAM]
    first = [link(supply.holder, supply.paths)] if supply.holder else []
    return [*first, *slow_last(link(name, {}) for name in served)]


def progress_text(progress: LinkProgress, expected: int) -> str:
    """Such as `312 of 420 MiB, 11.8 MiB/s, 9 s left, from gpu1`; `expected` in bytes."""
    done, total = min(progress.done, expected), max(expected, 1)
    amount = f"{done / MIB:.0f} of {total / MIB:.0f} MiB"
    if done >= expected:
        return f"{amount}, the engine unpacks"
    return ", ".join((amount, *progress.movement(expected - done)))
