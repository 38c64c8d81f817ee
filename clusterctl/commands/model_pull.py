"""`model pull`: deliver a model from a hub to every host, through this machine or through a host.

Through this machine: list, plan, ask the user, lock, then download and deliver at the same time,
and clean up. Through a host (`--on`): that host lists and downloads, then heads the chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from clusterctl.engine.events import EventSink, Note, StepFinished, StepProgress
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import HostView
from clusterctl.errors import UsageError, raise_all
from clusterctl.inventory.outside import Outside, outside_of
from clusterctl.models.name import did_you_mean, resolve
from clusterctl.transfer.weights import delivery, staging
from clusterctl.transfer.weights.delivery import Destination, FindModel, PushedModel
from clusterctl.transfer.weights.downloads import (
    Downloads,
    clear,
    download_directory,
    only_one,
    require_room,
)
from clusterctl.transfer.weights.host_download import HostTransport, download_on_host
from clusterctl.transfer.weights.hub import Hub, Listing, hub_session, needed
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.model_sources import require_name
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transfer.weights.on_host import HostModels, look_at_models
from clusterctl.transfer.weights.receiver import Supply
from clusterctl.transfer.weights.staging import need, no_room, staging_path
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values
from clusterctl.units import GIB, MIB

HubName = Literal["hf", "modelscope"]


@dataclass(frozen=True)
class HubModel:
    """A model of a hub, as the user requested it."""

    hub: HubName
    model_id: str
    name: str  # of its directory on hosts
    revision: str | None = None
    include: str | None = None  # pattern that the paths of weights must match

    def client(self) -> Hub:
        """Return the client of the hub, with the user's credentials."""
        return HuggingFace() if self.hub == "hf" else ModelScope()

    def listing(self, hub: Hub) -> Listing:
        """Return the files to download. Raises the hub's errors."""
        return needed(hub.listing(self.model_id, self.revision), self.include)


def hub_model(
    asked: str,
    models: str,
    hub: str,
    revision: str | None,
    name: str | None,
    include: str | None = None,
) -> HubModel:
    """Resolve a name of the catalogue, or ORGANIZATION/NAME. `name`, on hosts, defaults to the
    hub's, so that `serve` finds the model. Raises UsageError."""
    if name is not None:
        require_name(name)
    if hub not in ("hf", "modelscope"):
        raise UsageError(f"--source {hub} is not known", hint="--source hf, or modelscope")
    hub_id = resolve(asked, models).hub_id
    if asked.startswith("/") or hub_id is None:
        raise UsageError(
            f"{asked} is not a model on a hub{did_you_mean(asked)}",
            hint="clusterctl model pull ORGANIZATION/NAME",
        )
    known: HubName = "hf" if hub == "hf" else "modelscope"
    return HubModel(known, hub_id, name or hub_id.rpartition("/")[2], revision, include)


def make_plan(pull: HubModel, to: Destination, credentials: Credentials) -> Plan:
    """Return the plan of `run`. Lists the model's files on the hub, from the host `to.holder` if it
    is set, else from this machine. Changes nothing."""
    outside = outside_of(to.inventory)

    def find(views: Mapping[str, HostView]) -> Supply:
        through = HostTransport(views[to.holder].transport, outside) if to.holder else None
        with hub_session(through, ca=outside.ca):
            listing = pull.listing(pull.client())
        there = _held(listing, pull.name, to.inventory.models, views)
        return there or Supply(listing.manifest(pull.name), pull.hub)

    return delivery.make_plan(to, find, credentials)


