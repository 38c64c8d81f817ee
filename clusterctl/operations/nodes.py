"""Stages for nodes that several commands share."""

from __future__ import annotations

from clusterctl.accelerators.names import MODULES
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.plan import OnFailure, Stage
from clusterctl.engine.step import Step
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import (
    PRIVATE,
    cache_dir,
    config_dir,
    declared_dir,
    log_dir,
    measured_dir,
    run_dir,
    tables_dir,
)
from clusterctl.node.package import ROOT
from clusterctl.packages.bundle import open_bundles
from clusterctl.ray_cluster.node_files import admission
from clusterctl.steps.container_engine import EngineAbsent
from clusterctl.steps.engine_restart import NoUnitsBesideEngine
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import OWN_FILES, PathsAbsent
from clusterctl.steps.firewall import MARKER as FIREWALL_PACKAGES
from clusterctl.steps.firewall import Firewall, FirewallAbsent
from clusterctl.steps.host_proxy import HostProxy
from clusterctl.steps.host_python import MARKER as PYTHON_PACKAGES
from clusterctl.steps.host_python import PackagesAbsent
from clusterctl.steps.node_container import ContainersAbsent
from clusterctl.steps.node_image import ImagesAbsent
from clusterctl.steps.trusted_ca import TrustedCa
from clusterctl.steps.virtual_address import KEEPALIVED, VirtualAddressAbsent
from clusterctl.steps.virtual_address import MARKER as KEEPALIVED_PACKAGES
from clusterctl.survey.cluster import Cluster


def firewall_stage(cluster: Cluster, names: tuple[str, ...]) -> Stage:
    """Return the stage that precedes the tests of links: a host that is new in the inventory must
    be admitted by the others before it is tested."""
    inventory = cluster.inventory
    step: Step = FirewallAbsent(inventory.cluster)
    if inventory.network.firewall:
        packages = inventory.packages
        admitted = admission(inventory, cluster.topology, cluster.survey.facts)
        bundles = open_bundles(packages.offline, packages.sums)
        step = Firewall(inventory.cluster, admitted, bundles)
    return Stage("Firewall", names, (step,))


def removal_stages(
    inventory: Inventory, names: tuple[str, ...], *, purge: bool
) -> tuple[Stage, ...]:
    """Return the stages of removal, in order. The head comes first: its container includes the
    services and the supervisor that restarts them, and workers without a head start nothing."""
    head = inventory.head.name
    engines = Engines(driver_for)
    containers = (ContainersAbsent(inventory.cluster, engines),)
    aside = OnFailure.SET_HOST_ASIDE
    own = config_dir(inventory.cluster)
    cluster = inventory.cluster
    directories = (run_dir, declared_dir, tables_dir)
    files = PathsAbsent("node files", (own, *(each(cluster) for each in directories)))
    common = (
        Stage("Restarts of Docker", names, (NoUnitsBesideEngine(cluster),), aside),
        Stage("Services and Ray", (head,) if head in names else (), containers, aside),
        Stage("Workers", tuple(name for name in names if name != head), containers, aside),
        Stage("Shared address of gateways", names, (VirtualAddressAbsent(cluster),), aside),
        Stage("Files", names, (FirewallAbsent(cluster), files), aside),
    )
    if not purge:
        return common
    logs = PathsAbsent("logs", (log_dir(cluster), cache_dir(cluster), measured_dir(cluster)))
    everything = (*(f"{PRIVATE}/{name}" for name in OWN_FILES), ROOT)
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
        Stage("Gateways", names, (PackagesAbsent(KEEPALIVED, KEEPALIVED_PACKAGES, own),), aside),
        Stage("Python", names, (PackagesAbsent("Python", PYTHON_PACKAGES, own),), aside),
        Stage("Access to outside", names, access, aside),
    )
