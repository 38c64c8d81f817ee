"""What runs on a host: the arguments of `ray start`, the node's document, its container."""

from __future__ import annotations

from clusterctl.accelerators.protocol import DeviceAccess
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec, Mount
from clusterctl.containers.spec import container_name as container_name
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory, RayPorts
from clusterctl.node import package
from clusterctl.node.documents import ExpectedNode, NodeDocument, config_dir, log_dir, run_dir
from clusterctl.ray_cluster.environment import CACHE_DIR, node_environment
from clusterctl.ray_cluster.topology import Node, Topology, host_port

# vLLM stores nothing in Ray's object store; the default would take 30 % of the memory
OBJECT_STORE_BYTES = 1_000_000_000

NOFILE = 1_048_576
STACK_BYTES = 67_108_864
# Seconds: 60 for running requests, the rest for vLLM and Ray to exit
STOP_TIMEOUT = 90


def ray_argv(node: Node, head_ip: str, ports: RayPorts) -> list[str]:
    """Return `ray start --block ...` for `node`; all ports are below the ephemeral range."""
    place = (
        [
            "--head",
            f"--port={ports.gcs}",
            f"--ray-client-server-port={ports.ray_client}",
            "--dashboard-host=127.0.0.1",
            f"--dashboard-port={ports.dashboard}",
            "--disable-usage-stats",
        ]
        if node.role == "head"
        else [f"--address={host_port(head_ip, ports.gcs)}"]
    )
    return [
        "ray",
        "start",
        "--block",
        *place,
        f"--node-ip-address={node.node_ip}",
        f"--node-name={node.host}",
        f"--num-gpus={node.gpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--log-color=false",
        f"--node-manager-port={ports.node_manager}",
        f"--object-manager-port={ports.object_manager}",
        f"--runtime-env-agent-port={ports.runtime_env_agent}",
        f"--dashboard-agent-listen-port={ports.dashboard_agent_listen}",
        f"--dashboard-agent-grpc-port={ports.dashboard_agent_grpc}",
        f"--metrics-export-port={ports.metrics_export}",
        f"--min-worker-port={ports.min_worker}",
        f"--max-worker-port={ports.max_worker}",
    ]


def expected_nodes(topology: Topology) -> list[ExpectedNode]:
    """Return the nodes that the Ray contract requires."""
    return [ExpectedNode(node.host, node.node_ip, node.gpus) for node in topology.nodes]


def node_document(inventory: Inventory, topology: Topology, node: Node) -> NodeDocument:
    """Return the content of node.json on the host of `node`."""
    head_ip = topology.head.node_ip
    return NodeDocument(
        cluster=inventory.cluster,
        host=node.host,
        role=node.role,
        node_ip=node.node_ip,
        head_ip=head_ip,
        ray_argv=ray_argv(node, head_ip, inventory.ray_ports),
        env=node_environment(inventory, topology, node),
        expected=expected_nodes(topology),
        gcs_port=inventory.ray_ports.gcs,
        gpu_listing=accelerator_named(inventory.accelerator).gpu_listing,
    )


def container_spec(
    node: Node, image_id: str, inventory: Inventory, facts: HostFacts, topology: Topology
) -> ContainerSpec:
    """Return the spec of the node container. `image_id`: as printed by `docker image inspect`."""
    accelerator = accelerator_named(inventory.accelerator)
    gpus = accelerator.access(facts) if node.gpus else DeviceAccess()
    # No more open files than the host allows: a daemon without CAP_SYS_RESOURCE cannot start a
    # container with a higher limit. If the host's limit is unknown, Docker's default applies.
    ulimits = {"stack": STACK_BYTES}
    if facts.nofile_hard:
        ulimits["nofile"] = min(NOFILE, facts.nofile_hard)
    if node.rdma:
        ulimits["memlock"] = -1
    cluster, own = inventory.cluster, package.install_dir()
    mounts = (
        Mount(config_dir(cluster), config_dir(cluster), read_only=True),
        Mount(log_dir(cluster), log_dir(cluster)),
        # Deleted by a reboot; the engine creates it again when it starts the container.
        Mount(run_dir(cluster), run_dir(cluster)),
        Mount(own, own, read_only=True),
        Mount(CACHE_DIR, CACHE_DIR),
        Mount(inventory.models, inventory.models, read_only=True),
        *(Mount(*each) for each in sorted(inventory.host(node.host).mounts.items())),
    )
    return ContainerSpec(
        name=container_name(cluster),
        image=image_id,
        command=("python3", package.install_path(), "supervise", "--cluster", cluster),
        env=node_environment(inventory, topology, node),
        mounts=mounts,
        ulimits=ulimits,
        cdi_devices=gpus.cdi,
        all_gpus=gpus.all_gpus,
        devices=(*gpus.nodes, *(("/dev/infiniband",) if node.rdma else ())),
        capabilities=("IPC_LOCK",) if node.rdma else (),
        labels={
            CLUSTER_LABEL: cluster,
            "clusterctl.host": node.host,
            "clusterctl.role": node.role,
        },
        stop_timeout=STOP_TIMEOUT,
    )
