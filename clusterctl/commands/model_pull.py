"""`model pull`: deliver a model from a hub to every host, through a host or through this machine.

Whichever reads it from the hub passes it on as it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Literal

import httpx2

from clusterctl import deadlines
from clusterctl.engine.events import EventSink, Note, StepFinished, StepProgress
from clusterctl.engine.plan import Plan
from clusterctl.engine.step import HostView
from clusterctl.errors import UsageError
from clusterctl.inventory.outside import outside_of
from clusterctl.models.name import did_you_mean, resolve
from clusterctl.transfer.relay.web import MOST
from clusterctl.transfer.weights import delivery
from clusterctl.transfer.weights.delivery import Destination, PushedModel
from clusterctl.transfer.weights.host_transport import HostTransport
from clusterctl.transfer.weights.hub import Hub, Listing, hub_session, needed
from clusterctl.transfer.weights.hub_source import HubSource
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.model_sources import require_name
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transfer.weights.on_host import look_at_models
from clusterctl.transfer.weights.receiver import Reader, Supply
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import fan_out, values

ASKED = 4  # Hosts that are asked whether they reach the hub

SENT = (200, 206)  # HTTP status of a file, and of a part of it

HubName = Literal["hf", "modelscope"]


@dataclass(frozen=True)
class HubModel:
    """A model on a hub, as requested by the user."""

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
        raise UsageError(f"--source {hub} is unknown", hint="--source hf, or modelscope")
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
    with ExitStack() as stack:
        find = FromHub(pull, to, stack, lambda _: None).find
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

    Errors of the hub and of hosts propagate; hosts keep what they received for the next run.
    """
    with ExitStack() as stack:
        source = FromHub(pull, to, stack, sink)
        return delivery.deliver(to, source.find, credentials, agree=agree, sink=sink)


class FromHub:
    """Finds the nearest source of a model: a host that has it, else the hub, from which the first
    host that reaches it downloads it, or this machine if none does. `stack` ends what the
    source needs."""

    def __init__(self, pull: HubModel, to: Destination, stack: ExitStack, sink: EventSink) -> None:
        self._pull, self._to, self._stack, self._sink = pull, to, stack, sink
        self._outside = outside_of(to.inventory)
        self._hub = pull.client()

    def find(self, views: Mapping[str, HostView]) -> Supply:
        """Return the supply. Raises the hub's errors."""
        pull, chosen = self._pull, self._to.holder
        through = HostTransport(views[chosen].transport, self._outside) if chosen else None
        with hub_session(through, ca=self._outside.ca):
            listing = pull.listing(self._hub)
        if there := _held(listing, pull.name, self._to.inventory.models, views):
            return there

        note_unhashed(listing, self._sink)
        host = chosen or self._host_that_reaches(listing, views)
        self._hub.require_downloadable(listing, here=host is None)
        name = f"{pull.hub}, downloaded by {host}" if host else pull.hub
        fetch = partial(self._fetch, listing, name, views[host] if host else None)
        return Supply(listing.manifest(pull.name), name, fetch=fetch)

    def _host_that_reaches(self, listing: Listing, views: Mapping[str, HostView]) -> str | None:
        """Return the first host that gets the first byte of the largest file without the user's
        token: hubs keep weights on other servers. The bytes then do not cross the link of this
        machine, which may be at home."""
        if any(self._hub.cached(listing, file) for file in listing.files):
            return None  # this machine has some of them already
        if any(not file.sha256 and file.size > MOST for file in listing.files):
            return None  # they are read once before, to hash them
        asked = [host.name for host in self._to.hosts][:ASKED]
        largest = max(listing.files, key=lambda file: file.size)
        first_byte = httpx2.Request("GET", largest.url, headers={"Range": "bytes=0-0"})

        def ask(name: str) -> int:
            host = HostTransport(views[name].transport, self._outside, timeout=deadlines.HUB_LOOK)
            return host.handle_request(first_byte).status_code

        answers = values(fan_out({name: name for name in asked}, ask))
        return next((name for name in asked if answers.get(name) in SENT), None)

    def _fetch(self, listing: Listing, name: str, reader: HostView | None) -> Supply:
        """Return the supply, read from the hub by a host, or by this machine. Only a host that the
        user named gets the user's token."""
        hub, sink, outside = self._pull.hub, self._sink, self._outside
        through, entrusted = None, self._to.holder is not None
        if reader:
            through = HostTransport(reader.transport, outside, entrusted=entrusted)
        self._stack.enter_context(hub_session(through, ca=outside.ca))
        self._stack.callback(sink, StepFinished(hub, "download", "unchanged", 0.0))
        source = HubSource(
            self._hub, listing, say=lambda text: sink(StepProgress(hub, "download", text))
        )
        manifest = source.manifest(self._pull.name)
        if reader is None:
            return Supply(manifest, name, source)
        host = reader.host.name
        web = source.read_by(host, outside, entrusted=entrusted)
        return Supply(manifest, name, reader=Reader(host, web))


def note_unhashed(listing: Listing, sink: EventSink) -> None:
    """Report the files without a published hash, of which only the size can be checked."""
    for file in listing.files:
        if not file.sha256 and not file.git_sha1:
            sink(Note(f"{file.path}: the hub publishes no hash of it, so only its size is checked"))


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
