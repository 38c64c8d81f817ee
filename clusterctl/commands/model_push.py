"""`model push`: a model's directory comes to every host, and is proven there file by file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.commands.prepared import views
from clusterctl.commands.reach import look_at_all, reach
from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.spec import Mount
from clusterctl.engine.events import EventSink, Note, one_at_a_time
from clusterctl.engine.interrupt import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.topology import Node
from clusterctl.transfer.chain_link import CACHE
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transfer.weights.manifest import Manifest
from clusterctl.transfer.weights.receiver import WeightsReceiver
from clusterctl.transfer.weights.supply import Supply
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock

Supplying = Callable[[Mapping[str, HostView]], Supply]
"""Finds the model, given the hosts it may be on. Raises what is wrong with it, all at once."""


@dataclass(frozen=True)
class Pushed:
    """A model that is where it should be."""

    manifest: Manifest
    path: str
    """On every host."""
    hosts: tuple[str, ...]
    changed: int
    """Hosts that something was brought to, or put in place on."""
    sent: int
    """Bytes that left this machine."""
    seconds: float


@dataclass(frozen=True)
class Push:
    """What is wanted: which hosts, and from where."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    supplying: Supplying
    holder: str | None = None
    """The host that has the model, if one does; it may be another than `hosts`."""
    limit_rate: int | None = None
    """Bytes a second that leave this machine."""

    @property
    def involved(self) -> tuple[Host, ...]:
        """The hosts, the holder, and the head."""
        names = [host.name for host in self.hosts]
        return self.inventory.with_head([*names, self.holder] if self.holder else names)


@dataclass(frozen=True)
class _Ready:
    """All that is known before the first byte moves."""

    push: Push
    transports: Mapping[str, Transport]
    supply: Supply
    views: Mapping[str, HostView]
    """The hosts that are to have the model."""
    nodes: Mapping[str, Node]
    pythons: Mapping[str, tuple[str, ...]]

    def transfer(self, say: Callable[[str, str], None]) -> Transfer:
        route = Route(
            self.transports,
            lambda name: self.nodes[name].node_ip,
            limit_rate=self.push.limit_rate,
            python=lambda name: self.pythons[name],
            speed=lambda name: self.nodes[name].speed,
            say=say,
        )
        models = self.push.inventory.models
        return Transfer(WeightsReceiver(self.supply, self.views, models, route), route)

    def stages(self, transfer: Transfer) -> tuple[Stage, ...]:
        """A host that fails keeps no other from its weights."""
        return (Stage("Model", tuple(self.views), (transfer,), OnFailure.SET_HOST_ASIDE),)


def make_plan(push: Push, credentials: Credentials) -> Plan:
    """What would be brought where. Changes nothing."""
    with reach(push.involved, credentials) as transports:
        ready = _look(push, transports)
        return plan_stages(ready.stages(ready.transfer(lambda _host, _text: None)), ready.views)


def run(
    push: Push, credentials: Credentials, *, agree: Callable[[Plan], None], sink: EventSink
) -> Pushed:
    """Bring the model to the hosts. A second run moves nothing.

    `agree` is shown the plan and raises when the user does not want it. Raises the errors of
    all hosts together; one that fails does not keep the others from being served.
    """
    sink = one_at_a_time(sink)
    began = time.monotonic()
    with reach(push.involved, credentials) as transports:
        head = transports[push.inventory.head.name]
        with ClusterLock(head, f"{push.inventory.cluster}-models", "model push") as lock:
            ready = _look(push, transports)
            transfer = ready.transfer(lambda host, text: sink(Note(text, host)))
            plan = plan_stages(ready.stages(transfer), ready.views)
            agree(plan)
            changed = 0 if plan.empty else _carry_out(ready, transfer, sink, lock)
    return Pushed(
        ready.supply.manifest,
        f"{push.inventory.models}/{ready.supply.manifest.name}",
        tuple(host.name for host in push.hosts),
        changed,
        transfer.moved.sent,
        time.monotonic() - began,
    )


def _carry_out(ready: _Ready, transfer: Transfer, sink: EventSink, lock: ClusterLock) -> int:
    """How many hosts were changed."""
    with transfer:
        outcome = execute_held(ready.stages(transfer), ready.views, sink, lock.ensure_held)
        raise_all(outcome.set_aside.values())
    return outcome.changed


def _look(push: Push, transports: Mapping[str, Transport]) -> _Ready:
    """Facts of the hosts, for their addresses, and where the model is."""
    involved = push.inventory.model_copy(update={"hosts": push.involved})
    answers = look_at_all(involved, transports)
    facts = {name: answer.facts for name, answer in answers.items()}
    topology = resolve(involved, facts)
    seen = views(involved, transports, answers)
    targets = {host.name: seen[host.name] for host in push.hosts}
    nodes = {node.host: node for node in topology.nodes}
    pythons = {
        name: python_on(answer, push.inventory.models, driver_for(transports[name]))
        for name, answer in answers.items()
    }
    return _Ready(push, transports, push.supplying(seen), targets, nodes, pythons)


def python_on(answer: Probe, models: str, driver: ContainerDriver) -> tuple[str, ...]:
    """What starts a Python for the relay: () for the host's own; on a host without one that of
    the node image, if the host has it, with the models directory where it is outside."""
    if answer.facts.python3 is not None or answer.image is None:
        return ()
    mounts = [Mount(path, path) for path in (models, CACHE)]
    return driver.once_argv(answer.image.id, "python3", mounts)
