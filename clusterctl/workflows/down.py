"""`down`: take the cluster down, and leave hosts as they were found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.engine.events import EventSink
from clusterctl.engine.executor import execute
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import config_dir, log_dir
from clusterctl.node.package import ROOT
from clusterctl.ray_cluster.environment import CACHE_DIR
from clusterctl.steps.engine_absent import EngineAbsent
from clusterctl.steps.engines import Engines
from clusterctl.steps.images_absent import ImagesAbsent
from clusterctl.steps.node_container import ContainersAbsent
from clusterctl.steps.paths_absent import PathsAbsent
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, values
from clusterctl.transport.lock import ClusterLock
from clusterctl.workflows.prepared import views
from clusterctl.workflows.reach import look, reach


def _locked(inventory: Inventory, ready: Mapping[str, HostView]) -> AbstractContextManager[object]:
    """The cluster's lock; none to be had where the head is gone."""
    head = ready.get(inventory.head.name)
    if head is None:
        return nullcontext()
    return ClusterLock(head.transport, inventory.cluster, "down")


@dataclass(frozen=True)
class Taken:
    """A cluster that is down."""

    changed: int


def stages(inventory: Inventory, names: tuple[str, ...], *, purge: bool) -> tuple[Stage, ...]:
    """What goes, in order: workers before the head, so that no worker looks for it in vain."""
    head = inventory.head.name
    engines = Engines(DockerDriver)
    containers = (ContainersAbsent(inventory.cluster, engines),)
    aside = OnFailure.SET_HOST_ASIDE
    # The services' documents go first: nothing may start a service anew.
    files = PathsAbsent("node files", (config_dir(inventory.cluster),))
    common = (
        Stage("Services and Ray", (head,) if head in names else (), containers, aside),
        Stage("Workers", tuple(name for name in names if name != head), containers, aside),
        Stage("Files", names, (files,), aside),
    )
    if not purge:
        return common
    logs = PathsAbsent("logs and caches", (log_dir(inventory.cluster), CACHE_DIR, ROOT))
    image = ImagesAbsent(inventory.image, engines)
    return (
        *common,
        Stage("Image, logs, caches", names, (image, logs), aside),
        Stage("Container engine", names, (EngineAbsent(),), aside),
    )


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    *,
    purge: bool,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> Taken:
    """Take it down on `hosts`; hosts that do not answer do not keep the others up.

    Raises the errors of all hosts together, after the others are done.
    """
    with reach(hosts, credentials) as transports:
        found = look(inventory, transports)
        answers = values(found)
        ready = views(inventory, transports, answers)
        ordered = stages(inventory, tuple(ready), purge=purge)
        with _locked(inventory, ready):
            plan = plan_stages(ordered, ready)
            agree(plan)
            with interruptible(sink) as cancelled:
                outcome = execute(ordered if plan.changes else (), ready, sink, cancelled=cancelled)
    problems: list[ClusterctlError] = [*failures(found), *outcome.set_aside.values()]
    raise_all(problems)
    return Taken(outcome.changed)
