"""`bootstrap`: bare hosts become a Ray cluster. `stages` is the whole of it, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.commands.cluster_images import ClusterImages
from clusterctl.commands.engine_stages import engine_stages
from clusterctl.commands.formation import Formed, await_formation, clock_of
from clusterctl.containers.drivers import driver_for
from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.events import EventSink, Note, StageStarted
from clusterctl.engine.executor import RunOutcome, execute
from clusterctl.engine.interrupt import interruptible
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.errors import raise_all
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.gate import FabricRecord, ensure_proven
from clusterctl.network.pairs import judgement
from clusterctl.network.pairs.proof import IN_USE, prove, ray_ports
from clusterctl.node import package
from clusterctl.node.documents import NodeDocument, from_json, to_json
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.environment import NON_CARRY_OVER_FILE, config_root, non_carry_over
from clusterctl.ray_cluster.hosts_file import HOSTS_FILE, hosts_file
from clusterctl.ray_cluster.nodes import container_spec, node_document
from clusterctl.steps.directories import DirectoriesPresent, Directory, node_directories
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_container import NodeContainer
from clusterctl.steps.node_files import FilesPresent, RemoteFile
from clusterctl.steps.node_image import NodeImage
from clusterctl.steps.secrets import (
    API_KEY,
    RAY_TOKEN,
    HeadSecret,
    SecretCopied,
    SecretsMade,
    secret_path,
)
from clusterctl.steps.service_documents import ServiceDocumentsReadable
from clusterctl.survey.cluster import Cluster, look_and_require
from clusterctl.survey.survey import connected
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class Bootstrapped:
    """A cluster that Ray holds."""

    changed: int
    formed: Formed
    fabric: FabricRecord
    """What was proven of the links between them, now or by an earlier run."""


def node_stages(cluster: Cluster, images: ClusterImages) -> tuple[Stage, ...]:
    """Everything after the engine, in order, on the hosts of `images`."""
    names = images.names
    head = cluster.inventory.head.name
    heads = tuple(name for name in names if name == head)
    workers = tuple(name for name in names if name != head)
    spec = _spec_for(cluster, images.node)
    accelerator = accelerator_named(cluster.inventory.accelerator)
    proof = accelerator.image_proof(spec, images.engines, cluster.inventory.file)
    container = NodeContainer(
        cluster.inventory.cluster, spec, images.engines, gpus_lost=accelerator.gpus_lost
    )
    token = HeadSecret(cluster.head, secret_path(cluster.inventory.cluster, RAY_TOKEN))
    made = [secret_path(cluster.inventory.cluster, name) for name in (RAY_TOKEN, API_KEY)]
    return (
        *images.stages(),
        Stage("Node files", names, (DirectoriesPresent(_directories(cluster)), _files(cluster))),
        *((Stage("GPUs in the image", names, proof),) if proof else ()),
        Stage("Services", heads, (_readable_services(cluster),)),
        Stage("Secrets of the cluster", heads, (SecretsMade(made),)),
        Stage("Secrets for workers", workers, (SecretCopied(token),)),
        Stage("Ray head", heads, (container,)),
        Stage("Ray workers", workers, (container,), on_failure=OnFailure.SET_HOST_ASIDE),
    )


def _readable_services(cluster: Cluster) -> ServiceDocumentsReadable:
    name = cluster.inventory.cluster
    unreadable = cluster.survey.unreadable.get(cluster.inventory.head.name, ())
    of_services = [document for document in unreadable if document.file != "node.json"]
    return ServiceDocumentsReadable(name, of_services)


def _plan(cluster: Cluster, hosts: tuple[Host, ...], engines: Engines) -> Plan:
    names = tuple(host.name for host in hosts)
    first = engine_stages(cluster.inventory, hosts)
    rest = node_stages(cluster, ClusterImages(cluster, names, engines))
    return plan_stages((*first, *rest), cluster.views)


def make_plan(
    inventory: Inventory, hosts: Iterable[Host], credentials: Credentials, *, sink: EventSink
) -> Plan:
    """What bootstrap would change on `hosts`; `sink` is told which interfaces they would use,
    and why. Changes nothing."""
    with connected(inventory.hosts, credentials) as transports:
        hosts = tuple(hosts)
        cluster = look_and_require(inventory, transports, hosts)
        for node in cluster.topology.nodes:
            for reason in node.explain:
                sink(Note(reason, node.host))
        return _plan(cluster, hosts, Engines(driver_for))


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> Bootstrapped:
    """Make it so, then prove that Ray holds `hosts` and the head, and that their links carry
    collectives.

    Hosts left out are asked nothing but their place in the cluster, and need not answer.

    `agree` is shown the plan and raises when the user does not want it. Raises the errors of
    all hosts together; RayNotFormed when Ray does not come to hold what the inventory promises.
    """
    hosts = tuple(hosts)
    with connected(inventory.hosts, credentials) as transports:
        cluster = look_and_require(inventory, transports, hosts)
        for text in _left_out(cluster):
            sink(Note(text))
        with ClusterLock(cluster.head.transport, inventory.cluster, "bootstrap") as lock:
            engines = Engines(driver_for)
            plan = _plan(cluster, hosts, engines)
            agree(plan)
            with interruptible(sink) as cancelled:
                changed, since = 0, None
                if not plan.empty:
                    carry_out = partial(
                        execute, sink=sink, cancelled=cancelled, before_change=lock.ensure_held
                    )
                    cluster, changed = _carry_out(cluster, hosts, engines, carry_out, sink)
                    since = clock_of(cluster.head.transport)
                formed = await_formation(cluster, since=since, sink=sink, cancelled=cancelled)
                proof = ensure_proven(cluster.gate_scope, sink, cancelled)
    return Bootstrapped(changed, formed, proof.record)


def _require_ways(cluster: Cluster, sink: EventSink) -> None:
    """Every pair of hosts must reach each other before Ray is to be made of them."""
    if len(cluster.held) < 2:
        return
    sink(StageStarted("Ways between hosts", cluster.held))
    held = {name: cluster.views[name] for name in cluster.held}
    seen = prove(
        cluster.inventory,
        cluster.topology,
        {name: view.facts for name, view in held.items()},
        {name: view.transport for name, view in held.items()},
        unrated=IN_USE if cluster.survey.running else "",
    )
    for text in judgement.notes(seen):
        sink(Note(text))
    raise_all(judgement.problems(seen, ray_ports(cluster.inventory)))


def _carry_out(
    cluster: Cluster,
    hosts: tuple[Host, ...],
    engines: Engines,
    carry_out: Callable[..., RunOutcome],
    sink: EventSink,
) -> tuple[Cluster, int]:
    """Run all stages; the cluster as it was seen last, and how many changes were made."""
    python, *engine = engine_stages(cluster.inventory, hosts)
    brought = carry_out((python,), cluster.views).changed
    if brought:
        cluster = _look_again(cluster)
    _require_ways(cluster, sink)
    changed = carry_out(engine, cluster.views).changed
    if changed:
        cluster = _look_again(cluster)
    names = tuple(host.name for host in hosts)
    with ClusterImages(cluster, names, engines, sink) as images:
        rest = carry_out(node_stages(cluster, images), cluster.views)
    raise_all(rest.set_aside.values())
    return cluster, brought + changed + rest.changed


def _look_again(cluster: Cluster) -> Cluster:
    """Facts anew: what a container may ask for depends on the engine that has just come."""
    transports = {name: view.transport for name, view in cluster.views.items()}
    held = [cluster.inventory.host(name) for name in cluster.held]
    return look_and_require(cluster.inventory, transports, held)


def _left_out(cluster: Cluster) -> Iterator[str]:
    """What a run with --limit does not vouch for."""
    answered = [name for name in cluster.left_out if name in cluster.views]
    silent = [name for name in cluster.left_out if name not in cluster.views]
    if answered:
        yield f"left out by --limit, neither changed nor waited for: {', '.join(answered)}"
    if silent:
        yield f"left out by --limit, and does not answer: {', '.join(silent)}"


def _directories(cluster: Cluster) -> tuple[Directory, ...]:
    name = cluster.inventory.cluster
    version = package.install_dir().rpartition("/")[2]
    return (*node_directories(name, version), Directory(config_root(name), 0o700))


def _files(cluster: Cluster) -> FilesPresent:
    """node.pyz, node.json, the hosts file of the containers, and the list of variables that vLLM
    must not carry over."""
    inventory, topology = cluster.inventory, cluster.topology
    shared = (
        RemoteFile(package.install_path(), package.build()),
        RemoteFile(
            f"{config_root(inventory.cluster)}/{NON_CARRY_OVER_FILE}",
            non_carry_over(inventory, topology).encode(),
        ),
    )

    def of(view: HostView) -> tuple[RemoteFile, ...]:
        document = node_document(inventory, topology, topology.node(view.host.name))
        paths = NodePaths(inventory.cluster)
        node_json = RemoteFile(str(paths.node_document), to_json(document).encode())
        if HOSTS_FILE in view.host.mounts.values():
            return (*shared, node_json)  # the user's own, and maybe the host's: left alone
        names = hosts_file(topology, cluster.survey.facts, view.host.name)
        return (*shared, node_json, RemoteFile(str(paths.declared_hosts), names.encode()))

    return FilesPresent("node files", of, disrupts=_restarts_ray)


def _restarts_ray(file: RemoteFile, now: bytes) -> bool:
    """The supervisor starts Ray anew for another command line, environment or head; it takes
    another list of expected nodes as it comes."""
    if not now or not file.path.endswith("/node.json"):
        return False
    try:
        old = from_json(NodeDocument, now.decode())
    except ValueError:
        return True
    new = from_json(NodeDocument, file.data.decode())
    return (old.ray_argv, old.env, old.head_ip) != (new.ray_argv, new.env, new.head_ip)


def _spec_for(cluster: Cluster, image: NodeImage) -> Callable[[HostView], ContainerSpec]:
    def spec(view: HostView) -> ContainerSpec:
        node = cluster.topology.node(view.host.name)
        return container_spec(
            node, image.on(view).id, cluster.inventory, view.facts, cluster.topology
        )

    return spec
