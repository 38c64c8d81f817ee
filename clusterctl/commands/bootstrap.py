"""`bootstrap`: turn bare hosts into a Ray cluster. `host_stages`, then `cluster_stages` list the
changes to hosts in order, `run` is the command from survey to proof, and `make_plan` plans without
changing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.driver import Container, ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink, Note, StageStarted
from clusterctl.engine.executor import execute
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import OnFailure, Plan, Stage, plan_apart
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import HostView, Step
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.facts.container_networks import free_bridge, site_networks
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.outside import outside_of
from clusterctl.network.gate import FabricRecord, ensure_proven
from clusterctl.network.pairs import judgement
from clusterctl.network.pairs.probe import IN_USE, probe_pairs, ray_ports
from clusterctl.node.documents import config_dir
from clusterctl.node.files import NodePaths
from clusterctl.operations.nodes import firewall_stage
from clusterctl.operations.rolling import (
    ReturnToGateway,
    Rolling,
    interrupts,
    left_out,
    spares,
)
from clusterctl.packages.bundle import open_bundles
from clusterctl.ray_cluster.node_files import directories_present, files_present
from clusterctl.ray_cluster.nodes import container_spec
from clusterctl.steps.container_engine import ContainerEngine
from clusterctl.steps.engine_restart import StartedAfterEngine
from clusterctl.steps.engines import Engines
from clusterctl.steps.files import OLD_CACHES, PathsAbsent
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
from clusterctl.survey.cluster import Cluster, require_fit, single
from clusterctl.survey.formation import Formed, await_formation, clock_of
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transfer.cluster_images import ClusterImages
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def host_stages(
    inventory: Inventory, names: tuple[str, ...], facts: Mapping[str, HostFacts]
) -> tuple[Stage, ...]:
    """Return the first stages. Each changes facts that later ones depend on: the proof of links
    between hosts runs on Python, and container options depend on the engine.

    Raises UsageError if the packages named in the inventory cannot be read, InventoryError if its
    CA cannot.
    """
    packages, outside = inventory.packages, outside_of(inventory)
    bundles = open_bundles(packages.offline, packages.sums)
    gpu_access = accelerator_named(inventory.accelerator).host_steps(packages, bundles)
    trusted = TrustedCa(inventory.cluster, outside.certificates, inventory.image)
    bridge = free_bridge(site_networks(inventory, facts))
    engine = ContainerEngine(packages, bundles, bridge=bridge)
    proxy = HostProxy(inventory.cluster, outside.proxy, outside.no_proxy)
    return (
        Stage("Access to outside", names, (trusted, proxy)),
        Stage("Python", names, (HostPython(bundles),)),
        Stage("Container engine", names, (engine,)),
        *([Stage("GPUs in containers", names, gpu_access)] if gpu_access else []),
    )


def cluster_stages(
    cluster: Cluster,
    images: ClusterImages,
    lock: ClusterLock | None = None,
    sink: EventSink = lambda _: None,
) -> tuple[Stage, ...]:
    """Return the stages after `host_stages`, for the hosts of `images`, in order.

    While Ray's head stays, a worker whose replicas others can stand in for is changed by itself,
    after they have left the gateway: where the head's Ray restarts, all services do anyway.
    """
    inventory, names, head = cluster.inventory, images.names, cluster.inventory.head.name
    heads = tuple(name for name in names if name == head)
    workers = tuple(name for name in names if name != head)

    def spec(view: HostView) -> ContainerSpec:
        node, image = cluster.topology.node(view.host.name), images.node.on(view).id
        return container_spec(node, image, inventory, view.facts, cluster.topology)

    accelerator = accelerator_named(inventory.accelerator)
    gpu_proof = accelerator.image_proof(spec, images.engines, inventory.file)
    directories = directories_present(inventory.cluster)
    files = files_present(inventory, cluster.topology, cluster.survey.facts)
    own = config_dir(inventory.cluster)
    broken = {
        name: [document for document in documents if document.file != "node.json"]
        for name, documents in cluster.survey.unreadable.items()
    }
    services = ServiceDocumentsReadable(inventory.cluster, broken)
    copied = documents_copied(inventory.cluster, cluster.survey.not_copied)
    token, key = (secret_path(inventory.cluster, name) for name in (RAY_TOKEN, API_KEY))
    token_copied, key_copied = (
        SecretCopied(HeadSecret(cluster.head, path)) for path in (token, key)
    )
    # By the head's word: a worker's own documents must not get it the key.
    gateways = [host.name for host in inventory.gateways]
    listed = [service.members for service in cluster.survey.services.values()]
    served_from = {*(member.host for members in listed for member in members), *gateways}
    with_replicas = tuple(name for name in workers if name in served_from)

    def why_anew(view: HostView, driver: ContainerDriver, container: Container) -> str | None:
        if cluster.survey.config_deleted.get(view.host.name) == container.id:
            return f"{own} was deleted while it ran"
        return accelerator.gpus_lost(view, driver, container)

    container = NodeContainer(inventory.cluster, spec, images.engines, why_anew=why_anew)
    one_by_one = _one_by_one(cluster, heads, workers, (files, container), lock, sink)
    together = tuple(name for name in names if name not in one_by_one)
    kept = NodePaths(inventory.cluster)
    pem, public = str(kept.certificate), str(kept.public_certificate)
    no_certificate: Step = PathsAbsent("gateway certificate", (pem, public))
    certificates: list[Stage] = []
    if inventory.gateway.tls:
        from clusterctl.steps.gateway_certificate import GatewayCertificate  # 15 ms

        names_in_it = inventory.gateway.names
        for host in reversed(inventory.gateways):
            own_ip = cluster.topology.node(host.name).node_ip
            names_in_it = (host.address, own_ip, host.name, *names_in_it)
        made = GatewayCertificate(inventory.cluster, inventory.gateway, names_in_it)
        others = tuple(name for name in workers if name in gateways)
        certificate_copied = tuple(
            SecretCopied(HeadSecret(cluster.head, path, made), "gateway certificate")
            for path in (public, pem)
        )
        certificates = [
            Stage("Gateway", heads, (made,)),
            *([Stage("Gateways of other hosts", others, certificate_copied)] if others else []),
        ]
    without = tuple(name for name in names if not (inventory.gateway.tls and name in gateways))
    return (
        *images.stages(),
        Stage("Directories", names, (directories,)),
        # Before node.json: a supervisor that has it again takes missing services for stopped.
        Stage("Services", names, (services,)),
        Stage("Copies of documents", heads, (copied,)),
        Stage("Node files", together, (files,)),
        *([Stage("GPUs in the image", names, gpu_proof)] if gpu_proof else []),
        Stage("Secrets of the cluster", heads, (SecretsMade([token, key]),)),
        Stage("Secrets for workers", workers, (token_copied,)),
        Stage("Secrets for replicas", with_replicas, (key_copied,)),
        Stage("Gateway without TLS", without, (no_certificate,)),
        *certificates,
        # Before the containers: systemd reads its units again.
        Stage("Restarts of Docker", names, (_started_after_engine(cluster),)),
        Stage("Ray head", heads, (container,)),
        Stage(
            "Ray workers",
            tuple(name for name in workers if name in together),
            (container,),
            on_failure=OnFailure.SET_HOST_ASIDE,
        ),
        *(Stage(f"Ray worker {name}", (name,), steps) for name, steps in one_by_one.items()),
        # No container uses it any more.
        Stage(
            "Files of an earlier version",
            names,
            (PathsAbsent("caches", [OLD_CACHES], last_of=own),),
        ),
    )


def _started_after_engine(cluster: Cluster) -> StartedAfterEngine:
    def has_cdi(view: HostView) -> bool:
        accelerator = accelerator_named(cluster.inventory.accelerator)
        gpus = cluster.topology.node(view.host.name).gpus
        return bool(gpus and accelerator.access(view.facts).cdi)

    return StartedAfterEngine(cluster.inventory.cluster, has_cdi)


def _one_by_one(
    cluster: Cluster,
    heads: Sequence[str],
    workers: Sequence[str],
    steps: Sequence[Step],
    lock: ClusterLock | None,
    sink: EventSink,
) -> dict[str, tuple[Step, ...]]:
    """Return the steps of the workers that are changed by themselves, in order."""
    try:
        changes = [step.check(cluster.views[name]) for name in heads for step in steps]
    except ClusterctlError:
        return {}
    if any(interrupts(change) for change in changes):
        return {}
    found: dict[str, tuple[Step, ...]] = {}
    left = left_out(cluster.survey)
    for name in workers:
        rolling = Rolling(cluster, name, lock, sink)
        if spares(cluster, name):
            found[name] = rolling.around(steps)
        elif name in left:
            found[name] = (*steps, ReturnToGateway(rolling))
    return found


@dataclass(frozen=True)
class Bootstrapped:
    """A cluster whose hosts have joined Ray."""

    changed: int
    formed: Formed
    fabric: FabricRecord  # proof of the links between hosts, of this or an earlier run


def plan_for(cluster: Cluster, names: tuple[str, ...], engines: Engines | None = None) -> Plan:
    """Return the plan of bootstrap for the hosts called `names`. Changes nothing."""
    outside, python, *engine = host_stages(cluster.inventory, names, cluster.survey.facts)
    host = (outside, python, firewall_stage(cluster, names), *engine)
    images = ClusterImages(cluster, names, engines or Engines(driver_for))
    later = cluster_stages(cluster, images)
    return plan_stages((*host, *later), cluster.views)


def make_plan(
    inventory: Inventory, hosts: Iterable[Host], credentials: Credentials, *, sink: EventSink
) -> tuple[Plan, tuple[ClusterctlError, ...]]:
    """Return the plan of `run` for `hosts`. Reports to `sink` which interfaces they would use.

    Where requirements keep `run` from starting, the plan has the first stages for the hosts that
    meet theirs, and the errors of the others come with it."""
    hosts = tuple(hosts)
    with connected(inventory.hosts, credentials) as transports:
        survey = take_survey(inventory, transports)
        try:
            cluster = require_fit(survey, hosts)
        except ClusterctlError as error:
            errors = tuple(single(error))
            wrong = {each.host for each in errors}
            fit = tuple(h.name for h in hosts if h.name in survey.views and h.name not in wrong)
            sink(Note("not the whole plan: the rest depends on the problems below"))
            stages = host_stages(inventory, fit, survey.facts)
            each = [replace(stage, on_failure=OnFailure.SET_HOST_ASIDE) for stage in stages]
            found = plan_apart(each, survey.views)
            return found.plan, (*errors, *found.set_aside.values())
        for node in cluster.topology.nodes:
            for reason in node.explain:
                sink(Note(reason, node.host))
        return plan_for(cluster, tuple(host.name for host in hosts)), ()


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> Bootstrapped:
    """Bootstrap `hosts`, then prove that they and the head have joined Ray, and that collectives
    work over their links.

    Hosts left out are only asked for their place in the cluster, and need not answer.

    `agree` is shown the plan and raises when the user declines. Raises the errors of all hosts
    together; RayNotFormed when Ray does not reach the nodes and GPUs declared in the inventory.
    """
    hosts = tuple(hosts)
    names, engines = tuple(host.name for host in hosts), Engines(driver_for)

    def look_again(cluster: Cluster) -> Cluster:
        answered = {name: view.transport for name, view in cluster.views.items()}
        return require_fit(take_survey(inventory, answered), hosts)

    def act(found: Outlook, lock: ClusterLock | None) -> Bootstrapped:
        cluster, changed, since = found.cluster, 0, None
        with ExitStack() as stack:
            held = lock or stack.enter_context(lock_of())
            cancelled = stack.enter_context(interruptible(sink))
            if not found.empty:
                facts = cluster.survey.facts
                outside, python, *engine = host_stages(inventory, names, facts)
                first = (outside, python, firewall_stage(cluster, names))
                carry = partial(
                    execute, sink=sink, cancelled=cancelled, before_change=held.ensure_held
                )
                before = carry(first, cluster.views)
                cluster = look_again(cluster) if before.changed else cluster
                _require_links(cluster, sink)
                brought = carry(engine, cluster.views)
                cluster = look_again(cluster) if brought.changed else cluster
                # What the survey found by now may differ from what was planned for.
                with ClusterImages(cluster, names, engines, sink) as images:
                    rest = carry(cluster_stages(cluster, images, held, sink), cluster.views)
                raise_all(rest.set_aside.values())
                changed = before.changed + brought.changed + rest.changed
                since = clock_of(cluster.head.transport)
            formed = await_formation(cluster, since=since, sink=sink, cancelled=cancelled)
            proof = ensure_proven(cluster.gate_scope, sink, cancelled)
        return Bootstrapped(changed, formed, proof.record)

    with connected(inventory.hosts, credentials) as transports:
        lock_of = partial(
            ClusterLock, transports[inventory.head.name], inventory.cluster, "bootstrap"
        )

        def look() -> Outlook:
            cluster = require_fit(take_survey(inventory, transports), hosts)
            return Outlook(cluster, plan_for(cluster, names, engines))

        def ask(found: Outlook) -> None:
            note_left_out(found.cluster, sink)
            agree(found.plan)

        return carry_out(look, ask, lock_of, act)


@dataclass(frozen=True)
class Outlook:
    """The cluster before a bootstrap, and what that would change."""

    cluster: Cluster
    plan: Plan

    @property
    def empty(self) -> bool:
        return self.plan.empty

    @property
    def shown(self) -> Set[object]:
        return self.plan.shown


def note_left_out(cluster: Cluster, sink: EventSink) -> None:
    """Report the hosts that --limit leaves out."""
    answered = [name for name in cluster.left_out if name in cluster.views]
    silent = [name for name in cluster.left_out if name not in cluster.views]
    if answered:
        left = ", ".join(answered)
        sink(Note(f"left out by --limit, neither changed nor waited for: {left}"))
    if silent:
        sink(Note(f"left out by --limit, and does not answer: {', '.join(silent)}"))


def _require_links(cluster: Cluster, sink: EventSink) -> None:
    """Raise all problems of links between hosts, which must work before Ray is started."""
    if len(cluster.held) < 2:
        return
    sink(StageStarted("Links between hosts", cluster.held))
    held = {name: cluster.views[name] for name in cluster.held}
    seen = probe_pairs(
        cluster.inventory,
        cluster.topology,
        {name: view.facts for name, view in held.items()},
        {name: view.transport for name, view in held.items()},
        unrated=IN_USE if cluster.survey.running else "",
    )
    for text in judgement.notes(seen):
        sink(Note(text))
    raise_all(judgement.problems(seen, ray_ports(cluster.inventory)))
