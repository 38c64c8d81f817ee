"""Environment, arguments, documents and containers of the nodes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.containers.spec import Mount
from clusterctl.facts.model import Gid, HostFacts, RdmaPort
from clusterctl.inventory.model import Gpu, Host, Inventory, Nics, RayPorts
from clusterctl.network.choice import resolve
from clusterctl.node import package
from clusterctl.node.service import store_port
from clusterctl.ray_cluster.nodes import (
    PER_NODE,
    container_spec,
    node_document,
    node_environment,
    non_carry_over,
    ray_argv,
)
from clusterctl.ray_cluster.topology import Topology
from clusterctl.steps.files import node_directories
from tests.fakes.host_facts import ENGINE, gpus, host_facts, nic, rdma

FACTS = {
    "gpu1": host_facts(nic("eth0", "192.168.1.1"), nic("eth1", "10.0.0.1"), gpus=gpus(1)),
    "gpu2": host_facts(nic("ens2", "192.168.1.2"), gpus=gpus(1)),
}


def cluster(**settings: Any) -> Inventory:
    hosts = (
        Host(
            name="gpu1", address="192.168.1.1", role="head", gpus=(Gpu(),),
            nics=Nics(nccl="eth0", gloo="eth1"),
            mounts={"/data/extra": "/extra", "/data/own": "/own:rw"},
        ),
        Host(name="gpu2", address="192.168.1.2", gpus=(Gpu(),), env={"ONLY_HERE": "1"}),
    )  # fmt: skip
    return Inventory(**{"cluster": "demo", "image": "i", "hosts": hosts, **settings})


def environments(inventory: Inventory, facts: dict[str, HostFacts] = FACTS) -> list[dict[str, str]]:
    topology = resolve(inventory, facts)
    return [node_environment(inventory, topology, node) for node in topology.nodes]


def test_every_per_node_variable_is_set_on_every_node() -> None:
    for environment in environments(cluster()):
        assert set(PER_NODE) <= set(environment)


def test_each_node_has_its_own_address_and_interfaces() -> None:
    head, worker = environments(cluster())
    assert (head["VLLM_HOST_IP"], worker["VLLM_HOST_IP"]) == ("192.168.1.1", "192.168.1.2")
    assert (head["NCCL_SOCKET_IFNAME"], worker["NCCL_SOCKET_IFNAME"]) == ("=eth0", "=ens2")
    assert (head["GLOO_SOCKET_IFNAME"], worker["GLOO_SOCKET_IFNAME"]) == ("eth1", "ens2")
    assert {e["RAY_ADDRESS"] for e in (head, worker)} == {"192.168.1.1:6379"}


def test_the_token_is_named_by_its_path_only() -> None:
    environment = environments(cluster())[0]
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/etc/clusterctl/demo/ray.token"
    assert "RAY_AUTH_TOKEN" not in environment
    assert "VLLM_API_KEY" not in environment


def test_ray_without_a_token_only_when_the_inventory_says_so() -> None:
    environment = environments(cluster(allow_unauthenticated_ray=True))[0]
    assert environment["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in environment


def test_the_memory_monitor_is_off_on_gpu_hosts_only() -> None:
    name = "RAY_memory_monitor_refresh_ms"
    assert environments(cluster())[0][name] == "0"
    assert name not in environments(cluster(accelerator="cpu"))[0]


def test_gpus_are_numbered_as_nvidia_smi_numbers_them() -> None:
    assert environments(cluster())[0]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "CUDA_DEVICE_ORDER" not in environments(cluster(accelerator="cpu"))[0]


def test_a_dead_node_is_known_within_20_seconds() -> None:
    env = environments(cluster())[0]
    period, timeout = (int(env[f"RAY_health_check_{k}_ms"]) for k in ("period", "timeout"))
    assert int(env["RAY_health_check_failure_threshold"]) * (period + timeout) <= 20_000


def test_rdma_or_sockets() -> None:
    both = {name: replace(facts, rdma=(rdma("mlx5_0"),)) for name, facts in FACTS.items()}
    assert environments(cluster(), both)[1]["NCCL_IB_HCA"] == "=mlx5_0"
    assert environments(cluster(), both)[1]["NCCL_IB_DISABLE"] == "0"
    assert environments(cluster(network={"rdma": False}), both)[1]["NCCL_IB_DISABLE"] == "1"
    assert environments(cluster())[1]["NCCL_IB_HCA"] == ""
    assert environments(cluster())[1]["NCCL_IB_DISABLE"] == "1"


def test_ports_of_rdma_devices_are_named_exactly() -> None:
    """Without `=`, mlx5_1 would mean mlx5_10 too."""
    gid = Gid(3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "ens5")
    port = RdmaPort(1, active=True, link_layer="Ethernet", rate=100_000.0, gids=(gid,))
    devices = tuple(replace(rdma(name), ports=(port,)) for name in ("mlx5_0", "mlx5_1"))
    both = {name: replace(facts, rdma=devices) for name, facts in FACTS.items()}
    assert environments(cluster(), both)[0]["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_1:1"


def test_the_inventory_wins_and_the_host_over_the_cluster() -> None:
    inventory = cluster(env={"ONLY_HERE": "0", "NCCL_DEBUG": "INFO", "VLLM_CACHE_ROOT": "/c"})
    head, worker = environments(inventory)
    assert (head["ONLY_HERE"], worker["ONLY_HERE"]) == ("0", "1")
    assert worker["NCCL_DEBUG"] == "INFO"
    assert worker["VLLM_CACHE_ROOT"] == "/c"


def test_what_differs_between_nodes_and_the_key_are_not_carried_over() -> None:
    inventory = cluster()
    names = json.loads(non_carry_over(inventory, resolve(inventory, FACTS)))
    assert set(names) == {*PER_NODE, "ONLY_HERE", "VLLM_API_KEY"}
    assert names == sorted(names)


def test_ipv6_addresses_get_their_brackets() -> None:
    facts = {"a": host_facts(nic("eth0", "fd00::1/64"))}
    host = Host(name="a", address="fd00::1", role="head")
    environment = environments(Inventory(cluster="d", image="i", hosts=(host,)), facts)[0]
    assert environment["RAY_ADDRESS"] == "[fd00::1]:6379"
    assert environment["NCCL_SOCKET_FAMILY"] == "AF_INET6"


def resolved(inventory: Inventory) -> Topology:
    return resolve(inventory, FACTS)


def test_ray_start_on_the_head_and_on_a_worker() -> None:
    topology = resolved(cluster())
    head, worker = (ray_argv(node, "192.168.1.1", RayPorts()) for node in topology.nodes)
    assert head[:4] == ["ray", "start", "--block", "--head"]
    assert {"--port=6379", "--node-ip-address=192.168.1.1", "--node-name=gpu1"} <= set(head)
    assert "--dashboard-host=127.0.0.1" in head
    assert worker[:4] == ["ray", "start", "--block", "--address=192.168.1.1:6379"]
    assert {"--node-ip-address=192.168.1.2", "--num-gpus=1"} <= set(worker)
    assert not any("dashboard-host" in word or "usage" in word for word in worker)


def test_every_fixed_port_is_given_to_ray() -> None:
    topology = resolved(cluster())
    head = " ".join(ray_argv(topology.head, "192.168.1.1", RayPorts()))
    for _, port in RayPorts():
        assert f"={port}" in head


def test_the_document_has_every_expected_node() -> None:
    inventory = cluster()
    topology = resolved(inventory)
    document = node_document(inventory, topology, topology.node("gpu2"), FACTS["gpu2"])
    assert [(e.host, e.node_ip, e.gpus) for e in document.expected] == [
        ("gpu1", "192.168.1.1", 1),
        ("gpu2", "192.168.1.2", 1),
    ]
    assert (document.role, document.head_ip, document.gcs_port) == ("worker", "192.168.1.1", 6379)


def spec(inventory: Inventory, host: str = "gpu1", **changes: Any) -> Any:
    topology = resolved(inventory)
    facts = replace(FACTS[host], **changes)
    return container_spec(topology.node(host), "sha256:1", inventory, facts, topology)


def test_the_container_runs_the_supervisor_of_this_version() -> None:
    found = spec(cluster())
    program = package.install_path()
    assert found.command == (
        *("python3", program, "supervise", "--cluster", "demo"),
        *("--image", found.image),
    )
    assert found.name == "clusterctl-demo"
    assert found.labels["clusterctl.cluster"] == "demo"


def test_what_is_mounted() -> None:
    assert spec(cluster()).mounts == (
        Mount("/etc/clusterctl/demo", "/etc/clusterctl/demo", read_only=True),
        Mount("/var/log/clusterctl/demo", "/var/log/clusterctl/demo"),
        Mount("/run/clusterctl/demo", "/run/clusterctl/demo"),
        Mount(package.install_dir(), package.install_dir(), read_only=True),
        Mount("/var/lib/clusterctl/caches/demo", "/var/lib/clusterctl/caches/demo"),
        Mount("/var/lib/clusterctl/tables/demo", "/var/lib/clusterctl/tables/demo"),
        Mount("/data/models", "/data/models", read_only=True),
        Mount("/data/extra", "/extra", read_only=True),
        Mount("/data/own", "/own"),
    )


def test_the_tables_of_ray_are_mounted_on_the_head_alone() -> None:
    assert "tables" not in str(spec(cluster(), "gpu2").mounts)


def test_gpus_by_cdi_where_there_is_a_spec_else_by_flag_else_not_at_all() -> None:
    assert spec(cluster(), cdi_specs=("/etc/cdi/nvidia.yaml",)).cdi_devices == (
        "nvidia.com/gpu=all",
    )
    without = spec(cluster())
    assert (without.cdi_devices, without.all_gpus) == ((), True)
    nodes = ("/dev/nvidia0", "/dev/nvidiactl")
    named = spec(cluster(), gpus=replace(gpus(1), nodes=nodes))
    assert named.devices == nodes, "by name, so that a daemon-reload leaves them"
    old = replace(ENGINE, cdi_spec_dirs=())
    assert spec(cluster(), cdi_specs=("/etc/cdi/nvidia.yaml",), engine=old).all_gpus
    cpu = spec(cluster(accelerator="cpu"))
    assert (cpu.cdi_devices, cpu.all_gpus) == ((), False)


@pytest.mark.parametrize(("hard", "nofile"), [(20_000, 20_000), (2**30, 1_048_576), (0, None)])
def test_no_more_open_files_than_the_host_allows(hard: int, nofile: int | None) -> None:
    assert spec(cluster(), nofile_hard=hard).ulimits.get("nofile") == nofile


def test_rdma_brings_devices_and_locked_memory() -> None:
    inventory = cluster()
    both = {name: replace(facts, rdma=(rdma("mlx5_0"),)) for name, facts in FACTS.items()}
    topology = resolve(inventory, both)
    found = container_spec(topology.head, "sha256:1", inventory, both["gpu1"], topology)
    assert found.devices == ("/dev/infiniband",)
    assert set(found.capabilities) - set(spec(inventory).capabilities) == {"IPC_LOCK"}
    assert found.ulimits["memlock"] == -1
    assert "memlock" not in spec(inventory).ulimits


def test_a_container_may_listen_on_low_ports_only_if_the_inventory_says_so() -> None:
    changed_user = ("KILL", "SETGID", "SETUID")  # On the head, for the gateway's HAProxy
    assert spec(cluster()).capabilities == ("DAC_OVERRIDE", *changed_user)
    low = cluster(gateway={"low_ports": True})
    assert spec(low).capabilities == ("DAC_OVERRIDE", "NET_BIND_SERVICE", *changed_user)


def test_each_service_of_a_node_has_a_port_for_its_store() -> None:
    """Of those that are open between hosts; Ray's workers take them from the first on."""
    inventory = cluster()
    topology = resolve(inventory, FACTS)
    ports = node_document(inventory, topology, topology.head, FACTS["gpu1"]).store_ports
    given = {store_port(port, ports) for port in range(8000, 8000 + len(ports))}
    assert len(given) == len(ports) == 125
    assert min(given) >= 11_500
    assert max(given) <= 11_999


def test_the_container_writes_to_places_of_its_own_cluster_only() -> None:
    written = [mount.source for mount in spec(cluster()).mounts if not mount.read_only]
    assert written == [
        "/var/log/clusterctl/demo",
        "/run/clusterctl/demo",
        "/var/lib/clusterctl/caches/demo",
        "/var/lib/clusterctl/tables/demo",
        "/data/own",  # the inventory says so
    ]
    private = {directory.path: directory.mode for directory in node_directories("demo", "1")}
    assert private["/run/clusterctl"] == 0o755, "in memory, where no program may be set-user-ID"
    for path in ("/var/log/clusterctl", "/var/lib/clusterctl", "/etc/clusterctl/demo"):
        assert private[path] == 0o700
