"""Hosts that are this machine, each with a models directory of its own at the same path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from clusterctl.engine.events import Event, EventSink
from clusterctl.engine.executor import RunOutcome, execute
from clusterctl.engine.plan import OnFailure, Stage
from clusterctl.engine.step import HostView
from clusterctl.inventory.model import Host
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import FilePlace, Link, Web
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transfer.weights.directory import FilesSource, manifest_of, read_tree
from clusterctl.transfer.weights.hashing import HashCache
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.receiver import Supply, WeightsReceiver
from clusterctl.transport.base import Transport
from clusterctl.transport.command import Wire
from clusterctl.transport.local import LocalTransport
from tests.fakes.host_facts import host_facts

OWN_MODELS = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


class HostHere(LocalTransport):
    """This machine, with `own` mounted at `models` for every command."""

    def __init__(self, name: str, own: Path, models: Path) -> None:
        super().__init__(Host(name=name, address="localhost"))
        self.own, self._models = own, models

    def _start(self, argv: Sequence[str]) -> tuple[Wire, Callable[[], None]]:
        mounted = ["unshare", "-m", "sh", "-c", OWN_MODELS, "host", str(self.own)]
        return super()._start([*mounted, str(self._models), *argv])


class Cluster:
    """Hosts h1, h2, ... and a model on the operator's side."""

    def __init__(self, folder: Path, count: int) -> None:
        self.models = folder / "models"
        self.models.mkdir()
        self.cache = HashCache(folder / "hashes")
        self.views = {name: self._view(folder, name) for name in _names(count)}
        self.events: list[Event] = []

    def _view(self, folder: Path, name: str) -> HostView:
        own = folder / name
        own.mkdir()
        transport = HostHere(name, own, self.models)
        return HostView(transport.host, host_facts(), transport)

    def own(self, name: str) -> Path:
        transport = self.views[name].transport
        assert isinstance(transport, HostHere)
        return transport.own

    def supply(self, directory: Path, name: str | None = None) -> Supply:
        tree = read_tree(directory, name)
        manifest = manifest_of(tree, cache=self.cache)
        source = FilesSource(tree, manifest)
        return Supply(manifest, "here", source, trouble=source.changes)

    def delivery(self, supply: Supply, *hosts: str) -> Transfer:
        wanted = {name: self.views[name] for name in hosts or self.views}
        transports = {name: view.transport for name, view in self.views.items()}
        route = Route(transports, lambda _: "127.0.0.1")
        return Transfer(WeightsReceiver(supply, wanted, str(self.models), route), route)

    def run(self, delivery: Transfer, sink: EventSink | None = None) -> RunOutcome:
        stage = Stage("Model", tuple(self.views), (delivery,), OnFailure.SET_HOST_ASIDE)
        with delivery:
            return execute((stage,), self.views, sink or self.events.append)

    def push(self, supply: Supply) -> tuple[RunOutcome, int]:
        """How it went, and the bytes that left this side."""
        delivery = self.delivery(supply)
        outcome = self.run(delivery)
        return outcome, delivery.moved.sent

    def relay(self, name: str) -> int | None:
        """The process of a host's relay, known by its mount; None while there is none."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                mounts = (entry / "mountinfo").read_text()
                if str(self.own(name)) in mounts and "python" in (entry / "comm").read_text():
                    return int(entry.name)
        return None


def read_by_a_relay(
    here: Transport, manifest: Manifest, web: Web, folder: Path
) -> dict[str, bytes]:
    """What a relay on this machine reads from a hub, by path."""
    places = {each.blob.digest: FilePlace(str(folder / each.path)) for each in manifest.files}
    link = Link(here, "127.0.0.1", str(folder / "cache"), places, web=web)
    with closing(Chain([link], manifest.blobs)) as chain:
        chain.start()
        chain.fetch(link.host, list(places), timeout=60)
    return {each.path: (folder / each.path).read_bytes() for each in manifest.files}


def _names(count: int) -> list[str]:
    return [f"h{number}" for number in range(1, count + 1)]
