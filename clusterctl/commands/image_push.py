"""`image push`: deliver an image to every host, sending it once over the operator's link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

from clusterctl.containers.drivers import driver_for
from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink, ignore, one_at_a_time
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import Unknown
from clusterctl.errors import StepFailed, raise_all
from clusterctl.inventory.model import Host
from clusterctl.operations.session import Session
from clusterctl.ray_cluster.topology import Node
from clusterctl.steps.engines import Engines
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transfer.image_receiver import ImageReceiver
from clusterctl.transfer.image_sources import HOST, ImageFinder, PulledFirst
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class PushedImage:
    """The result of `image push`."""

    reference: str
    origin: str  # Source of the image, also if nothing was sent
    hosts: tuple[str, ...]
    changed: int  # Hosts that received it, or only lacked its name
    sent: int  # Bytes that left this machine, for all hosts together
    received: Mapping[str, int]  # Bytes by host
    seconds: float
    digest: str | None = None  # In the registry; None if it is not known to come from one


@dataclass(frozen=True)
class ImagePush:
    """Arguments of `image push`."""

    session: Session
    reference: str
    # --from: registry, docker, host:NAME, or a path; None for the nearest source.
    chosen: str | None = None
    limit_rate: int | None = None  # Bytes/s that leave the source
    compress: bool | None = None  # Compress plain layers; None: if worthwhile at `limit_rate`

    @property
    def involved(self) -> tuple[Host, ...]:
        """The target hosts, the host named by --from, and the head."""
        names = {host.name for host in self.session.hosts}
        if self.chosen and self.chosen.startswith(HOST):
            names.add(self.chosen.removeprefix(HOST))
        return self.session.inventory.with_head(names)


def make_plan(push: ImagePush) -> Plan:
    """Return the plan of `run`. Changes nothing."""
    with push.session.connected(push.involved) as transports:
        return _Delivery(push, transports, ignore).plan()


def run(push: ImagePush, *, agree: Callable[[Plan], None]) -> PushedImage:
    """Deliver the image to the hosts. A second run transfers nothing.

    `agree` gets the plan, and raises if the user declines. Raises the errors of all hosts together;
    a failed host does not stop delivery to the others.
    """
    session, began, changed = push.session, time.monotonic(), 0
    inventory = session.inventory
    with session.connected(push.involved) as transports:
        delivery = _Delivery(push, transports, one_at_a_time(session.progress))
        if not delivery.images.is_done():
            head = transports[inventory.head.name]
            lock = partial(ClusterLock, head, inventory.cluster, "image push")
            changed = carry_out(delivery.plan, agree, lock, delivery.carry, lambda plan: plan.shown)
    origin, moved = delivery.images.origin(), delivery.transfer.moved
    return PushedImage(
        push.reference,
        "" if isinstance(origin, Unknown) else origin.name,
        tuple(host.name for host in session.hosts),
        changed,
        moved.sent,
        moved.received,
        time.monotonic() - began,
        None if isinstance(origin, Unknown) else origin.digest,
    )


class _Delivery:
    """Receiver, transfer and stages of one push. Surveys the hosts when `survey` is first read."""

    def __init__(
        self, push: ImagePush, transports: Mapping[str, Transport], sink: EventSink
    ) -> None:
        self._push, self._transports, self._sink = push, transports, sink
        session = push.session
        self._names = tuple(host.name for host in session.hosts)
        drivers = {name: driver_for(transport) for name, transport in transports.items()}
        order = tuple(host.name for host in push.involved)
        finder = replace(
            ImageFinder.of(session.inventory, push.reference, drivers, transports, order, sink),
            chosen=push.chosen,
            pullers=self._names,
            ask=session.credentials.ask,
        )
        route = Route.over(transports, self._node, sink, push.limit_rate, push.compress)
        self.images = ImageReceiver(finder.find, drivers, self._names, route)
        self.transfer = Transfer(self.images, route)

    @cached_property
    def survey(self) -> Survey:
        """The survey of the hosts involved. Raises StepFailed for hosts without a container
        engine."""
        inventory = self._push.session.inventory
        involved = inventory.model_copy(update={"hosts": self._push.involved})
        survey = take_survey(involved, self._transports).require_answers()
        hint = f"clusterctl bootstrap {inventory.file}"
        raise_all(
            StepFailed("it has no container engine", host=name, hint=hint)
            for name, facts in survey.facts.items()
            if not facts.engine.installed
        )
        return survey

    def _node(self, name: str) -> Node:
        return self.survey.topology.node(name)

    def plan(self) -> Plan:
        return plan_stages(self.stages(), self.survey.views)

    def carry(self, _plan: Plan, lock: ClusterLock | None) -> int:
        """Make the changes, and return their number. Raises the errors of all hosts."""
        if lock is None:
            return 0
        with self.transfer:
            outcome = execute_held(self.stages(), self.survey.views, self._sink, lock.ensure_held)
        raise_all(outcome.set_aside.values())
        return outcome.changed

    def stages(self) -> tuple[Stage, ...]:
        """Return the stages; a host that fails does not stop the others."""
        bring = Stage("Image", self._names, (self.transfer,), OnFailure.SET_HOST_ASIDE)
        origin = self.images.origin()
        if not isinstance(origin, PulledFirst):
            return (bring,)
        return (origin.stage(self._push.reference, Engines(driver_for), marked=False), bring)
