"""`model pull`: deliver a model from a hub to every host, through this machine or through a host.

Through this machine: list, lock, plan, ask the user, then download and deliver at the same time,
and clean up. Through a host (`--on`): that host lists and downloads, then heads the chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from clusterctl.engine.events import EventSink, Note, StepFinished, StepProgress
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.models.name import resolve
from clusterctl.transfer.weights import delivery, placing
from clusterctl.transfer.weights.delivery import ModelPush, PushedModel
from clusterctl.transfer.weights.downloads import (
    MODE,
    DownloadedModel,
    Downloads,
    clear,
    download_directory,
    expected_manifest,
    only_one,
    require_room,
)
from clusterctl.transfer.weights.host_download import HostTransport, download_on_host
from clusterctl.transfer.weights.hub import Hub, Listing, needed
from clusterctl.transfer.weights.hub_session import hub_session
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, in_order
from clusterctl.transfer.weights.model_sources import require_name
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transfer.weights.need import need, no_room, staging_path
from clusterctl.transfer.weights.on_host import HostModels, look_at_models
from clusterctl.transfer.weights.receiver import Holder, Supply
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values
from clusterctl.units import GIB

HubName = Literal["hf", "modelscope"]

_MIB = 2**20


@dataclass(frozen=True)
class HubModel:
    """A model of a hub, as the user requested it."""

    hub: HubName
    model_id: str
    name: str  # of its directory on hosts
    revision: str | None = None
    include: str | None = None  # pattern that the paths of weights must match


def hub_model(
    asked: str, models: str, hub: str, revision: str | None, name: str | None
) -> HubModel:
    """Resolve a name of the catalogue, or ORGANIZATION/NAME. The default `name` on hosts is the
    hub's, by which `serve` finds it. Raises UsageError."""
    if name is not None:
        require_name(name)
    if hub not in ("hf", "modelscope"):
        raise UsageError(f"--source {hub} is not known", hint="--source hf, or modelscope")
    model = resolve(asked, models)
    if asked.startswith("/") or model.hub_id is None:
        raise UsageError(
            f"{asked} is not a model on a hub",
            hint="clusterctl model pull ORGANIZATION/NAME",
        )
    known: HubName = "hf" if hub == "hf" else "modelscope"
    return HubModel(known, model.hub_id, name or model.hub_id.rpartition("/")[2], revision)


def unset(_views: Mapping[str, HostView]) -> Supply:
    """Placeholder for `ModelPush.supplying` until the hub has been asked."""
    raise AssertionError("supplying is set by model_pull")


def make_plan(pull: HubModel, push: ModelPush, credentials: Credentials) -> Plan:
    """Return what would be downloaded and delivered. Asks the hub for a list of files, through the
    holder of `push` if there is one, and changes nothing."""

    def supplying(views: Mapping[str, HostView]) -> Supply:
        with hub_session(HostTransport(views[push.holder].transport) if push.holder else None):
            listing = _listed(pull, _hub(pull))
        return _held(listing, pull.name, push, views) or Supply(
            expected_manifest(listing, pull.name), pull.hub
        )

    return delivery.make_plan(replace(push, supplying=supplying), credentials)


