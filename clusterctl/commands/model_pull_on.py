"""`model pull --on HOST`: that host gets the model from the hub, and then heads the chain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from clusterctl.commands import model_push
from clusterctl.commands.model_pull import Telling, Wanted, held, hub_for, listed
from clusterctl.commands.model_push import Push, Pushed
from clusterctl.engine.events import EventSink, StepFinished
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.transfer.weights import placing
from clusterctl.transfer.weights.arriving import MODE, foreseen
from clusterctl.transfer.weights.hashing import Hashed
from clusterctl.transfer.weights.host_web import HostWeb
from clusterctl.transfer.weights.hub import Hub, Listing, Refused
from clusterctl.transfer.weights.manifest import Manifest, WeightFile, in_order
from clusterctl.transfer.weights.need import need, no_room, staging_path
from clusterctl.transfer.weights.on_host import HostModels, look_at_models
from clusterctl.transfer.weights.supply import Holder, Supply
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values


def run(
    pull: Wanted,
    push: Push,
    holder: str,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> Pushed:
    """Let `holder` get the model, then bring it to the other hosts of `push` from there.

    Whether all have room is checked before the first byte. Raises what the hub and the hosts
    say; what came until then is kept, and another run goes on from there.
    """

    def supplying(views: Mapping[str, HostView]) -> Supply:
        web = HostWeb(views[holder].transport)
        hub = hub_for(pull.hub, web)
        listing = listed(pull, hub)
        there = held(listing, pull.name, push, views)
        if there:
            return there
        _require_room(foreseen(listing, pull.name), push, views)
        manifest = _fetched(pull, listing, hub, web, push, views[holder], sink)
        path = f"{push.inventory.models}/{manifest.name}"
        paths = {file.blob.digest: f"{path}/{file.path}" for file in manifest.files}
        return Supply(manifest, holder, holder=Holder(views[holder], paths))

    wanted = replace(push, supplying=supplying, holder=holder)
    return model_push.run(wanted, credentials, agree=agree, sink=sink)


def _require_room(manifest: Manifest, push: Push, views: Mapping[str, HostView]) -> None:
    """Raises RequirementsNotMet for every host without room."""

    def problem(view: HostView) -> ClusterctlError | None:
        host = look_at_models(view.transport, push.inventory.models)
        return no_room(manifest, need(manifest, host), host)

    found = fan_out(views, problem)
    problems = {host: error for host, error in values(found).items() if error}
    for host, error in problems.items():
        error.host = error.host or host
    raise_all([*failures(found), *problems.values()])


def _fetched(
    pull: Wanted,
    listing: Listing,
    hub: Hub,
    web: HostWeb,
    push: Push,
    view: HostView,
    sink: EventSink,
) -> Manifest:
    """The model in its place on `view`'s host, and what it turned out to hold."""

    def explain(refused: Refused) -> ClusterctlError:
        return hub.refusal(refused.answer, pull.model_id, listing.revision)

    models = push.inventory.models
    before = foreseen(listing, pull.name)
    staged = staging_path(before, models)
    placing.prepare(view.transport, before, need(before, HostModels(models, 0)), models)
    found = web.download(
        listing.files,
        staged,
        hub.headers,
        explain=explain,
        told=Telling(listing, view.host.name, sink).came,
    )
    sink(StepFinished(view.host.name, "download", "unchanged", 0.0))
    manifest = _manifest(listing, pull.name, found)
    placing.rename_staged(view.transport, staged, manifest, models)
    placing.settle(view.transport, manifest, models)
    return manifest


def _manifest(listing: Listing, name: str, found: Mapping[str, Hashed]) -> Manifest:
    files = [
        WeightFile(f.path, f.size, MODE, found[f.path].sha256, found[f.path].chunks)
        for f in listing.files
    ]
    return Manifest(name, in_order(files), origin=listing.origin)
