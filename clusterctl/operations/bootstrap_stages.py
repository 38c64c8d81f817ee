"""Everything that `bootstrap` does, in order: `STAGES`. A line names a method of `HostTarget` or
`Target` that returns its steps, or of `Run` that acts between stages. To add a stage, add a line
and its method."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event
from typing import TYPE_CHECKING

from clusterctl.accelerators.protocol import Accelerator
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.events import EventSink, StageStarted, ignore, one_at_a_time
from clusterctl.engine.executor import Execution
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import HostView, Step
from clusterctl.errors import raise_all
from clusterctl.facts.container_networks import free_bridge, site_networks
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.outside import outside_of
from clusterctl.network.gate import FabricProof, FabricRecord, ensure_proven, require_links
from clusterctl.network.pairs import judgement
from clusterctl.network.pairs.probe import IN_USE
from clusterctl.node.documents import config_dir, to_json
from clusterctl.node.files import NodePaths
from clusterctl.operations.nodes import firewall_stage
from clusterctl.operations.roll import Roll
from clusterctl.packages.bundle import Bundle, open_bundles
from clusterctl.ray_cluster.node_files import (
    directories_present,
    files_present,
    tables_absent,
    tables_present,
)
from clusterctl.ray_cluster.nodes import container_spec
from clusterctl.steps.container_engine import ContainerEngine
from clusterctl.steps.engine_restart import UnitsBesideEngine
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import FilesPresent, PathsAbsent, RemoteFile
from clusterctl.steps.host_proxy import HostProxy
from clusterctl.steps.host_python import HostPython
from clusterctl.steps.node_container import NodeContainer
from clusterctl.steps.secrets import (
    API_KEY,
    RAY_TOKEN,
    HeadSecret,
    SecretCopied,
    SecretsMade,
    secret_path,
)
from clusterctl.steps.service_documents import ServiceDocumentsReadable, documents_copied
from clusterctl.steps.trusted_ca import TrustedCa
from clusterctl.steps.virtual_address import VirtualAddress, VirtualAddressAbsent
from clusterctl.survey.cluster import Cluster, require_fit
from clusterctl.survey.formation import Formed, await_formation, clock_of
from clusterctl.survey.survey import take_survey
from clusterctl.survey.taking_over import copy_of_head, keepers_behind
from clusterctl.transfer.cluster_images import ClusterImages
from clusterctl.transport.head_copy import copy_file
from clusterctl.transport.lock import ClusterLock

if TYPE_CHECKING:
    from clusterctl.steps.gateway_certificate import GatewayCertificate


@dataclass(frozen=True)
class HostTarget:
    """Hosts to change, of which only the facts are known."""

    inventory: Inventory
    names: tuple[str, ...]
    facts: Mapping[str, HostFacts]

    @cached_property
    def bundles(self) -> tuple[Bundle, ...]:
        """Raises UsageError if the packages named in the inventory cannot be read."""
        packages = self.inventory.packages
        return open_bundles(packages.offline, packages.sums)

    @cached_property
    def accelerator(self) -> Accelerator:
        return accelerator_named(self.inventory.accelerator)

    def access_to_outside(self) -> Sequence[Step]:
        """Raises InventoryError if the inventory's CA cannot be read."""
        outside, cluster = outside_of(self.inventory), self.inventory.cluster
        trusted = TrustedCa(cluster, outside.certificates, self.inventory.image)
        return trusted, HostProxy(cluster, outside.proxy, outside.no_proxy)

    def python(self) -> Sequence[Step]:
        return (HostPython(self.bundles),)

    def container_engine(self) -> Sequence[Step]:
        bridge = free_bridge(site_networks(self.inventory, self.facts))
        return (ContainerEngine(self.inventory.packages, self.bundles, bridge=bridge),)

    def gpu_access(self) -> Sequence[Step]:
        return self.accelerator.host_steps(self.inventory.packages, self.bundles)


