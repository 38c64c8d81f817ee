"""`model push`: deliver a model's directory to every host, and verify it there file by file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from clusterctl.engine.events import EventSink
from clusterctl.engine.plan import Plan
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transfer.weights import delivery
from clusterctl.transfer.weights.delivery import ModelPush, PushedModel
from clusterctl.transfer.weights.model_sources import holder_named, supplying
from clusterctl.transport.credentials import Credentials


@dataclass(frozen=True)
class DirectoryPush:
    """Arguments of `model push`: a directory of this machine, or with `source` of a host."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    directory: str
    sink: EventSink  # Receives the progress of hashing
    name: str | None = None  # Name of the model on hosts
    source: str | None = None  # --from host:NAME
    limit_rate: int | None = None  # Bytes/s that leave this machine

    @cached_property
    def push(self) -> ModelPush:
        """The push. A directory of this machine is read and hashed here, so that its errors are
        reported before any host is contacted."""
        holder = holder_named(self.source, self.inventory)
        find = supplying(self.directory, self.name, holder, self.inventory.models, self.sink)
        return ModelPush(self.inventory, self.hosts, find, holder, self.limit_rate)


def make_plan(asked: DirectoryPush, credentials: Credentials) -> Plan:
    """Return the plan of `run`. Changes nothing."""
    return delivery.make_plan(asked.push, credentials)


def run(
    asked: DirectoryPush,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Deliver the model to the hosts. A second run transfers nothing. Raises all hosts' errors."""
    return delivery.deliver(asked.push, credentials, agree=agree, sink=sink)
