"""`model ls`: which host has which model, in one round trip each; no weights are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.survey.survey import connected
from clusterctl.transfer.weights.on_host import Holding, holdings, look_at_models
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, fan_out, values


@dataclass(frozen=True)
class ModelList:
    """What hosts have, and the errors of hosts that could not be asked."""

    directory: str
    holdings: tuple[Holding, ...]
    errors: tuple[ClusterctlError, ...]


def run(inventory: Inventory, hosts: Iterable[Host], credentials: Credentials) -> ModelList:
    """Ask every host at once. One that does not answer does not hold up the others."""
    with connected(hosts, credentials) as transports:
        found = fan_out(transports, lambda each: look_at_models(each, inventory.models))
    return ModelList(inventory.models, tuple(holdings(values(found))), tuple(failures(found)))
