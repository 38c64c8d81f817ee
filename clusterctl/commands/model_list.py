"""`model ls`: which host has which model, in one round trip each; no weights are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.commands.reach import reach
from clusterctl.errors import ClusterctlError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.transfer.weights.holdings import Holding, holdings
from clusterctl.transfer.weights.on_host import look_at_models
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True)
class Listed:
    """What hosts have, and the hosts that could not be asked."""

    directory: str
    holdings: tuple[Holding, ...]
    errors: tuple[ClusterctlError, ...]


def run(inventory: Inventory, hosts: Iterable[Host], credentials: Credentials) -> Listed:
    """Ask every host at once. A host that does not answer keeps no other from being listed."""
    with reach(hosts, credentials) as transports:
        found = fan_out(transports, lambda each: look_at_models(each, inventory.models))
    return Listed(inventory.models, tuple(holdings(values(found))), tuple(failures(found)))
