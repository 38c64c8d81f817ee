"""A chain at work on weights: every host gets the files it lacks, and its tree is put in place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from clusterctl.containers.meter import GIB, MIB
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import Link, LinkProgress, fetch_limit, slow_last
from clusterctl.transfer.weights import placing
from clusterctl.transfer.weights.need import Need
from clusterctl.transfer.weights.supply import Holder, Supply

if TYPE_CHECKING:
    from clusterctl.transfer.weights.delivery import Terms


class Bringing:
    """The chain for the hosts of `needs` that lack something."""

    def __init__(
        self,
        supply: Supply,
        needs: Mapping[str, Need],
        views: Mapping[str, HostView],
        terms: Terms,
    ) -> None:
        self._supply, self._needs, self._terms = supply, needs, terms
        self._says: dict[str, Callable[[str], None]] = {}
        self._arrived: set[str] = set()
        self._lock = threading.Lock()
        self._started = False
        self._chain = Chain(
            _links(supply, needs, views, terms),
            supply.manifest.blobs,
            source=supply.source,
            limit_rate=terms.limit_rate,
            report=self._report,
            say=terms.say,
        )

    def start(self) -> None:
        """Raises the errors of all hosts when no relay starts at all."""
        if any(found.brought for found in self._needs.values()):
            self._chain.start()
            self._started = True

    def deliver(self, view: HostView) -> None:
        """Have the model whole on this host, in its place, and nothing beside it."""
        name, found = view.host.name, self._needs[view.host.name]
        if found.complete:
            placing.clear(view.transport, found, self._terms.directory)
            return
        with self._lock:
            self._says[name] = view.say
        if found.brought:
            self._fetch(name, found)
        view.say("putting it in place")
        self._settle(view)
        with self._lock:
            self._arrived.add(name)

    def _settle(self, view: HostView) -> None:
        """Nothing is fetched to the host from here on, whatever becomes of its relay meanwhile:
        that would make a second copy which nobody puts in place."""
        name, directory = view.host.name, self._terms.directory
        places = placing.places(self._supply.manifest, directory)
        final = self._supply.final
        self._chain.relocate(name, {digest: place.path for digest, place in places.items()})
        placing.settle(view.transport, final, directory)
        self._chain.relocate(name, placing.settled(final, directory))

    @property
    def sent(self) -> int:
        return self._chain.sent

    @property
    def all_arrived(self) -> bool:
        return self._arrived >= {n for n, found in self._needs.items() if not found.complete}

    def close(self, *, keep: bool) -> None:
        """End the chain; with `keep`, what came so far stays for the next run."""
        if self._started:
            self._chain.close(keep=keep)

    def _fetch(self, name: str, found: Need) -> None:
        limit = fetch_limit(found.bytes)
        try:
            self._chain.fetch(name, [blob.digest for blob in found.brought], timeout=limit)
        except ClusterctlError:
            raise_all(self._supply.trouble())
            raise

    def _report(self, progress: LinkProgress) -> None:
        with self._lock:
            say = self._says.get(progress.host)
            arrived = progress.host in self._arrived
        if say and not progress.lost and not arrived:
            say(bringing_text(progress, self._needs[progress.host].bytes))


def bringing_text(progress: LinkProgress, expected: int) -> str:
    """Such as `1.2 of 2.0 GiB, 48.0 MiB/s, 17 s left, from gpu1`; `expected` in bytes."""
    done = min(progress.done, expected)
    unit, name = (GIB, "GiB") if expected >= GIB else (MIB, "MiB")
    amount = f"{done / unit:.1f} of {expected / unit:.1f} {name}"
    return ", ".join((amount, *progress.movement(expected - done)))


def _links(
    supply: Supply, needs: Mapping[str, Need], views: Mapping[str, HostView], terms: Terms
) -> list[Link]:
    """Who has the model comes first, then the others, slow ones last."""
    holder = supply.holder or _complete(needs, views)
    places = placing.places(supply.manifest, terms.directory)

    def link(view: HostView, origin: Mapping[str, str], wanted: Collection[str] = ()) -> Link:
        return Link(
            view.transport,
            terms.address(view),
            places={digest: place for digest, place in places.items() if digest in wanted},
            origin=origin,
            speed=terms.speed(view),
            python=terms.python(view),
        )

    rest = [
        link(views[name], placing.origin(found), {blob.digest for blob in found.brought})
        for name, found in needs.items()
        if not found.complete and not (holder and name == holder.view.host.name)
    ]
    first = [link(holder.view, holder.paths)] if holder else []
    return [*first, *slow_last(rest)]


def _complete(needs: Mapping[str, Need], views: Mapping[str, HostView]) -> Holder | None:
    """A host that has it all already: its network is faster than an SSH connection to it."""
    for name, found in needs.items():
        if found.complete:
            return Holder(views[name], placing.origin(found))
    return None
