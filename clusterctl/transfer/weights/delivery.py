"""Deliver a model to hosts, for `model push` and `model pull`: look, plan, ask, lock, transfer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink, Note, one_at_a_time
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
        _, stages, views = _prepare(to, find, transports, lambda _: None)
        return plan_stages(stages, views)


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
    sink, began = one_at_a_time(sink), time.monotonic()
    inventory = to.inventory
    with connected(to.involved, credentials) as transports:
        (supply, transfer), stages, views = _prepare(to, find, transports, sink)

        def act(plan: Plan, lock: ClusterLock | None) -> int:
            if lock is None or plan.empty:
                return 0
            with transfer:
                outcome = execute_held(stages, views, sink, lock.ensure_held)
            raise_all(outcome.set_aside.values())
            return outcome.changed

        lock = models_lock(inventory, transports[inventory.head.name], "model push")
        changed = carry_out(
            lambda: plan_stages(stages, views), agree, lock, act, lambda plan: plan.shown
        )
    return PushedModel(
        supply.manifest,
        f"{inventory.models}/{supply.manifest.name}",
        tuple(host.name for host in to.hosts),
        changed,
        transfer.moved.sent,
        time.monotonic() - began,
    )


def models_lock(inventory: Inventory, head: Transport, command: str) -> Callable[[], ClusterLock]:
    """Return what makes the lock of the hosts' models: services change meanwhile."""
    return partial(ClusterLock, head, f"{inventory.cluster}-models", command)


def _prepare(
    to: Destination, find: FindModel, transports: Mapping[str, Transport], sink: EventSink
) -> tuple[tuple[Supply, Transfer], tuple[Stage, ...], dict[str, HostView]]:
    """Collect the hosts' facts, find the model, and prepare its transfer."""
    models = to.inventory.models
    involved = to.inventory.model_copy(update={"hosts": to.involved})
    survey = take_survey(involved, transports).require_answers()
    nodes = {node.host: node for node in survey.topology.nodes}
    route = Route(
        transports,
        lambda name: nodes[name].node_ip,
        limit_rate=to.limit_rate,
        speed=lambda name: nodes[name].speed,
        say=lambda host, text: sink(Note(text, host)),
    )
    supply = find(survey.views)
    views = {host.name: survey.views[host.name] for host in to.hosts}
    transfer = Transfer(WeightsReceiver(supply, views, models, route), route)
    # A failing host does not stop the others.
    stages = (Stage("Model", tuple(views), (transfer,), OnFailure.SET_HOST_ASIDE),)
    return (supply, transfer), stages, views