@dataclass(frozen=True)
class Target(HostTarget):
    """Hosts to change, as nodes of their cluster."""

    cluster: Cluster
    engines: Engines
    lock: ClusterLock | None = None  # None for a plan, which changes nothing
    sink: EventSink = ignore

    @staticmethod
    def of(
        cluster: Cluster,
        names: tuple[str, ...],
        engines: Engines | None = None,
        lock: ClusterLock | None = None,
        sink: EventSink = ignore,
    ) -> Target:
        facts, made = cluster.survey.facts, engines or Engines(driver_for)
        return Target(cluster.inventory, names, facts, cluster, made, lock, sink)

    @cached_property
    def plan(self) -> Plan:
        """What would change."""
        return plan_stages(stages_of(self), self.cluster.views)

    @cached_property
    def images(self) -> ClusterImages:
        return ClusterImages(self.cluster, self.names, self.engines, self.sink)

    def close(self) -> None:
        """End running transfers."""
        if "images" in self.__dict__:
            self.images.close()

    # Which hosts

    def all_hosts(self) -> tuple[str, ...]:
        return self.names

    def heads(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name == self.inventory.head.name)

    def heads_together(self) -> tuple[str, ...]:
        return tuple(name for name in self.heads() if name not in self.roll.hosts)

    def workers(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name != self.inventory.head.name)

    def together(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name not in self.roll.hosts)

    def workers_together(self) -> tuple[str, ...]:
        return tuple(name for name in self.workers() if name not in self.roll.hosts)

    def workers_with_gateway(self) -> tuple[str, ...]:
        return tuple(name for name in self.workers() if name in self._gateways)

    def workers_with_replicas(self) -> tuple[str, ...]:
        """According to the head: a worker's own documents must not get it the key."""
        services = self.cluster.survey.services.values()
        listed = {member.host for service in services for member in service.members}
        return tuple(name for name in self.workers() if name in listed | self._gateways)

    def without_tls(self) -> tuple[str, ...]:
        with_tls = self._gateways if self.has_tls() else set()
        return tuple(name for name in self.names if name not in with_tls)

    @property
    def _gateways(self) -> set[str]:
        return {host.name for host in self.inventory.gateways}

    @cached_property
    def roll(self) -> Roll:
        steps = (*self.node_files(), *self.container())
        names, image, engines = self.names, self.images.node, self.images.engines
        return Roll(self.cluster, names, image, engines, steps, self.lock, self.sink)

    # Which steps

    def firewall(self) -> Sequence[Stage]:
        return (firewall_stage(self.cluster, self.names),)

    def image_stages(self) -> Sequence[Stage]:
        _ = self.roll.turns  # Decided by what runs before images change
        return self.images.stages()

    def directories(self) -> Sequence[Step]:
        return (directories_present(self.inventory.cluster),)

    def tables(self) -> Sequence[Step]:
        return (tables_present(self.inventory.cluster),)

    def no_tables(self) -> Sequence[Step]:
        return (tables_absent(self.inventory.cluster),)

    def takes_over(self) -> bool:
        return self.cluster.survey.taking_over is not None

    def earlier_documents(self) -> Sequence[Step]:
        found = self.cluster.survey.taking_over
        assert found  # noqa: S101 - by `takes_over`
        title = "documents of the earlier head"
        files = [RemoteFile(path, data, 0o600) for path, data in found.files.items()]
        gone = (PathsAbsent(title, found.gone),) if found.gone else ()
        return (FilesPresent(title, lambda _: files), *gone)

    def earlier_key(self) -> Sequence[Step]:
        """The key on another host, so that clients need not get a new one."""
        survey, head = self.cluster.survey, self.inventory.head.name
        having = [name for name, state in survey.states.items() if API_KEY in state.secrets]
        if head in having or not having or having[0] not in self.cluster.views:
            return ()
        secret = HeadSecret(
            self.cluster.views[having[0]], secret_path(self.inventory.cluster, API_KEY)
        )
        return (SecretCopied(secret),)

    @cached_property
    def _new_token(self) -> Step:
        """The replicas of the new Ray ended when the earlier head came back with its disk, probably
        since its GCS ends actors that it does not know. It must not be heard then."""
        path = secret_path(self.inventory.cluster, RAY_TOKEN)
        file = RemoteFile(path, secrets.token_hex(32).encode(), 0o600)
        return FilesPresent("token of Ray", lambda _: (file,))

    def new_token(self) -> Sequence[Step]:
        return (self._new_token,)

    def keepers_behind(self) -> tuple[str, ...]:
        behind = keepers_behind(self.cluster.survey)
        return tuple(name for name in self.names if name in behind)

    def copy_for_another_head(self) -> Sequence[Step]:
        data = to_json(copy_of_head(self.cluster.survey)).encode()
        file = RemoteFile(copy_file(self.inventory.cluster), data, 0o600)
        return (FilesPresent("copy of the head's documents", lambda _: (file,)),)

    def service_documents(self) -> Sequence[Step]:
        broken = {
            name: [document for document in documents if document.file != "node.json"]
            for name, documents in self.cluster.survey.unreadable.items()
        }
        return (ServiceDocumentsReadable(self.inventory.cluster, broken),)

    def copies(self) -> Sequence[Step]:
        return (documents_copied(self.inventory.cluster, self.cluster.survey.not_copied),)

    def node_files(self) -> Sequence[Step]:
        return (files_present(self.inventory, self.cluster.topology, self.facts),)

    def gpus_in_image(self) -> Sequence[Step]:
        return self.accelerator.image_proof(self.spec, self.images.engines, self.inventory.file)

    def secrets(self) -> Sequence[Step]:
        cluster = self.inventory.cluster
        return (SecretsMade([secret_path(cluster, name) for name in (RAY_TOKEN, API_KEY)]),)

    def ray_token(self) -> Sequence[Step]:
        path = secret_path(self.inventory.cluster, RAY_TOKEN)
        made_by = self._new_token if self.takes_over() else None
        return (SecretCopied(HeadSecret(self.cluster.head, path, made_by)),)

    def api_key(self) -> Sequence[Step]:
        path = secret_path(self.inventory.cluster, API_KEY)
        return (SecretCopied(HeadSecret(self.cluster.head, path)),)

    def has_tls(self) -> bool:
        return self.inventory.gateway.tls

    @property
    def _certificate_files(self) -> tuple[str, str]:
        kept = NodePaths(self.inventory.cluster)
        return str(kept.public_certificate), str(kept.certificate)

    def no_certificate(self) -> Sequence[Step]:
        return (PathsAbsent("gateway certificate", self._certificate_files),)

    @cached_property
    def _certificate(self) -> GatewayCertificate:
        from clusterctl.steps.gateway_certificate import GatewayCertificate  # 15 ms

        gateway = self.inventory.gateway
        names = (*([str(gateway.virtual_ip)] if gateway.virtual_ip else []), *gateway.names)
        for host in reversed(self.inventory.gateways):
            own_ip = self.cluster.topology.node(host.name).node_ip
            names = (host.address, own_ip, host.name, *names)
        return GatewayCertificate(self.inventory.cluster, self.inventory.gateway, names)

    def certificate(self) -> Sequence[Step]:
        return (self._certificate,)

    def certificate_copies(self) -> Sequence[Step]:
        secrets = [
            HeadSecret(self.cluster.head, path, self._certificate)
            for path in self._certificate_files
        ]
        return [SecretCopied(secret, "gateway certificate") for secret in secrets]

    def without_virtual_ip(self) -> tuple[str, ...]:
        """Hosts that shared an address before: the survey has seen its files."""
        shares = self._gateways if self.has_virtual_ip() else set()
        found = self.cluster.survey.with_keepalived
        return tuple(name for name in self.names if name in found - shares)

    def with_virtual_ip(self) -> tuple[str, ...]:
        return tuple(name for name in self.names if name in self._gateways)

    def has_virtual_ip(self) -> bool:
        return self.inventory.gateway.virtual_ip is not None

    def no_virtual_ip(self) -> Sequence[Step]:
        return (VirtualAddressAbsent(self.inventory.cluster),)

    def virtual_ip(self) -> Sequence[Step]:
        address, facts = self.inventory.gateway.virtual_ip, self.cluster.survey.facts
        shares = {one.name: facts[one.name] for one in self.inventory.gateways if one.name in facts}
        assert address  # noqa: S101 - by `has_virtual_ip`
        return (VirtualAddress(self.inventory.cluster, address, shares),)

    def units_beside_engine(self) -> Sequence[Step]:
        def has_cdi(view: HostView) -> bool:
            gpus = self.cluster.topology.node(view.host.name).gpus
            return bool(gpus and self.accelerator.access(view.facts).cdi)

        return (UnitsBesideEngine(self.inventory.cluster, has_cdi),)

    def spec(self, view: HostView) -> ContainerSpec:
        topology = self.cluster.topology
        image = self.images.node.on(view).id
        node = topology.node(view.host.name)
        return container_spec(node, image, self.inventory, view.facts, topology)

    def container(self) -> Sequence[Step]:
        cluster = self.inventory.cluster

        def why_anew(view: HostView, driver: ContainerDriver, container: Container) -> str | None:
            if self.cluster.survey.config_deleted.get(view.host.name) == container.id:
                return f"{config_dir(cluster)} was deleted while it ran"
            return self.accelerator.gpus_lost(view, driver, container)

        return (NodeContainer(cluster, self.spec, self.images.engines, why_anew=why_anew),)

    def rolling_hosts(self) -> Sequence[Stage]:
        return self.roll.stages()


