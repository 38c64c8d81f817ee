"""Receive a model on hosts: files are staged next to other models, and renamed once complete."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl.containers.driver import Say
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.transfer.chain import Chain
from clusterctl.transfer.chain_link import Link, LinkProgress, Web, fetch_limit
from clusterctl.transfer.content import BlobSource
from clusterctl.transfer.transfer import Route, Sending
from clusterctl.transfer.weights import staging
from clusterctl.transfer.weights.hashing import hashes
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.on_host import IDLE_AFTER, HostModels, look_at_models
from clusterctl.transfer.weights.staging import Need, need, no_room
from clusterctl.transport.fanout import Failed, failures, fan_out, values
from clusterctl.units import GIB, MIB

_VERBS = {"absent": "bring", "partial": "mend", "unverified": "complete", "differs": "replace"}


@dataclass(frozen=True)
class Holder:
    """A host that has the model and is the first link of the chain."""

    view: HostView
    paths: dict[str, str]  # By digest, absolute


@dataclass(frozen=True)
class Reader:
    """A host that reads the model from a hub and is the first link of the chain."""

    host: str
    web: Web


@dataclass(frozen=True)
class Supply:
    """A model and the source of its bytes."""

    manifest: Manifest
    name: str  # Of the source, shown to users: `here`, `gpu1`, `hf`
    source: BlobSource | None = None  # Blobs that this machine can send
    holder: Holder | None = None
    reader: Reader | None = None
    # Returns the errors that explain wrong or missing bytes from `source`; empty when all is well.
    trouble: Callable[[], Sequence[ClusterctlError]] = lambda: ()
    # Asks the hub what the manifest lacks, and returns the supply to use. Called once the user has
    # agreed to the plan. None: nothing is lacking.
    fetch: Callable[[], Supply] | None = None

    @classmethod
    def held_by(cls, view: HostView, manifest: Manifest, path: str) -> Supply:
        """Return the supply of a model in the directory `path` of a host."""
        files = {file.blob.digest: f"{path}/{file.path}" for file in manifest.files}
        return cls(manifest, view.host.name, holder=Holder(view, files))


class WeightsReceiver:
    """Puts the model of `supply` into the models directory of the hosts in `views`."""

    what = "model"

    def __init__(
        self, supply: Supply, views: Mapping[str, HostView], directory: str, route: Route
    ) -> None:
        self._supply, self._views = supply, dict(views)
        self._directory, self._route = directory, route
        self._needs: dict[str, Need] = {}  # As of the last look, by host
        self._has_chain = False

    def check(self, view: HostView) -> Change | None:
        """Return the change that the host needs, or None. Raises RequirementsNotMet without
        room."""
        host = look_at_models(view.transport, self._directory)
        found = self._needs[view.host.name] = self._need(view, host)
        if problem := no_room(self._supply.manifest, found, host):
            raise problem
        nothing_to_do = found.complete and not found.leftovers
        return None if nothing_to_do else _change(self._supply, found)

    def settle(self, view: HostView) -> bool:
        """Remove what interrupted runs left behind if the model is complete, else return False."""
        found = self._needs.get(view.host.name)
        if found is None or not found.complete:
            return False
        staging.clear(view.transport, found, self._directory)
        return True

    def prepare(self, _first: HostView, say_on: Callable[[str], Say]) -> Sending:
        """Have every host stage the files of the model that it has elsewhere. Hosts where that
        fails are set aside; raises their errors if no other host needs the model."""
        ready = fan_out(self._views, lambda view: self._stage(view, say_on(view.host.name)))
        needs = values(ready)
        lacking = {name: found for name, found in needs.items() if not found.complete}
        if not lacking:
            raise_all(failures(ready))
        self._needs.update(needs)
        self._has_chain = any(found.brought for found in lacking.values())
        holder = self._supply.holder
        if holder is None:  # a host that has the model sends it faster than SSH does from here
            complete = next((name for name, found in needs.items() if found.complete), None)
            holder = Holder(self._views[complete], needs[complete].origin) if complete else None
        links = {
            name: self._link(name, found.origin, {blob.digest for blob in found.brought})
            for name, found in lacking.items()
        }
        if holder:
            links.pop(holder.view.host.name, None)
        elif reader := self._supply.reader:
            link = links.get(reader.host) or self._link(reader.host, {})
            links[reader.host] = replace(link, web=reader.web)
        return Sending(
            expected={name: found.bytes for name, found in lacking.items()},
            links=list(links.values()) if self._has_chain else [],
            holder=self._link(holder.view.host.name, holder.paths) if holder else None,
            source=self._supply.source,
            blobs=self._supply.manifest.blobs,
            failures={name: each.error for name, each in ready.items() if isinstance(each, Failed)},
        )

    def receive(self, view: HostView, chain: Chain) -> None:
        """Fetch the missing files to this host and move the staged model into place."""
        name, found, directory = view.host.name, self._needs[view.host.name], self._directory
        if found.brought:
            try:
                digests = [blob.digest for blob in found.brought]
                chain.fetch(name, digests, timeout=fetch_limit(found.bytes))
            except ClusterctlError:
                raise_all(self._supply.trouble())
                raise
        view.say("moving the model into place")
        # From here on nothing may be fetched to the host, even if its relay is restarted: that
        # would make a second copy which is never moved into place.
        manifest = self._supply.manifest
        staged = staging.places(manifest, directory)
        if self._has_chain:
            chain.relocate(name, {digest: place.path for digest, place in staged.items()})
        staging.settle(view.transport, manifest, directory)
        if self._has_chain:
            model = f"{directory}/{manifest.name}"
            paths = {file.blob.digest: f"{model}/{file.path}" for file in manifest.files}
            chain.relocate(name, paths)

    @staticmethod
    def describe(progress: LinkProgress, expected: int) -> str:
        """Progress such as `1.2 of 2.0 GiB, 48.0 MiB/s, 17 s left, from gpu1`."""
        done = min(progress.done, expected)
        unit, name = (GIB, "GiB") if expected >= GIB else (MIB, "MiB")
        amount = f"{done / unit:.1f} of {expected / unit:.1f} {name}"
        return ", ".join((amount, *progress.movement(expected - done)))

    def clear(self) -> None:
        """Do nothing: staging directories were renamed to model directories, so none is left."""

    def _need(self, view: HostView, host: HostModels) -> Need:
        """Return what the host lacks. The holder lacks no content, but may have it under different
        names."""
        found = need(self._supply.manifest, host)
        holder = self._supply.holder
        if found.complete or holder is None or holder.view.host.name != view.host.name:
            return found
        return found.had({digest.partition(":")[2]: p for digest, p in holder.paths.items()})

    def _stage(self, view: HostView, say: Say) -> Need:
        host = look_at_models(view.transport, self._directory)
        manifest, found = self._supply.manifest, self._need(view, host)
        if found.complete:
            return found
        if found.unverified:
            text = f"hashing the files that {view.host.name} has"
            say(text)
            sizes = {file.sha256: file.size for file in manifest.files}
            size = sum(sizes[digest] for digest in found.unverified.values())
            paths = list(found.unverified)
            hashed = hashes(view.transport, paths, size, say=lambda far: say(f"{text}: {far}"))
            found = found.proven(hashed)
        if problem := no_room(manifest, found, host):
            raise problem
        staging.prepare(view.transport, manifest, found, self._directory)
        return found

    def _link(self, host: str, origin: Mapping[str, str], wanted: Collection[str] = ()) -> Link:
        places = staging.places(self._supply.manifest, self._directory)
        return self._route.link(
            host, origin, {digest: place for digest, place in places.items() if digest in wanted}
        )


def _change(supply: Supply, found: Need) -> Change:
    """Describe the change, such as `bring Tiny-1B: 2.0 GiB in 8 files, from here`."""
    manifest = supply.manifest
    if found.complete:
        size = _amount(sum(found.leftovers.values()))
        text = f"remove what an interrupted run left of {manifest.name}: up to {size}"
        return Change(f"{text}, not written to for {IDLE_AFTER} minutes")
    doubtful = set(found.unverified.values())
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
        text += f"; hashing what is there first: {_amount(found.bytes - found.least)}"
    return Change(text, disruptive=found.state == "differs")


def _amount(count: int) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 100 else f"{count / MIB:.1f} MiB"