def run(
    pull: HubModel,
    to: Destination,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Download the model and deliver it to the hosts of `to`, except for files of the same commit
    that a host already has.

    Errors of the hub, disks and hosts propagate; downloaded data is kept for the next run. Raises
    LockHeld while another run on this machine downloads the same model.
    """

    def deliver(find: FindModel) -> PushedModel:
        return delivery.deliver(to, find, credentials, agree=agree, sink=sink)

    models, hub, holder = to.inventory.models, pull.client(), to.holder
    outside = outside_of(to.inventory)
    if holder:

        def download(views: Mapping[str, HostView]) -> Supply:
            head = views[to.inventory.head.name].transport
            with delivery.models_lock(to.inventory, head, "model pull")():
                return _through_host(pull, hub, models, holder, views, sink, outside)

        return deliver(download)
    with hub_session(ca=outside.ca):
        listing = pull.listing(hub)
        note_unhashed(listing, sink)
        directory = download_directory(listing)
        with only_one(directory, pull.model_id):
            tell = DownloadProgress(listing, pull.hub, sink)
            model = Downloads(
                directory, hub, listing, pull.name, told=tell.came, hashing=tell.hashed
            )

            def find(views: Mapping[str, HostView]) -> Supply:
                if there := _held(listing, pull.name, models, views):
                    return there
                hub.require_downloadable(listing)
                require_room(listing, hub, directory)
                manifest = model.begin()
                return Supply(
                    manifest, pull.hub, model, trouble=model.trouble, complete=model.complete
                )

            try:
                done = deliver(find)
            finally:
                model.stop()
                sink(StepFinished(pull.hub, "download", "unchanged", 0.0))
            clear(directory)
    return done


def _through_host(
    pull: HubModel,
    hub: Hub,
    models: str,
    holder: str,
    views: Mapping[str, HostView],
    sink: EventSink,
    outside: Outside,
) -> Supply:
    """Make `holder` list and download the model, and return a supply from there. Checks before the
    download that all hosts have room."""
    view = views[holder]
    with hub_session(HostTransport(view.transport, outside)):
        listing = pull.listing(hub)
    if there := _held(listing, pull.name, models, views):
        return there
    hub.require_downloadable(listing, here=False)
    note_unhashed(listing, sink)
    expected = listing.manifest(pull.name)

    def require_room_on(view: HostView) -> None:
        host = look_at_models(view.transport, models)
        if problem := no_room(expected, need(expected, host), host):
            raise problem

    raise_all(failures(fan_out(views, require_room_on)))
    staged = staging_path(expected, models)
    staging.prepare(view.transport, expected, need(expected, HostModels(models, 0)), models)
    progress = DownloadProgress(listing, holder, sink)
    found = download_on_host(
        view.transport, hub, listing, staged, told=progress.came, outside=outside
    )
    sink(StepFinished(holder, "download", "unchanged", 0.0))
    manifest = listing.manifest(pull.name, found)
    staging.rename_staged(view.transport, staged, manifest, models)
    staging.settle(view.transport, manifest, models)
    return Supply.held_by(view, manifest, f"{models}/{manifest.name}")


def note_unhashed(listing: Listing, sink: EventSink) -> None:
    """Report the files without a published hash, of which only the size can be checked."""
    for file in listing.files:
        if not file.sha256 and not file.git_sha1:
            sink(Note(f"{file.path}: the hub publishes no hash of it, only its size is checked"))


def _held(
    listing: Listing, name: str, directory: str, views: Mapping[str, HostView]
) -> Supply | None:
    """Return a supply from a host that has all of this commit, or None if none has it."""
    found = values(fan_out(views, lambda view: look_at_models(view.transport, directory)))
    for host, models in found.items():
        tree = models.tree(name)
        if tree is None or tree.manifest is None or tree.lacking:
            continue
        # The same commit by its origin, or by all hashes if the hub publishes them.
        paths = {file.path for file in tree.manifest.files} == {f.path for f in listing.files}
        known = tree.manifest.origin == listing.origin and paths
        if known or tree.manifest.identity == listing.manifest("").identity:
            return Supply.held_by(views[host], tree.manifest, f"{directory}/{tree.path}")
    return None


class DownloadProgress:
    """Reports a download as one progress line, at most twice a second, with the bytes of all files
    together. Several threads may call it."""

    def __init__(self, listing: Listing, who: str, sink: EventSink) -> None:
        self._total, self._who, self._sink = listing.size, who, sink
        self._began, self._last = time.monotonic(), 0.0
        self._done = self._checked = 0

    def came(self, done: int) -> None:
        """Set the number of bytes downloaded."""
        self._done = done
        self._say()

    def hashed(self, done: int) -> None:
        """Set the number of downloaded bytes that were read again to check their hashes."""
        self._checked = done
        self._say()

    def _say(self) -> None:
        now = time.monotonic()
        if now - self._last < 0.5:
            return
        self._last = now
        rate = self._done / max(now - self._began, 0.1) / MIB
        text = f"{self._done / GIB:.2f} of {self._total / GIB:.2f} GiB here, {rate:.1f} MiB/s"
        if self._checked:
            text += f", {self._checked / GIB:.2f} GiB hashed"
        self._sink(StepProgress(self._who, "download", text))
