"""One model on its way to several hosts at once: looked at per host, brought by one chain.

The step asks host by host. The first that has something to bring begins for all: every host
takes what it has elsewhere, space is checked, and the chain starts. The last one ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from clusterctl.containers.meter import GIB, MIB
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.transfer.shared_failure import share_of
from clusterctl.transfer.weights import placing
from clusterctl.transfer.weights.bringing import Bringing
from clusterctl.transfer.weights.host_hashes import hashes, sums
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.need import Need, need, no_room
from clusterctl.transfer.weights.on_host import IDLE_AFTER, HostModels, look_at_models
from clusterctl.transfer.weights.supply import Supply
from clusterctl.transport.fanout import Failed, failures, fan_out, values


@dataclass(frozen=True)
class Terms:
    """How models are sent."""

    directory: str  # The models directory, the same on every host
    address: Callable[[HostView], str]  # The address of a host that the others reach it at
    limit_rate: int | None = None  # Bytes a second that leave this machine, in all
    # argv that starts a Python on a host that has none of its own: Link.python.
    python: Callable[[HostView], tuple[str, ...]] = lambda _: ()
    # What a user should know: host, sentence.
    say: Callable[[str, str], None] = lambda _host, _text: None
    # Mbit/s of the network of that address, if known.
    speed: Callable[[HostView], int | None] = lambda _: None


@dataclass
class _State:
    bringing: Bringing | None = None
    # Hosts that could not be made ready, and why.
    failures: dict[str, ClusterctlError] = field(default_factory=dict)
    # Of the hosts whose own turn has come.
    says: dict[str, Callable[[str], None]] = field(default_factory=dict)
    left: set[str] = field(default_factory=set)
    sent: int = 0


class Delivery:
    """The step that brings the model of `supply` to the hosts of `views`."""

    def __init__(self, supply: Supply, views: Mapping[str, HostView], terms: Terms) -> None:
        self.title = "model"
        self._supply, self._views, self._terms = supply, dict(views), terms
        self._state = _State()
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(keep=exc is not None)

    @property
    def sent(self) -> int:
        """Bytes that this machine sent, to all hosts together."""
        bringing = self._state.bringing
        return self._state.sent + (bringing.sent if bringing else 0)

    def check(self, view: HostView) -> Change | None:
        """See Step. Raises RequirementsNotMet when there is no room."""
        host = self._look(view)
        found = self._need(view, host)
        if problem := no_room(self._supply.manifest, found, host):
            raise problem
        return None if found.nothing else _change(self._supply, found)

    def apply(self, view: HostView, change: Change) -> None:
        """See Step."""
        del change
        self._state.says[view.host.name] = view.say
        bringing = self._begun(view)
        try:
            bringing.deliver(view)
        finally:
            self._leave(view.host.name)

    def _look(self, view: HostView) -> HostModels:
        return look_at_models(view.transport, self._terms.directory)

    def _need(self, view: HostView, host: HostModels) -> Need:
        """What the host needs; the one that gives the model has all of it by another name."""
        found = need(self._supply.manifest, host)
        holder = self._supply.holder
        if found.complete or holder is None or holder.view.host.name != view.host.name:
            return found
        return found.had({digest.partition(":")[2]: p for digest, p in holder.paths.items()})

    def _begun(self, view: HostView) -> Bringing:
        """What is under way; the first host begins it for all."""
        name = view.host.name
        with self._lock:
            if name in self._state.failures:
                raise self._state.failures[name]
            if self._state.bringing is None:
                try:
                    self._state.bringing = self._begin(view)
                except ClusterctlError as error:
                    for host in self._views:
                        self._state.failures.setdefault(host, share_of(error, host, "model"))
                    raise self._state.failures[name] from error
            if name in self._state.failures:
                raise self._state.failures[name]
            return self._state.bringing

    def _begin(self, view: HostView) -> Bringing:
        """Make all hosts ready and start the chain. Raises when none is."""
        ready = fan_out(self._views, lambda each: self._ready(each, self._saying(each, view)))
        for name, outcome in ready.items():
            if isinstance(outcome, Failed):
                self._state.failures[name] = outcome.error
        needs = values(ready)
        if all(found.nothing for found in needs.values()):
            raise_all(failures(ready))
        bringing = Bringing(self._supply, needs, self._views, self._terms)
        bringing.start()
        self._state.left = {name for name, found in needs.items() if not found.nothing}
        return bringing

    def _ready(self, view: HostView, say: Callable[[str], None]) -> Need:
        """The staging directory with all that the host has of the model in other places."""
        host = self._look(view)
        manifest, directory = self._supply.manifest, self._terms.directory
        found = self._need(view, host)
        if found.complete:
            return found
        if found.unproven:
            found = found.proven(self._hashed(view, found, say))
        if problem := no_room(manifest, found, host):
            raise problem
        placing.prepare(view.transport, manifest, found, directory)
        return found

    def _saying(self, view: HostView, first: HostView) -> Callable[[str], None]:
        """The words on a host, in its own line once it has one, until then in that of `first`."""

        def say(text: str) -> None:
            self._state.says.get(view.host.name, first.say)(text)

        return say

    def _hashed(self, view: HostView, found: Need, say: Callable[[str], None]) -> dict[str, str]:
        """The sha256 of what may be right there, by path; as long as that takes, it is said."""
        text = f"hashing what {view.host.name} has of it"
        say(text)
        size = sum(_sizes(self._supply.manifest)[digest] for digest in found.unproven.values())
        paths = list(found.unproven)
        return sums(hashes(view.transport, paths, size, say=lambda far: say(f"{text}: {far}")))

    def _leave(self, name: str) -> None:
        with self._lock:
            self._state.left.discard(name)
            if self._state.left:
                return
            arrived = bool(self._state.bringing and self._state.bringing.all_arrived)
        self._end(keep=not arrived)

    def _end(self, *, keep: bool) -> None:
        with self._lock:
            bringing, self._state.bringing = self._state.bringing, None
        if bringing:
            bringing.close(keep=keep)
            self._state.sent += bringing.sent


def _sizes(manifest: Manifest) -> dict[str, int]:
    return {file.sha256: file.size for file in manifest.files}


def _change(supply: Supply, found: Need) -> Change:
    """Such as `bring Tiny-1B: 2.0 GiB in 8 files, from here`."""
    manifest = supply.manifest
    if found.complete:
        size = _amount(sum(found.leftovers.values()))
        text = f"remove what a run that was cut short left of {manifest.name}: up to {size}"
        return Change(f"{text}, not written to for {IDLE_AFTER} minutes")
    doubtful = set(found.unproven.values())
    files = [blob for blob in found.brought if blob.hex not in doubtful]
    text = f"{_VERBS[found.state]} {manifest.name}"
    if files:
        amount = _amount(found.least)
        if amount != _amount(manifest.size):
            amount += f" of {_amount(manifest.size)}"
        noun = "file" if len(files) == 1 else "files"
        text += f": {amount} in {len(files)} {noun}, from {supply.name}"
    else:
        text += f": all of its {_amount(manifest.size)} is on the host already"
    if doubtful:
        text += f"; first to be hashed of what is there: {_amount(found.bytes - found.least)}"
    return Change(text, disruptive=found.state == "differs")


_VERBS = {"absent": "bring", "partial": "mend", "unproven": "complete", "differs": "replace"}


def _amount(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 100 else f"{count / MIB:.1f} MiB"
