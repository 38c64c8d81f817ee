"""`model push`: find the model on this machine or on a host, for `delivery.deliver`."""

from __future__ import annotations

from pathlib import Path

from clusterctl.engine.events import EventSink
from clusterctl.errors import UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.transfer.weights.delivery import Destination, FindModel
from clusterctl.transfer.weights.model_sources import of_directory, of_host, require_name


def holder_named(source: str | None, inventory: Inventory) -> str | None:
    """Return the host named by `--from host:NAME`; None without `--from`. Raises UsageError."""
    if source is None:
        return None
    kind, _, name = source.partition(":")
    known = [host.name for host in inventory.hosts]
    if kind != "host" or name not in known:
        raise UsageError(
            f"--from {source} is not a host of the inventory",
            hint=f"--from host:{known[0]}; omit --from for a directory of this machine",
        )
    return name


def find_model(asked: str, name: str | None, to: Destination, sink: EventSink) -> FindModel:
    """Return a function that finds the model. A directory of this machine is read and hashed at
    once, so that its errors are raised before any host is contacted."""
    if name is not None:
        require_name(name)
    models, holder = to.inventory.models, to.holder
    if holder is not None:
        return lambda views: of_host(asked, models, views[holder], name, sink)
    found = of_directory(Path(asked), name, sink)
    return lambda _: found
