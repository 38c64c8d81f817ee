"""`image push`: an image comes to every host, once over the operator's link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.commands.prepared import views
from clusterctl.commands.reach import look_at_all, reach
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import EventSink, Note, one_at_a_time
from clusterctl.engine.interrupt import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import HostView, Unknown
from clusterctl.errors import StepFailed, raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.topology import Node
from clusterctl.steps.engines import Engines
from clusterctl.steps.image_pulled import ImagePulled
from clusterctl.transfer.image_receiver import ImageReceiver
from clusterctl.transfer.image_sources import HOST, ImageFinder, archive_for, operators_engine
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class Pushed:
    """An image that is where it should be."""

    reference: str
    origin: str
    """Where it came from, or would have."""
    hosts: tuple[str, ...]
    changed: int
    """Hosts that it was brought to, or that only lacked its name."""
    sent: int
    """Bytes that left this machine, for all hosts together."""
    received: Mapping[str, int]
    """Bytes by host."""
    seconds: float


@dataclass(frozen=True)
class Push:
    """What is wanted."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    reference: str
    chosen: str | None = None
    """--from: registry, docker, host:NAME, or a path; None for the nearest place."""
    limit_rate: int | None = None  # Bytes a second that leave the source
    compress: bool | None = None  # Plain layers; None: where `limit_rate` says that it pays

    @property
    def involved(self) -> tuple[Host, ...]:
        """The hosts, the one that --from names, and the head."""
        names = {host.name for host in self.hosts}
        if self.chosen and self.chosen.startswith(HOST):
            names.add(self.chosen.removeprefix(HOST))
        return self.inventory.with_head(names)


@dataclass(frozen=True)
class _Ready:
    """All that is known before the first byte moves."""

    push: Push
    transports: Mapping[str, Transport]
    images: ImageReceiver
    transfer: Transfer
    nodes: dict[str, Node]
    """By host; known from `views` on."""

    def stages(self) -> tuple[Stage, ...]:
        """A host that fails keeps no other from its image."""
        names = tuple(host.name for host in self.push.hosts)
        bring = Stage("Image", names, (self.transfer,), OnFailure.SET_HOST_ASIDE)
        origin = self.images.origin()
        if isinstance(origin, Unknown):
            engines = Engines(driver_for)
            first = ImagePulled(self.push.reference, engines, origin.reason, marked=False)
            return (Stage("Image from its registry", names[:1], (first,)), bring)
        return (bring,)

    def views(self) -> Mapping[str, HostView]:
        """The hosts by their facts, which are asked for when something is to be done."""
        involved = self.push.inventory.model_copy(update={"hosts": self.push.involved})
        answers = look_at_all(involved, self.transports)
        raise_all(
            StepFailed(
                "it has no container engine",
                host=name,
                hint=f"clusterctl bootstrap {involved.file}",
            )
            for name, answer in answers.items()
            if not answer.facts.engine.installed
        )
        topology = resolve(involved, {name: answer.facts for name, answer in answers.items()})
        self.nodes.update({node.host: node for node in topology.nodes})
        return views(involved, self.transports, answers)


def make_plan(push: Push, credentials: Credentials) -> Plan:
    """What would be brought where. Changes nothing."""
    with reach(push.involved, credentials) as transports:
        ready = _ready(push, transports, credentials, lambda _: None)
        return plan_stages(ready.stages(), ready.views())


def run(
    push: Push, credentials: Credentials, *, agree: Callable[[Plan], None], sink: EventSink
) -> Pushed:
    """Bring the image to the hosts. A second run moves nothing.

    `agree` is shown the plan and raises when the user does not want it. Raises the errors of
    all hosts together; one that fails does not keep the others from being served.
    """
    sink = one_at_a_time(sink)
    began = time.monotonic()
    with reach(push.involved, credentials) as transports:
        ready = _ready(push, transports, credentials, sink)
        changed = 0 if ready.images.is_done() else _bring(ready, agree, sink)
    return _pushed(ready, changed, time.monotonic() - began)


def _bring(ready: _Ready, agree: Callable[[Plan], None], sink: EventSink) -> int:
    """How many hosts were changed."""
    inventory, known = ready.push.inventory, ready.views()
    head = ready.transports[inventory.head.name]
    with ClusterLock(head, inventory.cluster, "image push") as lock, ready.transfer:
        stages = ready.stages()
        agree(plan_stages(stages, known))
        outcome = execute_held(stages, known, sink, lock.ensure_held)
        raise_all(outcome.set_aside.values())
    return outcome.changed


def _pushed(ready: _Ready, changed: int, seconds: float) -> Pushed:
    origin, moved = ready.images.origin(), ready.transfer.moved
    return Pushed(
        ready.push.reference,
        "" if isinstance(origin, Unknown) else origin.name,
        tuple(host.name for host in ready.push.hosts),
        changed,
        moved.sent,
        moved.received,
        seconds,
    )


def _ready(
    push: Push, transports: Mapping[str, Transport], credentials: Credentials, sink: EventSink
) -> _Ready:
    drivers = {name: driver_for(transport) for name, transport in transports.items()}
    finder = ImageFinder(
        push.reference,
        drivers,
        tuple(host.name for host in push.involved),
        chosen=push.chosen,
        archive=archive_for(push.inventory, push.reference),
        operator=operators_engine(),
        limit_rate=push.limit_rate,
        compress=push.compress,
        ask=credentials.ask,
        say=lambda text: sink(Note(text)),
    )
    nodes: dict[str, Node] = {}
    route = Route(
        transports,
        lambda name: nodes[name].node_ip,
        push.limit_rate,
        speed=lambda name: nodes[name].speed,
        say=lambda host, text: sink(Note(text, host)),
    )
    targets = tuple(host.name for host in push.hosts)
    images = ImageReceiver(finder.find, drivers, targets, route)
    return _Ready(push, transports, images, Transfer(images, route), nodes)
