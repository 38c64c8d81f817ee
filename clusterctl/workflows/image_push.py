"""`image push`: an image comes to every host, once over the operator's link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.distribution.sending import Terms
from clusterctl.distribution.shipment import Shipment
from clusterctl.engine.events import EventSink, Note, one_at_a_time
from clusterctl.engine.executor import execute
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import HostView, Unknown
from clusterctl.errors import StepFailed, raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.ray_cluster.topology import resolve
from clusterctl.steps.engines import Engines
from clusterctl.steps.image_pulled import ImagePulled
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock
from clusterctl.workflows.image_source import HOST, ImageSource, archive_for, operators_engine
from clusterctl.workflows.prepared import views
from clusterctl.workflows.reach import look_at_all, reach


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
    limit_rate: int | None = None
    """Bytes a second that leave the source."""

    @property
    def involved(self) -> tuple[Host, ...]:
        """The hosts, the one that --from names, and the head, which holds the lock."""
        names = {host.name for host in self.hosts}
        if self.chosen and self.chosen.startswith(HOST):
            names.add(self.chosen.removeprefix(HOST))
        return tuple(h for h in self.inventory.hosts if h.name in names or h.role == "head")


@dataclass(frozen=True)
class _Ready:
    """All that is known before the first byte moves."""

    push: Push
    views: Mapping[str, HostView]
    shipment: Shipment
    engines: Engines

    def stages(self) -> tuple[Stage, ...]:
        """A host that fails keeps no other from its image."""
        names = tuple(host.name for host in self.push.hosts)
        bring = Stage("Image", names, (self.shipment,), OnFailure.SET_HOST_ASIDE)
        origin = self.shipment.origin()
        if isinstance(origin, Unknown):
            first = ImagePulled(self.push.reference, self.engines, origin.reason, marked=False)
            return (Stage("Image from its registry", names[:1], (first,)), bring)
        return (bring,)


def make_plan(push: Push, credentials: Credentials) -> Plan:
    """What would be brought where. Changes nothing."""
    with reach(push.involved, credentials) as transports:
        ready = _look(push, transports, credentials, lambda _: None)
        return plan_stages(ready.stages(), ready.views)


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
        head = transports[push.inventory.head.name]
        with ClusterLock(head, push.inventory.cluster, "image push") as lock:
            ready = _look(push, transports, credentials, sink)
            stages = ready.stages()
            plan = plan_stages(stages, ready.views)
            agree(plan)
            changed = 0 if plan.empty else _carry_out(ready, stages, sink, lock)
    return _pushed(ready, changed, time.monotonic() - began)


def _carry_out(ready: _Ready, stages: tuple[Stage, ...], sink: EventSink, lock: ClusterLock) -> int:
    """How many hosts were changed."""
    with ready.shipment, interruptible(sink) as cancelled:
        outcome = execute(
            stages, ready.views, sink, cancelled=cancelled, before_stage=lock.ensure_held
        )
        raise_all(outcome.set_aside.values())
    return outcome.changed


def _pushed(ready: _Ready, changed: int, seconds: float) -> Pushed:
    origin, moved = ready.shipment.origin(), ready.shipment.moved
    return Pushed(
        ready.push.reference,
        "" if isinstance(origin, Unknown) else origin.name,
        tuple(host.name for host in ready.push.hosts),
        changed,
        moved.sent,
        moved.received,
        seconds,
    )


def _look(
    push: Push, transports: Mapping[str, Transport], credentials: Credentials, sink: EventSink
) -> _Ready:
    """Facts of the hosts, for their addresses, and where the image is."""
    involved = push.inventory.model_copy(update={"hosts": push.involved})
    answers = look_at_all(involved, transports)
    raise_all(
        StepFailed(
            "it has no container engine", host=name, hint=f"clusterctl bootstrap {involved.source}"
        )
        for name, answer in answers.items()
        if not answer.facts.engine.installed
    )
    facts = {name: answer.facts for name, answer in answers.items()}
    topology = resolve(involved, facts)
    seen = views(involved, transports, answers)
    engines = Engines(DockerDriver)
    source = ImageSource(
        push.reference,
        seen,
        engines,
        tuple(host.name for host in push.involved),
        chosen=push.chosen,
        archive=archive_for(push.inventory, push.reference),
        operator=operators_engine(),
        ask=credentials.ask,
        say=lambda text: sink(Note(text)),
    )
    terms = Terms(
        lambda view: topology.node(view.host.name).node_ip,
        push.limit_rate,
        say=lambda host, text: sink(Note(text, host)),
    )
    targets = tuple(host.name for host in push.hosts)
    return _Ready(push, seen, Shipment(source.find, seen, targets, engines, terms), engines)
