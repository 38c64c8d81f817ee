"""The environment of each node container, as data.

vLLM's Ray executor sends the whole environment of the head's process to every worker, which adopts
the variables that it does not have. So a variable that differs per node is set on every node, even
to an empty value, and is listed among the variables that vLLM must not carry over.
"""

from __future__ import annotations

import json

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import config_dir
from clusterctl.ray_cluster.topology import Node, Topology, host_port

# Compile caches and downloaded weights; the same path on the host and in the container
CACHE_DIR = "/var/cache/clusterctl"

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

# A node that does not answer is declared dead after 3 x (2 + 4) = 18 s; with Ray's defaults, after
# 66 s. Measured with these on Ray 2.60: 17 s for a stopped raylet, 5 s for a killed one. A raylet
# that loses its GCS exits after 20 s.
DEAD_NODE_DETECTION = {
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "4000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "20",
    # Lets a node rejoin. The GCS asks a dead node to return a placement group's resources, and
    # keeps that channel for Ray's idle timeout of 30 minutes. All channels to an address share one
    # connection, which gRPC retries after 1, 1.6, ... 120 s: until then a raylet that restarted at
    # this address is not reached, and its health checks fail without a packet. With 5 s, no call is
    # made later than 4 s after the node's death; without, they continued (3, 10, 19, 34 s, ...).
    "RAY_grpc_client_idle_timeout_ms": "5000",
}


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
        "RAY_USAGE_STATS_ENABLED": "0",
        **DEAD_NODE_DETECTION,
        **authentication,
        "VLLM_HOST_IP": node.node_ip,
        "VLLM_CACHE_ROOT": f"{CACHE_DIR}/vllm",
        "VLLM_CONFIG_ROOT": config_root(inventory.cluster),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HOME": f"{CACHE_DIR}/huggingface",
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
    """Return the content of NON_CARRY_OVER_FILE: variables that differ between nodes."""
    environments = [node_environment(inventory, topology, node) for node in topology.nodes]
    names = {name for environment in environments for name in environment}
    differing = {name for name in names if len({env.get(name) for env in environments}) > 1}
    return json.dumps(sorted({*PER_NODE, *differing})) + "\n"


def config_root(cluster: str) -> str:
    """VLLM_CONFIG_ROOT: the directory on every host that contains NON_CARRY_OVER_FILE."""
    return f"{config_dir(cluster)}/vllm"
