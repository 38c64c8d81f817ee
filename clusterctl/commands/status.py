"""`status`: ask every host once, in parallel, and put the answers together. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from clusterctl import deadlines
from clusterctl.commands.cluster_status import ClusterStatus, HostReport, assess
from clusterctl.commands.declared import services_in, unreadable_in
from clusterctl.commands.drift import drift
from clusterctl.commands.reach import look, node_files, reach, read_state
from clusterctl.commands.same_weights import told_apart
from clusterctl.errors import ClusterctlError
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.paths import NodePaths
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.transfer.weights.held import kept_file, look_at
from clusterctl.transfer.weights.on_host import KEPT
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import Done, Outcome, fan_out, values


@contextmanager
def read(inventory: Inventory, credentials: Credentials) -> Iterator[Callable[[], ClusterStatus]]:
    """A function that looks at the cluster; its connections stay open between looks."""
    files = (*node_files(inventory.cluster), f"{KEPT}/*")
    with reach(
        inventory.hosts, credentials, connect_timeout=deadlines.STATUS_CONNECT
    ) as transports:

        def once() -> ClusterStatus:
            found = look(inventory, transports, files=files, limit=2, timeout=deadlines.STATUS_LOOK)
            differs = drift(inventory, values(found))
            reports = {
                host.name: _report(inventory, host, found[host.name], differs.get(host.name, ()))
                for host in inventory.hosts
            }
            apart = weights_apart(inventory, reports, values(found), transports)
            return assess(inventory, reports, apart)

        yield once


def weights_apart(
    inventory: Inventory,
    reports: Mapping[str, HostReport],
    answers: Mapping[str, Probe],
    transports: Mapping[str, Transport],
) -> dict[str, tuple[str, ...]]:
    """Hosts whose files of a served model are not those of the other ranks' hosts, where hashing
    them is over: asked only where hosts keep hashes of that model."""
    head = reports[inventory.head.name]
    states = {service.name: service for service in (head.state.services if head.state else ())}
    found: dict[str, tuple[str, ...]] = {}
    for document in head.services:
        path, state = "".join(document.argv[2:3]), states.get(document.name)
        hosts = {rank.host for rank in state.ranks} & set(answers) if state else set()
        if len(hosts) < 2 or not any(kept_file(path) in answers[name].files for name in hosts):
            continue
        asked = {name: transports[name] for name in sorted(hosts)}
        held = values(fan_out(asked, partial(look_at, path=path, timeout=deadlines.STATUS_LOOK)))
        for host, sentences in told_apart(path, held, inventory.head.name).items():
            found[host] = (*found.get(host, ()), *sentences)
    return found


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
        unreadable=tuple(unreadable_in(inventory.cluster, answer)),
    )


def _unreachable(host: Host, error: ClusterctlError) -> HostReport:
    return HostReport(host=host, problem=error.summary, hint=error.hint)