@dataclass
class Run:
    """A running bootstrap."""

    target: Target
    hosts: tuple[Host, ...]
    changes: bool  # Whether the plan has any
    lock: ClusterLock
    sink: EventSink
    cancelled: Event
    done: Execution = field(init=False)
    seen: int = 0  # Changes before the last look
    links_proven: bool = False
    formed: Formed | None = None
    proof: FabricProof | None = None

    def __post_init__(self) -> None:
        views = self.target.cluster.views
        self.done = Execution(
            views, one_at_a_time(self.sink), self.cancelled, self.lock.ensure_held
        )

    def look_again(self) -> None:
        """Take a survey, whose result may differ from what was planned for."""
        before = self.target
        answered = {name: view.transport for name, view in before.cluster.views.items()}
        cluster = require_fit(take_survey(before.inventory, answered), self.hosts)
        before.close()
        self.target = Target.of(cluster, before.names, before.engines, self.lock, self.sink)
        self.done.views, self.seen = cluster.views, self.done.changed

    def prove_links(self) -> None:
        """Raise all problems of links between hosts, which must work before Ray is started."""
        cluster = self.target.cluster
        self.sink(StageStarted("Links between hosts", cluster.held))
        unrated = IN_USE if cluster.survey.running else ""
        require_links(cluster.gate_scope, self.sink, unrated=unrated, notes=judgement.notes)
        self.links_proven = True

    def prove_image(self) -> None:
        roll = self.target.roll
        if roll.turns:
            roll.require_same_ray()
        roll.require_starts()

    def await_ray(self) -> None:
        raise_all(self.done.set_aside.values())
        cluster = self.target.cluster
        since = clock_of(cluster.head.transport) if self.changes else None
        self.formed = await_formation(
            cluster, since=since, sink=self.sink, cancelled=self.cancelled
        )

    def prove_fabric(self) -> None:
        scope = self.target.cluster.gate_scope
        self.proof = ensure_proven(scope, self.sink, self.cancelled, links_proven=self.links_proven)


