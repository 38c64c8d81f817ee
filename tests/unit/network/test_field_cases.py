"""Networks of hosts as public reports describe them: field_cases.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from clusterctl.errors import ClusterctlError, Problems, RequirementsNotMet
from clusterctl.facts.model import Address, HostFacts, NicFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.choice import resolve
from clusterctl.ray_cluster.topology import Topology
from tests.fakes.host_facts import host_facts, nic, rdma

CASES: list[dict[str, Any]] = yaml.safe_load(
    (Path(__file__).parent / "field_cases.yaml").read_text()
)


def numbered(value: Any, number: int) -> Any:
    """The same with the host's number in all texts."""
    if isinstance(value, str):
        return value.replace("%", str(number))
    if isinstance(value, dict):
        return {key: numbered(of, number) for key, of in value.items()}
    return value


def interface(name: str, of: Mapping[str, Any]) -> NicFacts:
    usual = {"speed": None, **of}
    ip, scope = usual.pop("ip", None), usual.pop("scope", "global")
    for side in ("lower", "upper"):
        usual[side] = tuple(usual.get(side, ()))
    addresses: tuple[Address, ...] = ()
    if ip:
        address, _, prefix = ip.partition("/")
        addresses = (Address(address, int(prefix), scope),)
    return replace(nic(name, **usual), addresses=addresses)


def facts_of(each: Mapping[str, Any]) -> HostFacts:
    devices = []
    for name, of in each.get("rdma", {}).items():
        device = replace(rdma(name), nics=tuple(of.get("nics", ())))
        layer, kind = of.get("layer", "Ethernet"), of.get("node_type", "1: CA")
        devices.append(replace(device, link_layer=layer, node_type=kind))
    nics = [interface(name, of) for name, of in each["nics"].items()]
    return host_facts(*nics, default_nic=each.get("default"), rdma=tuple(devices))


def chosen(case: Mapping[str, Any]) -> Topology:
    names = [f"h{number}" for number in range(1, case.get("hosts", 2) + 1)]
    each = {name: numbered(case["each"], number) for number, name in enumerate(names, 1)}
    hosts = tuple(
        Host(name=name, address=of["address"], role="head" if name == "h1" else "worker")
        for name, of in each.items()
    )
    network = {"subnet": case["subnet"]} if "subnet" in case else {}
    inventory = Inventory.model_validate(
        {"cluster": "c", "image": "i", "network": network, "hosts": hosts}
    )
    return resolve(inventory, {name: facts_of(of) for name, of in each.items()})


def words_of(error: ClusterctlError) -> str:
    errors = error.errors if isinstance(error, Problems) else (error,)
    return "\n".join(f"{each}\n{each.hint}\n{each.detail}" for each in errors)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["case"])
def test_the_choice_of_networks_as_people_have_them(case: Mapping[str, Any]) -> None:
    if "fails" in case:
        with pytest.raises((RequirementsNotMet, Problems)) as caught:
            chosen(case)
        text = words_of(caught.value)
        assert case["fails"] in text
    else:
        nodes = chosen(case).nodes
        assert [(node.control_nic, node.nccl_nics[0]) for node in nodes] == [
            tuple(case["takes"])
        ] * len(nodes)
        text = "\n".join(nodes[0].explain)

    for part in case.get("says", ()):
        assert part in text
    for part in case.get("silent", ()):
        assert part not in text
