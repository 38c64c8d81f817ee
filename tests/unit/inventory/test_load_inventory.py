"""A file becomes an inventory, its defaults merged into every host."""

from __future__ import annotations

import os
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path

import pytest

from clusterctl.inventory.load import load
from clusterctl.inventory.model import Gpu, Inventory

Loaded = Callable[[str], Inventory]


def test_hosts_keep_the_order_of_the_file_and_take_their_keys_as_names(
    loaded: Loaded, two_hosts: str
) -> None:
    inventory = loaded(two_hosts)
    assert [host.name for host in inventory.hosts] == ["gpu1", "gpu2"]
    assert inventory.head.name == "gpu1"
    assert [host.name for host in inventory.workers] == ["gpu2"]


def test_a_single_host_is_head_by_itself(loaded: Loaded) -> None:
    inventory = loaded("cluster: one\nimage: a\nhosts: {gpu1: {address: gpu1}}")
    assert inventory.head.name == "gpu1"


def test_the_clusters_ssh_and_env_reach_every_host_and_the_hosts_own_win(loaded: Loaded) -> None:
    inventory = loaded("""
cluster: demo
image: a
ssh: {user: root, port: 2222, connect_timeout: 5}
env: {NCCL_DEBUG: INFO, SHARED: "1"}
hosts:
  gpu1: {address: a, role: head}
  gpu2: {address: b, ssh: {user: ubuntu, accept_new: false}, env: {NCCL_DEBUG: WARN}}
""")
    first, second = inventory.hosts
    assert (first.ssh.user, first.ssh.port, first.ssh.connect_timeout) == ("root", 2222, 5.0)
    assert (second.ssh.user, second.ssh.port, second.ssh.accept_new) == ("ubuntu", 2222, False)
    assert first.env == {"NCCL_DEBUG": "INFO", "SHARED": "1"}
    assert second.env == {"NCCL_DEBUG": "WARN", "SHARED": "1"}


def test_gpus_are_a_count_or_a_list(loaded: Loaded) -> None:
    inventory = loaded("""
cluster: demo
image: a
hosts:
  gpu1: {address: a, role: head, gpus: 2}
  gpu2: {address: b, gpus: [{model: NVIDIA H800, memory: 80 GiB}, {memory: 25769803776}]}
  gpu3: {address: c}
""")
    assert [host.gpus for host in inventory.hosts] == [
        (Gpu(), Gpu()),
        (Gpu(model="NVIDIA H800", memory=80 * 2**30), Gpu(memory=24 * 2**30)),
        (),
    ]


def test_anchors_aliases_and_merge_keys_work(loaded: Loaded) -> None:
    inventory = loaded("""
cluster: demo
image: a
x-rack: &rack
  nics: &nics {nccl: ib0, gloo: eth0}
  gpus: 8
hosts:
  gpu1: {<<: *rack, address: a, role: head}
  gpu2:
    <<: [{gpus: 4}, *rack]
    address: b
    nics: {<<: *nics, gloo: eth1}
""")
    first, second = inventory.hosts
    assert (first.nics.nccl, first.nics.gloo, len(first.gpus)) == ("ib0", "eth0", 8)
    assert (second.nics.nccl, second.nics.gloo, len(second.gpus)) == ("ib0", "eth1", 4)


def test_paths_start_at_the_inventory_file_and_tilde_is_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "i.yaml").write_text("""
cluster: demo
image: a
image_archive: ../images/vllm.tar
ssh: {identity_file: ~/.ssh/key, known_hosts: known_hosts}
hosts:
  gpu1: {address: a, ssh: {identity_file: /keys/gpu1}}
""")
    monkeypatch.chdir(tmp_path)
    inventory = load(Path("site/i.yaml"))
    assert inventory.ssh.identity_file == Path("/home/me/.ssh/key")
    assert inventory.head.ssh.identity_file == Path("/keys/gpu1")
    assert inventory.head.ssh.known_hosts == tmp_path / "site/known_hosts"
    assert inventory.image_archive is not None
    assert os.path.normpath(inventory.image_archive) == str(tmp_path / "images/vllm.tar")
    assert inventory.source == tmp_path / "site/i.yaml"


def test_what_yaml_1_1_would_turn_into_something_else_stays_text(loaded: Loaded) -> None:
    inventory = loaded("""
cluster: yes
image: a
hosts:
  on: {address: a, role: head, nics: {nccl: off, gloo: no}, env: {TIME: 12:30, DAY: 2024-01-02}}
  1: {address: b}
""")
    assert inventory.cluster == "yes"
    assert [host.name for host in inventory.hosts] == ["on", "1"]
    assert (inventory.head.nics.nccl, inventory.head.nics.gloo) == ("off", "no")
    assert inventory.head.env == {"TIME": "12:30", "DAY": "2024-01-02"}


def test_numbers_in_env_and_labels_are_kept_as_written(loaded: Loaded) -> None:
    inventory = loaded("""
cluster: demo
image: a
env: {A: 1.10, B: 0022, C: 1e3, D: 0x1F, E: 3}
hosts: {gpu1: {address: a, labels: {rack: 7, version: 1.10}}}
""")
    assert inventory.env == {"A": "1.10", "B": "0022", "C": "1e3", "D": "0x1F", "E": "3"}
    assert inventory.head.labels == {"rack": "7", "version": "1.10"}


def test_networks_of_both_families_are_read(loaded: Loaded, two_hosts: str) -> None:
    for text in ("10.0.0.0/8", "fd00::/64"):
        assert loaded(two_hosts + f"network: {{subnet: {text}}}").network.subnet == ip_network(text)


def test_the_same_address_behind_two_ports_is_two_hosts(loaded: Loaded) -> None:
    inventory = loaded("""
cluster: demo
image: a
hosts:
  gpu1: {address: gate, role: head, ssh: {port: 2201}}
  gpu2: {address: gate, ssh: {port: 2202}}
""")
    assert [host.ssh.port for host in inventory.hosts] == [2201, 2202]


def test_a_byte_order_mark_and_windows_line_ends_are_no_problem(
    loaded: Callable[[bytes], Inventory], two_hosts: str
) -> None:
    content = b"\xef\xbb\xbf" + two_hosts.replace("\n", "\r\n").encode()
    assert loaded(content).cluster == "demo"
