"""The file that init writes: it loads, it means what was chosen, and it says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.commands.init import choose_networks
from clusterctl.errors import Problems, RequirementsNotMet
from clusterctl.facts.model import Address, HostFacts, NicFacts
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Host, Inventory, Ssh
from clusterctl.network.choice import resolve
from clusterctl.network.fabric_choice import Option, Undecided
from clusterctl.survey.inventory_text import Found, InitOptions, inventory_text
from tests.fakes.host_facts import gpus, host_facts, nic, rdma

WISHES = InitOptions("demo", "vllm/vllm-openai:v0.33.0", "/data/models")


def first(question: Undecided) -> Option | None:
    return question.options[0]


def found(
    facts: dict[str, HostFacts], addresses: dict[str, str], options: InitOptions = WISHES
) -> Found:
    hosts = tuple(
        Host(
            name=name,
            address=addresses[name],
            ssh=options.ssh,
            role="worker" if number else "head",
        )
        for number, name in enumerate(facts)
    )
    inventory = Inventory.model_validate(
        {
            "cluster": options.cluster,
            "image": options.image,
            "accelerator": options.accelerator,
            "network": {"subnet": options.subnet},
            "hosts": hosts,
        }
    ).model_copy(update={"ssh": options.ssh})
    decided, topology = choose_networks(inventory, facts, first)
    return Found(decided, facts, topology, addresses, "the first host named", ())


def slow(ip: str, name: str = "eno1", **changes: Any) -> NicFacts:
    return nic(name, ip, **{"speed": 1000, **changes})


def fast(ip: str, name: str = "ens5", **changes: Any) -> NicFacts:
    return nic(name, ip, **{"speed": 100_000, "mtu": 9000, **changes})


DOCKER = nic("docker0", "172.17.0.1", kind="bridge")
PLAIN = {"gpu1": host_facts(slow("10.0.0.1"), DOCKER), "gpu2": host_facts(slow("10.0.0.2", "eth0"))}
TWO = {
    "gpu1": host_facts(slow("10.0.0.1"), fast("10.1.0.1"), gpus=gpus(2), default_nic="eno1"),
    "gpu2": host_facts(slow("10.0.0.2"), fast("10.1.0.2", "ens7"), gpus=gpus(1)),
}
ROUTED = {"a": host_facts(fast("10.0.0.2/32")), "b": host_facts(fast("10.0.0.3/32"))}
TIED = {
    name: host_facts(fast(f"10.0.0.{n}", "a0"), fast(f"10.1.0.{n}", "b0"))
    for n, name in enumerate(("x", "y"), 1)
}
WITH_RDMA = {name: replace(facts, rdma=(rdma("mlx5_0"),)) for name, facts in TWO.items()}
VIRTUAL_IP = {
    "a": host_facts(slow("10.0.0.1"), nic("eno1.vip", "10.0.0.99", kind="vlan", lower=("eno1",))),
    "b": host_facts(slow("10.0.0.2")),
}


def linked(ip: str, name: str) -> NicFacts:
    return replace(fast("10.0.0.1", name), addresses=(Address(ip, 16, "link"),))


SPARKS = {
    name: host_facts(
        slow(f"10.0.0.{n}", "enP7s7"),
        linked(f"169.254.28.{n}", "enp1s0f0np0"),
        linked(f"169.254.66.{n}", "enP2p1s0f0np0"),
        DOCKER,
    )
    for n, name in enumerate(("s1", "s2"), 1)
}
HALVES = {
    name: host_facts(
        fast(f"10.1.0.{n}", "enp1s0f1np1"), fast(f"10.1.1.{n}", "enP2p1s0f1np1"), DOCKER
    )
    for n, name in enumerate(("s1", "s2"), 1)
}
VPN_ONLY = {
    name: host_facts(
        slow(f"192.168.{n}.9"), nic("tailscale0", f"100.90.{n}.5/32", kind="tun", state="unknown")
    )
    for n, name in enumerate(("t1", "t2"), 1)
}
WIFI = {
    name: host_facts(nic("wlan0", f"192.168.1.{n}", kind="wlan"), nic("l4tbr0", "192.168.55.1"))
    for n, name in enumerate(("j1", "j2"), 1)
}
BY_SSH = {"gpu1": "10.0.0.1", "gpu2": "10.0.0.2"}

CASES = [
    (PLAIN, BY_SSH, WISHES),
    (TWO, BY_SSH, WISHES),
    (TWO, {"gpu1": "one.example", "gpu2": "two.example"}, WISHES),
    (TWO, BY_SSH, replace(WISHES, subnet="10.1.0.0/24")),
    (TWO, BY_SSH, replace(WISHES, accelerator="cpu")),
    (TIED, {"x": "10.0.0.1", "y": "10.0.0.2"}, WISHES),
    (ROUTED, {"a": "10.0.0.2", "b": "10.0.0.3"}, WISHES),
    (WITH_RDMA, BY_SSH, WISHES),
    (VIRTUAL_IP, {"a": "10.0.0.1", "b": "10.0.0.2"}, WISHES),
    (SPARKS, {"s1": "10.0.0.1", "s2": "10.0.0.2"}, WISHES),
    (SPARKS, {"s1": "169.254.28.1", "s2": "169.254.28.2"}, WISHES),
    (SPARKS, {"s1": "one.example", "s2": "two.example"}, replace(WISHES, subnet="169.254.0.0/16")),
    (HALVES, {"s1": "one.example", "s2": "two.example"}, WISHES),
    (HALVES, {"s1": "10.1.1.1", "s2": "10.1.1.2"}, WISHES),
    (VPN_ONLY, {"t1": "100.90.1.5", "t2": "100.90.2.5"}, WISHES),
    (WIFI, {"j1": "192.168.1.1", "j2": "192.168.1.2"}, WISHES),
    ({"null": host_facts(slow("10.0.0.1"))}, {"null": "localhost"}, WISHES),
    ({"01": host_facts(nic("eth0", "fd00::1/64"))}, {"01": "fd00::1"}, WISHES),
]


@pytest.mark.parametrize(("facts", "addresses", "options"), CASES)
def test_the_file_loads_and_means_what_was_chosen(
    tmp_path: Path, facts: dict[str, HostFacts], addresses: dict[str, str], options: InitOptions
) -> None:
    made = found(facts, addresses, options)
    file = tmp_path / "inventory.yaml"
    file.write_text(inventory_text(options, made))
    read = load(file)
    again = resolve(read, facts)
    assert [
        (n.host, n.role, n.node_ip, n.control_nic, n.nccl_nics, n.gloo_nic, n.rdma)
        for n in again.nodes
    ] == [
        (n.host, n.role, n.node_ip, n.control_nic, n.nccl_nics, n.gloo_nic, n.rdma)
        for n in made.topology.nodes
    ]
    assert inventory_text(options, made) == file.read_text(), "the same hosts give the same text"
    assert max(map(len, file.read_text().splitlines())) <= 130


def test_every_choice_is_explained_with_its_figures() -> None:
    text = inventory_text(WISHES, found(TWO, BY_SSH))
    assert (
        """\