@dataclass(frozen=True)
class OnHosts:
    """A stage on all hosts that does not need the cluster."""

    title: str
    steps: Callable[[HostTarget], Sequence[Step]]

    def stages(self, target: HostTarget) -> Sequence[Stage]:
        return (Stage(self.title, target.names, tuple(self.steps(target))),)


@dataclass(frozen=True)
class OnNodes:
    """A stage on the cluster's nodes."""

    title: str
    hosts: Callable[[Target], tuple[str, ...]]
    steps: Callable[[Target], Sequence[Step]]
    on_failure: OnFailure = OnFailure.STOP
    when: Callable[[Target], bool] = lambda _: True

    def stages(self, target: Target) -> Sequence[Stage]:
        if not self.when(target):
            return ()
        steps = tuple(self.steps(target))
        return (Stage(self.title, self.hosts(target), steps, self.on_failure),)


@dataclass(frozen=True)
class Several:
    """Stages whose number depends on the cluster."""

    stages: Callable[[Target], Sequence[Stage]]


@dataclass(frozen=True)
class Between:
    """What happens between stages, on the cluster as a whole, even if nothing changes."""

    act: Callable[[Run], None]
    when: Callable[[Run], bool] = lambda _: True


STAGES: tuple[OnHosts | OnNodes | Several | Between, ...] = (
    OnHosts("Access to outside", HostTarget.access_to_outside),
    OnHosts("Python", HostTarget.python),
    Several(Target.firewall),
    Between(Run.look_again, when=lambda run: run.done.changed > run.seen),
    # With Python on all hosts, and before Ray is started
    Between(Run.prove_links, when=lambda run: run.changes and len(run.target.cluster.held) > 1),
    OnHosts("Container engine", HostTarget.container_engine),
    OnHosts("GPUs in containers", HostTarget.gpu_access),
    # Options of containers depend on the engine.
    Between(Run.look_again, when=lambda run: run.done.changed > run.seen),
    Several(Target.image_stages),
    # What the image holds is known once the head has it.
    Between(Run.prove_image, when=lambda run: run.changes),
    OnNodes("Directories", Target.all_hosts, Target.directories),
    OnNodes("Tables of Ray", Target.heads, Target.tables),
    OnNodes("Tables of an earlier head", Target.workers, Target.no_tables),
    OnNodes(
        "Documents of the earlier head",
        Target.heads,
        Target.earlier_documents,
        when=Target.takes_over,
    ),
    # Before node.json: a supervisor that has it again takes missing services for stopped.
    OnNodes("Services", Target.all_hosts, Target.service_documents),
    OnNodes("Copies of documents", Target.heads, Target.copies),
    OnNodes("Copies for another head", Target.keepers_behind, Target.copy_for_another_head),
    OnNodes("Node files", Target.together, Target.node_files),
    OnNodes("GPUs in the image", Target.all_hosts, Target.gpus_in_image),
    OnNodes("Key of the cluster", Target.heads, Target.earlier_key, when=Target.takes_over),
    OnNodes("Another token of Ray", Target.heads, Target.new_token, when=Target.takes_over),
    OnNodes("Secrets of the cluster", Target.heads, Target.secrets),
    OnNodes("Secrets for workers", Target.workers, Target.ray_token),
    OnNodes("Secrets for replicas", Target.workers_with_replicas, Target.api_key),
    OnNodes("Gateway without TLS", Target.without_tls, Target.no_certificate),
    OnNodes("Gateway", Target.heads, Target.certificate, when=Target.has_tls),
    OnNodes(
        "Gateways of other hosts",
        Target.workers_with_gateway,
        Target.certificate_copies,
        when=Target.has_tls,
    ),
    # Before the containers: systemd reads its units again.
    OnNodes("Gateway without a shared address", Target.without_virtual_ip, Target.no_virtual_ip),
    OnNodes(
        "Shared address of gateways",
        Target.with_virtual_ip,
        Target.virtual_ip,
        when=Target.has_virtual_ip,
    ),
    OnNodes("Restarts of Docker", Target.all_hosts, Target.units_beside_engine),
    OnNodes("Ray head", Target.heads_together, Target.container),
    OnNodes("Ray workers", Target.workers_together, Target.container, OnFailure.SET_HOST_ASIDE),
    Several(Target.rolling_hosts),
    Between(Run.await_ray),
    Between(Run.prove_fabric),
)


