"""`status`: ask every host once, in parallel, and put the answers together. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from clusterctl.errors import ClusterctlError
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.paths import NodePaths
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Done, Outcome, values
from clusterctl.workflows.cluster_status import ClusterStatus, HostReport, assess
from clusterctl.workflows.declared import services_in, services_pattern
from clusterctl.workflows.drift import drift
from clusterctl.workflows.reach import look, node_files, reach, read_state

CONNECT_TIMEOUT = 3.0
"""Seconds; a dead host must not make the others wait (status answers within 5 s)."""


@contextmanager
def read(inventory: Inventory, credentials: Credentials) -> Iterator[Callable[[], ClusterStatus]]:
    """A function that looks at the cluster; its connections stay open between looks."""
    files = (*node_files(inventory.cluster), services_pattern(inventory.cluster))
    with reach(inventory.hosts, credentials, connect_timeout=CONNECT_TIMEOUT) as transports:

        def once() -> ClusterStatus:
            found = look(inventory, transports, files=files, limit=2, timeout=4.0)
            differs = drift(inventory, values(found))
            reports = {
                host.name: _report(inventory, host, found[host.name], differs.get(host.name, ()))
                for host in inventory.hosts
            }
            return assess(inventory, reports)

        yield once


def _report(
    inventory: Inventory, host: Host, outcome: Outcome[Probe], differs: tuple[str, ...]
) -> HostReport:
    if not isinstance(outcome, Done):
        return _unreachable(host, outcome.error)
    answer = outcome.value
    paths = NodePaths(inventory.cluster)
    ours = container_name(inventory.cluster)
    return HostReport(
        host=host,
        facts=answer.facts,
        state=read_state(answer.files.get(str(paths.state))),
        container=next((c.state for c in answer.containers if c.name == ours), "missing"),
        drift=differs,
        services=tuple(services_in(inventory.cluster, answer).values()),
    )


def _unreachable(host: Host, error: ClusterctlError) -> HostReport:
    return HostReport(host=host, problem=error.summary, hint=error.hint)
