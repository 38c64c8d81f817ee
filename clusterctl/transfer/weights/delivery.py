"""Deliver a model to hosts, for `model push` and `model pull`: inspect, plan, ask, lock, send."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink, one_at_a_time
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.receiver import Supply, WeightsReceiver
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock

# Finds the model, given the hosts it may be on. Raises all errors about it together.
FindModel = Callable[[Mapping[str, HostView]], Supply]


@dataclass(frozen=True)
class PushedModel:
    """Result of a delivery: the model is on every host of `hosts`."""

    manifest: Manifest
    path: str  # On every host
    hosts: tuple[str, ...]
    changed: int  # Hosts that received files, or on which the model was moved into place
    sent: int  # Bytes that left this machine
    seconds: float


@dataclass(frozen=True)
class Destination:
    """The hosts to receive a model."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    # The host that has the model or downloads it, if any; it need not be one of `hosts`.
    holder: str | None = None
    limit_rate: int | None = None  # Bytes a second that leave this machine

    @property
    def involved(self) -> tuple[Host, ...]:
        """The receiving hosts, the host that holds the model, and the head."""
        names = [host.name for host in self.hosts]
        return self.inventory.with_head([*names, self.holder] if self.holder else names)


def make_plan(to: Destination, find: FindModel, credentials: Credentials) -> Plan:
    """Return the plan of a delivery. Changes nothing."""
    with connected(to.involved, credentials) as transports:
        return _ModelDelivery(to, find, transports, lambda _: None).plan()


def deliver(
    to: Destination,
    find: FindModel,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Deliver the model to the hosts. A second run moves nothing.

    `agree` is called with the plan and raises if the user declines. Raises the errors of all hosts
    together; a failing host does not stop the others.
    """
    with connected(to.involved, credentials) as transports:
        return deliver_over(transports, to, find, agree=agree, sink=sink)


def deliver_over(
    transports: Mapping[str, Transport],
    to: Destination,
    find: FindModel,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Like `deliver`, over connections to the involved hosts."""
    sink, began = one_at_a_time(sink), time.monotonic()
    inventory, delivery = to.inventory, _ModelDelivery(to, find, transports, sink)

    def act(plan: Plan, lock: ClusterLock | None) -> int:
        if lock is None or plan.empty:
            return 0
        delivery.fetch()
        with delivery.transfer:
            outcome = execute_held(delivery.stages, delivery.views, sink, lock.ensure_held)
        raise_all(outcome.set_aside.values())
        return outcome.changed

    # Of the models alone: services change meanwhile.
    name, head = f"{inventory.cluster}-models", transports[inventory.head.name]
    lock = partial(ClusterLock, head, name, "model push")
    changed = carry_out(delivery.plan, agree, lock, act, lambda plan: plan.shown)
    manifest = delivery.supply.manifest
    return PushedModel(
        manifest,
        f"{inventory.models}/{manifest.name}",
        tuple(host.name for host in to.hosts),
        changed,
        delivery.transfer.moved.sent,
        time.monotonic() - began,
    )


class _ModelDelivery:
    """A model, its transfer to the hosts in `to`, and the stage that runs it."""

    def __init__(
        self,
        to: Destination,
        find: FindModel,
        transports: Mapping[str, Transport],
        sink: EventSink,
    ) -> None:
        """Collect the hosts' facts and find the model."""
        involved = to.inventory.model_copy(update={"hosts": to.involved})
        survey = take_survey(involved, transports).require_answers()
        self._route = Route.over(transports, survey.topology.node, sink, to.limit_rate)
        self.views = {host.name: survey.views[host.name] for host in to.hosts}
        self._models = to.inventory.models
        self._use(find(survey.views))

    def plan(self) -> Plan:
        return plan_stages(self.stages, self.views)

    def fetch(self) -> None:
        """Ask the hub what the manifest lacks, if the model comes from one."""
        if self.supply.fetch:
            self._use(self.supply.fetch())

    def _use(self, supply: Supply) -> None:
        self.supply = supply
        receiver = WeightsReceiver(supply, self.views, self._models, self._route)
        self.transfer = Transfer(receiver, self._route)
        # A failing host does not stop the others.
        self.stages = (
            Stage("Model", tuple(self.views), (self.transfer,), OnFailure.SET_HOST_ASIDE),
        )
