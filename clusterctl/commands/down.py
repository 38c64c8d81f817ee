"""`down`: take the cluster down; with purge, restore hosts to the state before bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from clusterctl.accelerators.names import MODULES
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import EventSink, HostSetAside, Note
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Planned, Stage, plan_apart
from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import PRIVATE, cache_dir, config_dir, log_dir, measured_dir, run_dir
from clusterctl.node.package import ROOT
from clusterctl.steps.container_engine import EngineAbsent
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import OLD_CACHES, OWN_FILES, PathsAbsent
from clusterctl.steps.firewall import MARKER as FIREWALL_PACKAGES
from clusterctl.steps.firewall import FirewallAbsent
from clusterctl.steps.host_proxy import HostProxy
from clusterctl.steps.host_python import MARKER as PYTHON_PACKAGES
from clusterctl.steps.host_python import PackagesAbsent
from clusterctl.steps.node_container import ContainersAbsent
from clusterctl.steps.node_image import ImagesAbsent
from clusterctl.steps.trusted_ca import TrustedCa
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def stages(inventory: Inventory, names: tuple[str, ...], *, purge: bool) -> tuple[Stage, ...]:
    """Return the stages of removal, in order. The head comes first: its container includes the
    services and the supervisor that restarts them, and workers without a head start nothing."""
    head = inventory.head.name
    engines = Engines(driver_for)
    containers = (ContainersAbsent(inventory.cluster, engines),)
    aside = OnFailure.SET_HOST_ASIDE
    own = config_dir(inventory.cluster)
    files = PathsAbsent("node files", (own, run_dir(inventory.cluster)))
    common = (
        Stage("Services and Ray", (head,) if head in names else (), containers, aside),
        Stage("Workers", tuple(name for name in names if name != head), containers, aside),
        Stage("Files", names, (FirewallAbsent(inventory.cluster), files), aside),
    )
    if not purge:
        return common
    cluster = inventory.cluster
    logs = PathsAbsent("logs", (log_dir(cluster), cache_dir(cluster), measured_dir(cluster)))
    everything = (*(f"{PRIVATE}/{name}" for name in OWN_FILES), OLD_CACHES, ROOT)
    shared = PathsAbsent("caches and programs", everything, last_of=own)
    image = ImagesAbsent(inventory.image, engines, own)
    access = TrustedCa(cluster, (), inventory.image), HostProxy(cluster, {})
    # The modules of all accelerators: an earlier inventory may have named another one.
    brought = (step for name in MODULES for step in accelerator_named(name).purge_steps(own))
    return (
        *common,
        Stage("Image, logs, caches", names, (image, logs, shared), aside),
        Stage("Container engine", names, (*brought, EngineAbsent(inventory.cluster)), aside),
        Stage("Firewall", names, (PackagesAbsent("nftables", FIREWALL_PACKAGES, own),), aside),
        Stage("Python", names, (PackagesAbsent("Python", PYTHON_PACKAGES, own),), aside),
        Stage("Access to outside", names, access, aside),
    )


def make_plan(
    inventory: Inventory, hosts: Iterable[Host], credentials: Credentials, *, purge: bool
) -> Planned:
    """Return the plan of `run`, and the errors of hosts without one. Changes nothing."""
    hosts = tuple(hosts)
    with connected(hosts, credentials) as transports:
        survey = take_survey(inventory, transports)
        ready = survey.views
        planned = plan_apart(stages(inventory, tuple(ready), purge=purge), ready)
    return Planned(planned.plan, {**survey.errors, **planned.set_aside})


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    *,
    purge: bool,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> int:
    """Take the cluster down on `hosts`, and return the number of changes. Hosts that do not answer
    do not prevent the others.

    The head is contacted in any case, for the cluster's lock. Raises the errors of all hosts
    together, after the others are done.
    """
    limited = {host.name for host in hosts}
    with connected(inventory.with_head(limited), credentials) as transports:
        survey = take_survey(inventory, transports)
        for stranger in survey.strangers:
            sink(Note(f"{stranger.summary}; it is left as it is", stranger.host))
        mine = {name: view for name, view in survey.views.items() if name in limited}
        with _locked(inventory, survey.views, sink) as ensure_held:
            planned = plan_apart(stages(inventory, tuple(mine), purge=purge), mine)
            for name, error in planned.set_aside.items():
                sink(HostSetAside(name, error.summary))
            agree(planned.plan)
            fit = tuple(name for name in mine if name not in planned.set_aside)
            ordered = stages(inventory, fit, purge=purge) if planned.plan.changes else ()
            outcome = execute_held(ordered, mine, sink, ensure_held)
    silent = [error for name, error in survey.errors.items() if name in limited]
    raise_all([*silent, *planned.set_aside.values(), *outcome.set_aside.values()])
    return outcome.changed


@contextmanager
def _locked(
    inventory: Inventory, ready: Mapping[str, HostView], sink: EventSink
) -> Iterator[Callable[[], None]]:
    """Hold the cluster's lock; yield a function that raises once it is lost. If the head does not
    answer, report that and continue without a lock, so that the other hosts are still taken
    down."""
    head = ready.get(inventory.head.name)
    if head is None:
        sink(Note("does not answer: continuing without the cluster's lock", inventory.head.name))
        yield lambda: None
        return
    with ClusterLock(head.transport, inventory.cluster, "down") as lock:
        yield lock.ensure_held
