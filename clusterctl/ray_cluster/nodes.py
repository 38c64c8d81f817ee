"""The node of a host: its environment, the arguments of `ray start`, its document, its container.

vLLM's Ray executor sends the whole environment of the head's process to every worker, which adopts
the variables that it does not have. So a variable that differs between nodes is set on every node,
even if empty, and listed among the variables that vLLM must not carry over.
"""

from __future__ import annotations

import json

from clusterctl.accelerators.protocol import DeviceAccess
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.containers.spec import CLUSTER_LABEL, ContainerSpec, Mount
from clusterctl.containers.spec import container_name as container_name
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory, RayPorts
from clusterctl.inventory.values import WRITABLE
from clusterctl.node import package
from clusterctl.node.documents import (
    ExpectedNode,
    NodeDocument,
    cache_dir,
    config_dir,
    log_dir,
    run_dir,
    tables_dir,
)
from clusterctl.ray_cluster.topology import Node, Topology, client_address, host_port

# All that root in a node container needs besides its own files: models and mounts may belong to
# users of the host.
CAPABILITIES = ("DAC_OVERRIDE",)
# Besides, where a gateway is: HAProxy becomes another user, whom the supervisor can end.
GATEWAY_CAPABILITIES = ("KILL", "SETGID", "SETUID")

# The file that vLLM looks for in VLLM_CONFIG_ROOT
NON_CARRY_OVER_FILE = "ray_non_carry_over_env_vars.json"

PER_NODE = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_FAMILY",
    "NCCL_SOCKET_IFNAME",
    "VLLM_HOST_IP",
)

# Needed by the API server alone. vLLM sends its environment to the ranks on other hosts, over Ray's
# connections, which are not encrypted.
HEAD_ONLY = ("VLLM_API_KEY",)

# A node that does not answer is declared dead after 3 x (2 + 4) = 18 s; with Ray's defaults, after
# 66 s. Measured with these on Ray 2.60: 17 s for a stopped raylet, 5 s for a killed one.
DEAD_NODE_DETECTION = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "3",
    # A raylet, a rank and vLLM end by themselves when they have not reached the GCS for this long,
    # by default 60 s. They need none to answer requests: a day, in which a head comes back, be it
    # from the repair shop. One that comes back as another does not list them, which the supervisor
    # notices.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
    # Lets a node rejoin. The GCS asks a dead node to return a placement group's resources, and
    # keeps that channel for Ray's idle timeout of 30 minutes. All channels to an address share one
    # connection, which gRPC retries after 1, 1.6, ... 120 s: until then a raylet that restarted at
    # this address is not reached, and its health checks fail without a packet. With 5 s, no call is
    # made later than 4 s after the node's death; without, they continued (3, 10, 19, 34 s, ...).
    "RAY_grpc_client_idle_timeout_ms": "5000",
}

# vLLM stores nothing in Ray's object store; the default would take 30 % of the memory
OBJECT_STORE_BYTES = 1_000_000_000

NOFILE = 1_048_576
STACK_BYTES = 67_108_864
# Seconds: 60 for running requests, the rest for vLLM and Ray to exit
STOP_TIMEOUT = 90


