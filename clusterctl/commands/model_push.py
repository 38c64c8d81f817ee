"""`model push`: a model's directory comes to every host, and is proven there file by file."""

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
    """What is asked for: a directory of this machine, or with `source` one of a host."""

    inventory: Inventory
    hosts: tuple[Host, ...]
    directory: str
    sink: EventSink  # Is told how far hashing is
    name: str | None = None  # What hosts are to call it
    source: str | None = None  # --from host:NAME
    limit_rate: int | None = None  # Bytes a second that leave this machine

    @cached_property
    def push(self) -> ModelPush:
        """A directory of this machine is read and hashed here, so that what is wrong with it is
        said before any host is asked."""
        holder = holder_named(self.source, self.inventory)
        find = supplying(self.directory, self.name, holder, self.inventory.models, self.sink)
        return ModelPush(self.inventory, self.hosts, find, holder, self.limit_rate)


def make_plan(asked: DirectoryPush, credentials: Credentials) -> Plan:
    """What would be brought where. Changes nothing."""
    return delivery.make_plan(asked.push, credentials)


def run(
    asked: DirectoryPush,
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> PushedModel:
    """Bring the model to the hosts. A second run moves nothing. Raises the errors of all hosts."""
    return delivery.deliver(asked.push, credentials, agree=agree, sink=sink)
