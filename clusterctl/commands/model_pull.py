"""`model pull`: a model comes from a hub to every host, through this machine or through a host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from clusterctl.commands import model_push
from clusterctl.commands.model_push import Push, Pushed
from clusterctl.commands.model_source import require_name
from clusterctl.engine.events import EventSink, StepFinished, StepProgress
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.models.name import resolve
from clusterctl.transfer.weights.arriving import (
    Arriving,
    clear,
    download_directory,
    foreseen,
    require_room,
)
from clusterctl.transfer.weights.download import Downloads
from clusterctl.transfer.weights.download_lock import only_one
from clusterctl.transfer.weights.host_web import HostWeb
from clusterctl.transfer.weights.hub import Hub, Listing, Refused, Web, needed
from clusterctl.transfer.weights.hub_access import huggingface_access, modelscope_access
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transfer.weights.on_host import HostTree, look_at_models
from clusterctl.transfer.weights.supply import Holder, Supply
from clusterctl.transfer.weights.web import OperatorWeb
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import fan_out, values

HubName = Literal["hf", "modelscope"]

_MIB = 2**20
_GIB = 2**30


@dataclass(frozen=True)
class Wanted:
    """A model of a hub."""

    hub: HubName
    model_id: str
    name: str
    """Of the directory on hosts."""
    revision: str | None = None
    include: str | None = None
    """Pattern that weights must match."""


def wanted(asked: str, models: str, hub: str, revision: str | None, name: str | None) -> Wanted:
    """What the user means: a name of the catalogue, or ORGANISATION/NAME. On hosts the model
    gets the hub's own name, by which `serve` finds it. Raises UsageError."""
    if name is not None:
        require_name(name)
    if hub not in ("hf", "modelscope"):
        raise UsageError(f"--source {hub} is not known", hint="--source hf, or modelscope")
    model = resolve(asked, models)
    if asked.startswith("/") or model.hub_id is None:
        raise UsageError(
            f"{asked} is no model of a hub", hint="clusterctl model pull ORGANISATION/NAME"
        )
    known: HubName = "hf" if hub == "hf" else "modelscope"
    return Wanted(known, model.hub_id, name or model.hub_id.rpartition("/")[2], revision)


def listed(pull: Wanted, hub: Hub) -> Listing:
    """What is to be got. Raises what the hub says."""
    return needed(hub.listing(pull.model_id, pull.revision), pull.include)


def unset(_views: Mapping[str, HostView]) -> Supply:
    """Stands in a Push until the hub was asked."""
    raise UsageError("a model of a hub is brought by model_pull")


def hub_for(name: HubName, web: Web) -> Hub:
    """The hub with the user's access to it."""
    if name == "hf":
        return HuggingFace(web, huggingface_access())
    return ModelScope(web, modelscope_access())


def make_plan(pull: Wanted, push: Push, credentials: Credentials) -> Plan:
    """What would be got and brought where. Asks the hub for a list, and changes nothing. With a
    holder in `push` it is that host which asks."""
    with OperatorWeb() as here:

        def supplying(views: Mapping[str, HostView]) -> Supply:
            web = HostWeb(views[push.holder].transport) if push.holder else here
            listing = listed(pull, hub_for(pull.hub, web))
            return held(listing, pull.name, push, views) or Supply(
                foreseen(listing, pull.name), pull.hub
            )

        return model_push.make_plan(replace(push, supplying=supplying), credentials)


def run(
    pull: Wanted,
    push: Push,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> Pushed:
    """Get the model and bring it to the hosts of `push`, at the same time. What a host has of
    that commit already is not downloaded. Raises what the hub, this machine's disk and the
    hosts say; what came until then is kept for the next run. LockHeld while another run here
    gets the same model."""
    with OperatorWeb() as web:
        hub = hub_for(pull.hub, web)
        listing = listed(pull, hub)
        directory = download_directory(listing)
        with only_one(directory, pull.model_id):
            with _arriving(listing, pull, hub, web, sink) as arriving:

                def supplying(views: Mapping[str, HostView]) -> Supply:
                    there = held(listing, pull.name, push, views)
                    return there or _coming(listing, pull, arriving, directory)

                found = replace(push, supplying=supplying)
                done = model_push.run(found, credentials, agree=agree, sink=sink)
            clear(directory)
    return done


def _coming(listing: Listing, pull: Wanted, arriving: Arriving, directory: Path) -> Supply:
    require_room(listing, directory)
    manifest = arriving.begin()
    trouble, complete = arriving.trouble, arriving.complete
    return Supply(manifest, pull.hub, arriving, trouble=trouble, complete=complete)


@contextmanager
def _arriving(
    listing: Listing, pull: Wanted, hub: Hub, web: OperatorWeb, sink: EventSink
) -> Iterator[Arriving]:
    def explain(refused: Refused) -> ClusterctlError:
        return hub.refusal(refused.answer, pull.model_id, listing.revision)

    tell = Telling(listing, pull.hub, sink)
    downloads = Downloads(
        download_directory(listing),
        web.stream,
        hub.headers,
        explain=explain,
        told=tell.came,
        hashing=tell.hashed,
    )
    arriving = Arriving(listing, pull.name, downloads)
    try:
        yield arriving
    finally:
        arriving.stop()
        sink(StepFinished(pull.hub, "download", "unchanged", 0.0))


class Telling:
    """One line for what comes from the hub, at most twice a second. Takes bytes, of all files
    together; for several threads."""

    def __init__(self, listing: Listing, who: str, sink: EventSink) -> None:
        self._total, self._who, self._sink = listing.size, who, sink
        self._began, self._last = time.monotonic(), 0.0
        self._done = self._checked = 0

    def came(self, done: int) -> None:
        """So many are here."""
        self._done = done
        self._say()

    def hashed(self, done: int) -> None:
        """So many of them were read once more, to see that they are right."""
        self._checked = done
        self._say()

    def _say(self) -> None:
        now = time.monotonic()
        if now - self._last < 0.5:
            return
        self._last = now
        rate = self._done / max(now - self._began, 0.1) / _MIB
        text = f"{self._done / _GIB:.2f} of {self._total / _GIB:.2f} GiB here, {rate:.1f} MiB/s"
        if self._checked:
            text += f", {self._checked / _GIB:.2f} GiB hashed"
        self._sink(StepProgress(self._who, "download", text))


def held(listing: Listing, name: str, push: Push, views: Mapping[str, HostView]) -> Supply | None:
    """The model of this very commit, when a host has it whole: nothing need be downloaded."""
    found = values(
        fan_out(views, lambda view: look_at_models(view.transport, push.inventory.models))
    )
    for host, models in found.items():
        tree = models.tree(name)
        if tree and tree.manifest and _is(tree, tree.manifest, listing):
            path = f"{models.directory}/{tree.path}"
            paths = {f.blob.digest: f"{path}/{f.path}" for f in tree.manifest.files}
            return Supply(tree.manifest, host, holder=Holder(views[host], paths))
    return None


def _is(tree: HostTree, manifest: Manifest, listing: Listing) -> bool:
    """By where it came from, or by all its hashes, where the hub tells those."""
    paths = {file.path for file in manifest.files} == {file.path for file in listing.files}
    known = manifest.origin == listing.origin and paths
    return tree.intact and (known or manifest.identity == foreseen(listing, "").identity)
