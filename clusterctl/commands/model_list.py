"""`model ls`: which host has which model, in one round trip each; reads no weights."""

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
    """The hosts' models, and the errors of hosts that did not answer."""

    directory: str
    holdings: tuple[Holding, ...]
    errors: tuple[ClusterctlError, ...]


def run(inventory: Inventory, hosts: Iterable[Host], credentials: Credentials) -> ModelList:
    """Ask all hosts in parallel. A host that does not answer does not delay the others."""
    with connected(hosts, credentials) as transports:
        found = fan_out(transports, lambda each: look_at_models(each, inventory.models))
    return ModelList(inventory.models, tuple(holdings(values(found))), tuple(failures(found)))