def run(
    pull: HubModel,
    push: ModelPush,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Download the model and deliver it to the hosts of `push`, without files of that commit which
    a host has already.

    Errors of the hub, disks and hosts propagate; downloaded data is kept for the next run. Raises
    LockHeld while another run on this machine downloads the same model.
    """
    through = _run_on_host if push.holder else _run_here
    return through(pull, push, credentials, agree, sink)


def _run_here(
    pull: HubModel,
    push: ModelPush,
    credentials: Credentials,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    hub = _hub(pull)
    with hub_session():
        listing = _listed(pull, hub)
        _note_unhashed(listing, sink)
        directory = download_directory(listing)
        with only_one(directory, pull.model_id):
            tell = DownloadProgress(listing, pull.hub, sink)
            downloads = Downloads(directory, hub, listing, told=tell.came, hashing=tell.hashed)
            model = DownloadedModel(listing, pull.name, downloads)

            def supplying(views: Mapping[str, HostView]) -> Supply:
                there = _held(listing, pull.name, push, views)
                if there:
                    return there
                hub.require_downloadable(listing)
                require_room(listing, hub, directory)
                manifest = model.begin()
                return Supply(
                    manifest, pull.hub, model, trouble=model.trouble, complete=model.complete
                )

            try:
                found = replace(push, supplying=supplying)
                done = delivery.deliver(found, credentials, agree=agree, sink=sink)
            finally:
                model.stop()
                sink(StepFinished(pull.hub, "download", "unchanged", 0.0))
            clear(directory)
    return done


def _run_on_host(
    pull: HubModel,
    push: ModelPush,
    credentials: Credentials,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Let the holder download, then deliver the model from there to the other hosts. Checks before
    the download that all hosts have room."""
    holder = str(push.holder)
    models = push.inventory.models

    def supplying(views: Mapping[str, HostView]) -> Supply:
        view, hub = views[holder], _hub(pull)
        with hub_session(HostTransport(view.transport)):
            listing = _listed(pull, hub)
        there = _held(listing, pull.name, push, views)
        if there:
            return there
        hub.require_downloadable(listing, here=False)
        _note_unhashed(listing, sink)
        expected = expected_manifest(listing, pull.name)
        _require_room_on_hosts(expected, models, views)
        staged = staging_path(expected, models)
        placing.prepare(view.transport, expected, need(expected, HostModels(models, 0)), models)
        found = download_on_host(
            view.transport,
            hub,
            listing,
            staged,
            told=DownloadProgress(listing, holder, sink).came,
        )
        sink(StepFinished(holder, "download", "unchanged", 0.0))
        files = [
            WeightFile(f.path, f.size, MODE, found[f.path].sha256, found[f.path].chunks)
            for f in listing.files
        ]
        manifest = Manifest(pull.name, in_order(files), origin=listing.origin)
        placing.rename_staged(view.transport, staged, manifest, models)
        placing.settle(view.transport, manifest, models)
        paths = {file.blob.digest: f"{models}/{manifest.name}/{file.path}" for file in files}
        return Supply(manifest, holder, holder=Holder(view, paths))

    return delivery.deliver(replace(push, supplying=supplying), credentials, agree=agree, sink=sink)


def _hub(pull: HubModel) -> Hub:
    """Return the client of the hub, with the user's credentials."""
    return HuggingFace() if pull.hub == "hf" else ModelScope()


def _listed(pull: HubModel, hub: Hub) -> Listing:
    """Return the files to download. Raises the hub's errors."""
    return needed(hub.listing(pull.model_id, pull.revision), pull.include)


def _note_unhashed(listing: Listing, sink: EventSink) -> None:
    """Report the files without a published hash, of which only the size can be checked."""
    for file in listing.files:
        if not file.sha256 and not file.git_sha1:
            sink(Note(f"{file.path}: the hub publishes no hash of it, only its size is checked"))


def _held(
    listing: Listing, name: str, push: ModelPush, views: Mapping[str, HostView]
) -> Supply | None:
    """Return a supply from a host that has all of this commit, or None if none has it."""
    found = values(
        fan_out(views, lambda view: look_at_models(view.transport, push.inventory.models))
    )
    for host, models in found.items():
        tree = models.tree(name)
        if tree is None or tree.manifest is None or not tree.intact:
            continue
        # The same commit by its origin, or by all hashes if the hub publishes them.
        paths = {file.path for file in tree.manifest.files} == {f.path for f in listing.files}
        known = tree.manifest.origin == listing.origin and paths
        if known or tree.manifest.identity == expected_manifest(listing, "").identity:
            path = Path(models.directory, tree.path)
            files = {f.blob.digest: f"{path}/{f.path}" for f in tree.manifest.files}
            return Supply(tree.manifest, host, holder=Holder(views[host], files))
    return None


def _require_room_on_hosts(manifest: Manifest, models: str, views: Mapping[str, HostView]) -> None:
    """Raise RequirementsNotMet for every host without room."""

    def problem(view: HostView) -> ClusterctlError | None:
        host = look_at_models(view.transport, models)
        return no_room(manifest, need(manifest, host), host)

    found = fan_out(views, problem)
    problems = {host: error for host, error in values(found).items() if error}
    for host, error in problems.items():
        error.host = error.host or host
    raise_all([*failures(found), *problems.values()])


class DownloadProgress:
    """Reports a download as one progress line, at most twice a second. Counts bytes of all files
    together; thread-safe enough for several downloads."""

    def __init__(self, listing: Listing, who: str, sink: EventSink) -> None:
        self._total, self._who, self._sink = listing.size, who, sink
        self._began, self._last = time.monotonic(), 0.0
        self._done = self._checked = 0

    def came(self, done: int) -> None:
        """Set the number of bytes downloaded."""
        self._done = done
        self._say()

    def hashed(self, done: int) -> None:
        """Set the number of those bytes that were read again to check their hashes."""
        self._checked = done
        self._say()

    def _say(self) -> None:
        now = time.monotonic()
        if now - self._last < 0.5:
            return
        self._last = now
        rate = self._done / max(now - self._began, 0.1) / _MIB
        text = f"{self._done / GIB:.2f} of {self._total / GIB:.2f} GiB here, {rate:.1f} MiB/s"
        if self._checked:
            text += f", {self._checked / GIB:.2f} GiB hashed"
        self._sink(StepProgress(self._who, "download", text))
