"""What `check` says that bootstrap would fetch, from the inventory and the hosts' facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host, Inventory, Packages, PackageSource
from clusterctl.steps.fetching import to_be_fetched
from tests.fakes.host_facts import host_facts

NODE_IMAGE = "clusterctl/vllm-openai:v0.33.0-ray2.60.0"


def bare() -> HostFacts:
    facts = host_facts()
    return replace(facts, engine=replace(facts.engine, version="", installed=False))


def said(nodes: tuple[str, ...] = (), **inventory: Any) -> list[str]:
    hosts = (Host(name="a", address="10.0.0.1", role="head"), Host(name="b", address="10.0.0.2"))
    values = {"image": "vllm/vllm-openai:v0.33.0", "accelerator": "nvidia", **inventory}
    made = Inventory(cluster="demo", hosts=hosts, **values)
    devices = accelerator_named(made.accelerator).fetched(made.packages)
    return list(to_be_fetched(made, {"a": bare(), "b": bare()}, nodes, devices))


def test_every_source_is_named_once() -> None:
    engine, toolkit, image, ray = said()
    assert "the container engine from their own package sources on a, b" in engine
    assert "from https://nvidia.github.io/libnvidia-container on a, b" in toolkit
    assert "vllm/vllm-openai:v0.33.0 from docker.io" in image
    assert "Ray and HAProxy, by their hashes, from PyPI on a" in ray


@pytest.mark.parametrize(
    ("packages", "word"),
    [
        (Packages(docker=PackageSource()), "from https://download.docker.com/linux"),
        (Packages(docker=PackageSource(url="https://m.example/d")), "from https://m.example/d"),
        (
            Packages(pip_index="https://m.example/pypi"),
            "Ray and HAProxy, by their hashes, from https://m.example/pypi",
        ),
    ],
)
def test_mirrors_of_the_inventory_are_named(packages: Packages, word: str) -> None:
    assert word in "\n".join(said(packages=packages))


def test_nothing_is_fetched_for_nodes_and_without_internet() -> None:
    assert said(nodes=("a", "b")) == []
    offline = Packages(offline=Path("packages"))
    assert said(image=NODE_IMAGE, image_archive=Path("image.tar"), packages=offline) == []
