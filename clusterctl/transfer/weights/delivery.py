"""Deliver a model to several hosts: look, plan, lock, transfer. For `model push` and `model
pull`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.engine.events import EventSink, Note, one_at_a_time
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.planner import plan as plan_stages
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
Supplying = Callable[[Mapping[str, HostView]], Supply]


@dataclass(frozen=True)
class PushedModel:
    """Result of a push: the model is on every host of `hosts`."""

    manifest: Manifest
    path: str  # On every host
    hosts: tuple[str, ...]
    changed: int  # Hosts that received files, or on which the model was moved into place
    sent: int  # Bytes that left this machine
    seconds: float


@dataclass(frozen=True)
class ModelPush:
    """A model to push: its source and the hosts to receive it."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    supplying: Supplying
    # The host that has the model, if any; it need not be one of `hosts`.
    holder: str | None = None
    limit_rate: int | None = None  # Bytes a second that leave this machine

    @property
    def involved(self) -> tuple[Host, ...]:
        """The hosts, the holder, and the head."""
        names = [host.name for host in self.hosts]
        return self.inventory.with_head([*names, self.holder] if self.holder else names)


def make_plan(push: ModelPush, credentials: Credentials) -> Plan:
    """Return the plan of a push. Changes nothing."""
    with connected(push.involved, credentials) as transports:
        _, stages, views = _prepare(push, transports, lambda _: None)
        return plan_stages(stages, views)


def deliver(
    push: ModelPush, credentials: Credentials, *, agree: Callable[[Plan], None], sink: EventSink
) -> PushedModel:
    """Bring the model to the hosts. A second run moves nothing.

    `agree` is called with the plan and raises if the user declines. Raises the errors of all hosts
    together; a failing host does not stop the others.
    """
    sink, began, changed = one_at_a_time(sink), time.monotonic(), 0
    inventory = push.inventory
    with connected(push.involved, credentials) as transports:
        head = transports[inventory.head.name]
        with ClusterLock(head, f"{inventory.cluster}-models", "model push") as lock:
            (supply, transfer), stages, views = _prepare(push, transports, sink)
            plan = plan_stages(stages, views)
            agree(plan)
            if not plan.empty:
                with transfer:
                    outcome = execute_held(stages, views, sink, lock.ensure_held)
                    raise_all(outcome.set_aside.values())
                changed = outcome.changed
    return PushedModel(
        supply.manifest,
        f"{inventory.models}/{supply.manifest.name}",
        tuple(host.name for host in push.hosts),
        changed,
        transfer.moved.sent,
        time.monotonic() - began,
    )


def _prepare(
    push: ModelPush, transports: Mapping[str, Transport], sink: EventSink
) -> tuple[tuple[Supply, Transfer], tuple[Stage, ...], dict[str, HostView]]:
    """Collect the hosts' facts, find the model, and prepare its transfer to `push.hosts`."""
    models = push.inventory.models
    involved = push.inventory.model_copy(update={"hosts": push.involved})
    survey = take_survey(involved, transports).require_answers()
    nodes = {node.host: node for node in survey.topology.nodes}
    route = Route(
        transports,
        lambda name: nodes[name].node_ip,
        limit_rate=push.limit_rate,
        speed=lambda name: nodes[name].speed,
        say=lambda host, text: sink(Note(text, host)),
    )
    supply = push.supplying(survey.views)
    views = {host.name: survey.views[host.name] for host in push.hosts}
    transfer = Transfer(WeightsReceiver(supply, views, models, route), route)
    # A failing host does not stop the others.
    stages = (Stage("Model", tuple(views), (transfer,), OnFailure.SET_HOST_ASIDE),)
    return (supply, transfer), stages, views
