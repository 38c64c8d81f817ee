"""`check --fabric`: the gate, on a cluster that is up, beside all else that `check` looks at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clusterctl.commands.check import Report
from clusterctl.commands.prepared import ground_of, look_and_require
from clusterctl.commands.reach import reach
from clusterctl.engine.events import EventSink
from clusterctl.errors import ClusterctlError, Interrupted, Problems
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.gate import prove
from clusterctl.transport.credentials import Credentials

NOT_TRIED = "the fabric gate was not run: what is wrong comes first"


def with_fabric(
    report: Report,
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    sink: EventSink,
) -> Report:
    """What `check` found, and the gate's answer on `hosts` and the head, whose cluster is up. Not
    asked where `check` found something: the gate would fail of the same, in vaguer words."""
    if report.errors:
        return replace(report, notes=(*report.notes, NOT_TRIED))
    try:
        with reach(inventory.hosts, credentials) as transports:
            proof = prove(ground_of(look_and_require(inventory, transports, hosts)), sink)
    except Interrupted:
        raise
    except ClusterctlError as error:
        several = error.errors if isinstance(error, Problems) else (error,)
        return replace(report, errors=(*report.errors, *several))
    return replace(report, fabric=proof.record, notes=(*report.notes, *proof.notes))
