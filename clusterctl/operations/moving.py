"""Moving replicas away from a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import EventSink, Note
from clusterctl.errors import ClusterctlError
from clusterctl.node.documents import DrainedHosts, to_json
from clusterctl.operations.preparing import prepare_hosts
from clusterctl.planning.moves import ServiceMoves
from clusterctl.serving.brought_files import carry
from clusterctl.serving.declaration import read_key
from clusterctl.serving.rollout import Rollout
from clusterctl.survey.survey import Survey, drained_file
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


def move(
    survey: Survey,
    moves: Sequence[ServiceMoves],
    lock: ClusterLock,
    sink: EventSink,
    driver: Callable[[Transport], ContainerDriver] = driver_for,
) -> None:
    """Start replicas on their new hosts, and stop those that leave. Raises what `prepare_hosts` and
    `Rollout.run` raise."""
    cluster, head = survey.inventory.cluster, survey.transports[survey.inventory.head.name]
    key = read_key(survey.inventory, head)
    for each in moves:
        replicas = (*each.staying, *each.new)
        if each.new and each.model:
            prepare_hosts(survey, replicas, each.model, each.location, sink, driver)
        for new in each.new:
            carry(new.document, cluster, head, survey.transports[new.host])
        Rollout(survey, replicas, each.leaving, each.members, key, lock, sink).run()


def drain_host(
    survey: Survey,
    host: str,
    moves: Sequence[ServiceMoves],
    lock: ClusterLock,
    sink: EventSink,
    driver: Callable[[Transport], ContainerDriver] = driver_for,
) -> None:
    """Mark `host` as drained, and move its replicas away. If that fails, a host that was not marked
    before is unmarked: its replicas stay, and would restart on it. Raises what `move` raises."""
    before = list(survey.drained)
    marked = mark(survey, sorted({*before, host}), lock)
    try:
        move(survey, moves, lock, sink, driver)
    except ClusterctlError:
        if host not in before:
            with suppress(ClusterctlError):
                mark(marked, before, lock)
                sink(Note("can have replicas again: it was not drained", host))
        raise


def mark(survey: Survey, hosts: Sequence[str], lock: ClusterLock) -> Survey:
    """Write which hosts are drained, unless the head's file already says so. Return the resulting
    survey."""
    if list(hosts) == list(survey.drained):
        return survey
    path = drained_file(survey.inventory.cluster)
    data = to_json(DrainedHosts(list(hosts))).encode() if hosts else None
    lock.replace(path, data, before=survey.head_file(path))
    return survey.with_files({survey.inventory.head.name: {path: data}})