def node_environment(inventory: Inventory, topology: Topology, node: Node) -> dict[str, str]:
    """Return the complete environment of `node`'s container; contains no secret.

    `env` in the inventory takes precedence, a host's over the cluster's.
    """
    if inventory.allow_unauthenticated_ray:
        # Always set RAY_AUTH_MODE: Ray 2.61 changes its default.
        authentication = {"RAY_AUTH_MODE": "disabled"}
    else:
        authentication = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": f"{config_dir(inventory.cluster)}/ray.token",
        }
    return {
        "RAY_ADDRESS": host_port(topology.head.node_ip, inventory.ray_ports.gcs),
        "RAY_DEDUP_LOGS": "0",
        # By default Ray rejects nodes and vLLM of another patch release of Python than its own,
        # which different images may have.
        "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray would start ranks with nice 15, so that they got a fraction of a busy processor
        "RAY_worker_niceness": "0",
        # Ray would start a worker for each core when the first driver connects, which waits for
        # them (WorkerPool in Ray's raylet/worker_pool.cc), and keep them. vLLM's ranks cannot use
        # one: they have a runtime environment.
        "RAY_prestart_worker_first_driver": "0",
        # Of each worker, which does nothing unless node/prestart.py started it
        "RAY_preload_python_modules": "clusterctl.node.prestarted",
        **DEAD_NODE_DETECTION,
        **authentication,
        "VLLM_HOST_IP": node.node_ip,
        "VLLM_CACHE_ROOT": f"{cache_dir(inventory.cluster)}/vllm",
        # Of kernels that vLLM compiles outside torch.compile, such as the sampler's
        "TRITON_CACHE_DIR": f"{cache_dir(inventory.cluster)}/triton",
        "VLLM_CONFIG_ROOT": config_root(inventory.cluster),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HOME": f"{cache_dir(inventory.cluster)}/huggingface",
        # NCCL matches prefixes unless the list starts with `=`; Gloo matches exact names only.
        "NCCL_SOCKET_IFNAME": "=" + ",".join(node.nccl_nics),
        "NCCL_SOCKET_FAMILY": "AF_INET6" if ":" in node.node_ip else "AF_INET",
        "GLOO_SOCKET_IFNAME": node.gloo_nic,
        "NCCL_IB_DISABLE": "0" if node.rdma else "1",
        "NCCL_IB_HCA": "=" + ",".join(node.rdma) if node.rdma else "",
        **accelerator_named(inventory.accelerator).environment,
        **inventory.env,
        **inventory.host(node.host).env,
    }


def non_carry_over(inventory: Inventory, topology: Topology) -> str:
    """Return the content of NON_CARRY_OVER_FILE: variables that differ between nodes, and secrets
    of the head. vLLM reads it since 0.8.0, the first release that sends all its variables."""
    environments = [node_environment(inventory, topology, node) for node in topology.nodes]
    names = {name for environment in environments for name in environment}
    differing = {name for name in names if len({env.get(name) for env in environments}) > 1}
    return json.dumps(sorted({*PER_NODE, *HEAD_ONLY, *differing})) + "\n"


def config_root(cluster: str) -> str:
    """VLLM_CONFIG_ROOT: the directory on every host that contains NON_CARRY_OVER_FILE."""
    return f"{config_dir(cluster)}/vllm"


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


def node_document(
    inventory: Inventory, topology: Topology, node: Node, facts: HostFacts
) -> NodeDocument:
    """Return the content of node.json on the host of `node`, whose facts these are."""
    head_ip, host, gateways = topology.head.node_ip, inventory.host(node.host), inventory.gateways
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
        gateway=client_address(host, facts, node.node_ip)
        if len(gateways) > 1 and host in gateways
        else "",
        virtual_ip=str(inventory.gateway.virtual_ip or "") if host in gateways else "",
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
        Mount(cache_dir(cluster), cache_dir(cluster)),
        *([Mount(tables_dir(cluster), tables_dir(cluster))] if node.role == "head" else ()),
        Mount(inventory.models, inventory.models, read_only=True),
        *(
            Mount(source, target.removesuffix(WRITABLE), read_only=not target.endswith(WRITABLE))
            for source, target in sorted(inventory.host(node.host).mounts.items())
        ),
    )
    return ContainerSpec(
        name=container_name(cluster),
        image=image_id,
        command=(
            *("python3", package.install_path(), "supervise", "--cluster", cluster),
            *("--image", image_id),
        ),
        env=node_environment(inventory, topology, node),
        mounts=mounts,
        ulimits=ulimits,
        cdi_devices=gpus.cdi,
        all_gpus=gpus.all_gpus,
        devices=(*gpus.nodes, *(("/dev/infiniband",) if node.rdma else ())),
        capabilities=(
            *CAPABILITIES,
            *(("NET_BIND_SERVICE",) if inventory.gateway.low_ports else ()),
            *(("IPC_LOCK",) if node.rdma else ()),  # InfiniBand registers locked memory
            *(GATEWAY_CAPABILITIES if inventory.host(node.host) in inventory.gateways else ()),
        ),
        labels={
            CLUSTER_LABEL: cluster,
            "clusterctl.host": node.host,
            "clusterctl.role": node.role,
        },
        stop_timeout=STOP_TIMEOUT,
    )