def host_stages(
    inventory: Inventory, names: tuple[str, ...], facts: Mapping[str, HostFacts]
) -> tuple[Stage, ...]:
    """Return the stages that do not need the cluster. Raises UsageError if the packages named in
    the inventory cannot be read, InventoryError if its CA cannot."""
    target = HostTarget(inventory, names, facts)
    lines = [line for line in STAGES if isinstance(line, OnHosts)]
    return tuple(stage for line in lines for stage in line.stages(target))


def stages_of(target: Target) -> tuple[Stage, ...]:
    """Return all stages, in order. Raises what `host_stages` and finding the images raise."""
    lines = [line for line in STAGES if not isinstance(line, Between)]
    return tuple(stage for line in lines for stage in line.stages(target))


@dataclass(frozen=True)
class Bootstrapped:
    """A cluster whose hosts have joined Ray."""

    changed: int
    formed: Formed
    fabric: FabricRecord  # proof of the links between hosts, of this or an earlier run


def plan_for(cluster: Cluster, names: tuple[str, ...]) -> Plan:
    """Return the plan of bootstrap for the hosts called `names`. Changes nothing."""
    return Target.of(cluster, names).plan


def bring_about(run: Run) -> Bootstrapped:
    """Go through `STAGES`; if nothing changes, only prove that everything works."""
    try:
        for line in STAGES:
            if isinstance(line, Between):
                if line.when(run):
                    line.act(run)
            elif run.changes:
                for stage in line.stages(run.target):
                    run.done.stage(stage)
    finally:
        run.target.close()
    assert run.formed  # noqa: S101 - by the last lines of the list
    assert run.proof  # noqa: S101
    return Bootstrapped(run.done.changed, run.formed, run.proof.record)