# Subnets in which every host has an address, best for tensors first:
#   10.1.0.0/24 (100 Gbit/s, MTU 9000) <- tensors (NCCL, Gloo)
#   10.0.0.0/24 (1 Gbit/s, MTU 1500) <- Ray and the API
# Why there: 10.1.0.0/24 (100 Gbit/s, MTU 9000), faster than 10.0.0.0/24 (1 Gbit/s, MTU 1500).
# RDMA off: no active device.
network:
  subnet: 10.0.0.0/24 # Ray and the API
"""
        in text
    )
    assert "# eno1  10.0.0.1  1 Gbit/s, MTU 1500, default route <- Ray and the API" in text
    assert "# ens5  10.1.0.1  100 Gbit/s, MTU 9000 <- NCCL, Gloo" in text
    assert "role: head # the first host named" in text
    assert "nics: {nccl: ens7, gloo: ens7}" in text


def test_gpus_are_promised_as_found(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yaml"
    file.write_text(inventory_text(WISHES, found(TWO, BY_SSH)))
    promised = load(file).host("gpu1").gpus
    assert [gpu.model for gpu in promised] == ["NVIDIA H200", "NVIDIA H200"]
    assert promised[0].memory == 2**37
    assert "no GPU: nvidia-smi names none" in inventory_text(WISHES, found(PLAIN, BY_SSH))


def test_rdma_devices_are_named_when_chosen() -> None:
    assert "rdma: [mlx5_0]" in inventory_text(WISHES, found(WITH_RDMA, BY_SSH))


def test_what_is_not_used_is_said_once_for_each_reason() -> None:
    many = tuple(nic(f"veth{n}", f"172.18.{n}.1", kind="virtual") for n in range(6))
    facts = {"a": host_facts(slow("10.0.0.1"), DOCKER, *many)}
    text = inventory_text(WISHES, found(facts, {"a": "10.0.0.1"}))
    assert "# not used: docker0 (made by Docker); veth0, veth1, veth2, veth3 and 2 more" in text


def test_ssh_is_written_once_for_all_and_paths_start_at_home(monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    ssh = Ssh(user="ann", identity_file=Path("/home/ann/.ssh/id"), known_hosts=Path("/etc/known"))
    text = inventory_text(replace(WISHES, ssh=ssh), found(PLAIN, BY_SSH, replace(WISHES, ssh=ssh)))
    assert "  user: ann\n  identity_file: ~/.ssh/id\n  known_hosts: /etc/known\n" in text
    assert text.count("ssh:") == 1


def test_a_tie_that_nobody_decides_tells_the_option() -> None:
    inventory = Inventory(
        cluster="demo",
        image="i",
        hosts=(Host(name="x", address="x", role="head"), Host(name="y", address="y")),
    )
    with pytest.raises(RequirementsNotMet) as caught:
        choose_networks(inventory, TIED, lambda _: None)
    assert caught.value.hint == (
        "choose one: --subnet 10.0.0.0/24 or --subnet 10.1.0.0/24; or run init on a terminal, "
        "where it asks"
    )
    assert "10.1.0.0/24 (100 Gbit/s, MTU 9000): x b0, y b0" in str(caught.value.detail)


@pytest.mark.parametrize(
    ("subnet", "hint"),
    [
        ("10.7.0.0/24", "--subnet 10.0.0.0/24 or --subnet 10.1.0.0/24; without --subnet, init "
         "chooses"),
        ("10.0.0.0/8", "--subnet 10.0.0.0/24 or --subnet 10.1.0.0/24; without --subnet, init "
         "chooses"),
    ],
)  # fmt: skip
def test_a_subnet_that_does_not_do_is_answered_with_those_that_do(subnet: str, hint: str) -> None:
    addresses = {"x": "198.51.100.1", "y": "198.51.100.2"}
    with pytest.raises(Problems) as caught:
        found(TIED, addresses, replace(WISHES, subnet=subnet))
    assert [error.host for error in caught.value.errors] == ["x", "y"]
    assert {error.hint for error in caught.value.errors} == {hint}


def test_where_hosts_share_nothing_else_init_is_to_choose() -> None:
    facts = {"x": host_facts(slow("10.0.0.1"), slow("10.0.0.2", "eno2"))}
    with pytest.raises(RequirementsNotMet) as caught:
        found(facts, {"x": "198.51.100.1"}, replace(WISHES, subnet="10.0.0.0/24"))
    assert caught.value.hint == "without --subnet, init chooses"


def test_two_equal_interfaces_in_one_subnet_are_asked_host_by_host() -> None:
    asked: list[str] = []

    def second(question: Undecided) -> Option | None:
        asked.append(str(question.host))
        return question.options[1]

    facts = {
        name: host_facts(fast(f"10.0.0.{n}", "a0"), fast(f"10.0.0.{n + 10}", "b0"))
        for n, name in enumerate(("x", "y"), 1)
    }
    hosts = (Host(name="x", address="x", role="head"), Host(name="y", address="y"))
    _, topology = choose_networks(Inventory(cluster="demo", image="i", hosts=hosts), facts, second)
    assert asked == ["x", "y"]
    assert [node.nccl_nics for node in topology.nodes] == [("b0",), ("b0",)]


@pytest.mark.parametrize("subnet", [None, "10.0.0.0/24"])
def test_hosts_with_addresses_of_the_internet_get_a_firewall(
    tmp_path: Path, subnet: str | None
) -> None:
    private = {name: (slow(f"10.0.0.{n}"),) if subnet else () for n, name in enumerate("ab", 1)}
    facts = {name: host_facts(*private[name], fast(f"8.8.{n}.8")) for n, name in enumerate("ab", 1)}
    addresses = {name: f"8.8.{n}.8" for n, name in enumerate("ab", 1)}
    options = replace(WISHES, subnet=subnet)
    text = inventory_text(options, found(facts, addresses, options))
    (tmp_path / "i.yaml").write_text(text)
    assert load(tmp_path / "i.yaml").network.firewall
    assert "Public addresses: a 8.8.1.8, b 8.8.2.8." in text
    assert "firewall" not in inventory_text(WISHES, found(TWO, BY_SSH))
