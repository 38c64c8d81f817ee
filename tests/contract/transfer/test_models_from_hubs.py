"""Where a hub's model is downloaded: by a host that reaches the hub, else by this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.commands.model_pull import FromHub, HubModel
from clusterctl.inventory.model import Inventory
from clusterctl.transfer.weights.delivery import Destination
from clusterctl.transfer.weights.receiver import Supply
from tests.contract.transfer.hosts_here import Cluster
from tests.fakes.hubs import COMMIT, TOKEN, FakeHubs, running_hubs

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts directories")

MODEL = "Org/Tiny"
FILES = {"config.json": b"{}", "model.bin": os.urandom(3_000_000)}


@pytest.fixture
def hubs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHubs]:
    with running_hubs(FakeHubs(models={MODEL: dict(FILES)})) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield running


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, 2)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as running:
        yield running


def found(cluster: Cluster, stack: ExitStack, *, on: str | None = None) -> Supply:
    hosts = tuple(view.host for view in cluster.views.values())
    head = hosts[0].model_copy(update={"role": "head"})
    inventory = Inventory(
        cluster="demo",
        image="vllm:1",
        accelerator="cpu",
        hosts=(head, *hosts[1:]),
        models=str(cluster.models),
    )
    to = Destination(inventory, hosts, on)
    return FromHub(HubModel("hf", MODEL, "Tiny"), to, stack, cluster.events.append).find(
        cluster.views
    )


def delivered(cluster: Cluster, supply: Supply) -> int:
    """The bytes that left this machine; every host has the model then."""
    assert supply.fetch
    _, sent = cluster.push(supply.fetch())
    for name in cluster.views:
        for path, data in FILES.items():
            assert (cluster.own(name) / "Tiny" / path).read_bytes() == data
    return sent


def test_the_first_host_that_reaches_the_hub_downloads_without_the_users_token(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack, tmp_path: Path
) -> None:
    supply = found(cluster, stack)
    assert supply.name == "hf, downloaded by h1"
    assert not (cluster.own("h1") / "Tiny").exists(), "before the user has agreed"
    assert delivered(cluster, supply) == 0
    assert not (tmp_path / "cache").exists()
    assert found(cluster, stack).holder, "a host that has it comes first"


def test_a_model_that_takes_the_users_token_comes_through_this_machine(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.gated = {MODEL}
    supply = found(cluster, stack)
    assert supply.name == "hf"
    assert delivered(cluster, supply) == sum(map(len, FILES.values()))


def test_a_host_that_is_named_gets_the_token(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.gated = {MODEL}
    supply = found(cluster, stack, on="h2")
    assert supply.name == "hf, downloaded by h2"
    assert delivered(cluster, supply) == 0


def test_what_this_machine_has_is_sent_from_here(
    hubs: FakeHubs,
    cluster: Cluster,
    stack: ExitStack,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    snapshot = tmp_path / "hub" / f"models--{MODEL.replace('/', '--')}" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "model.bin").write_bytes(FILES["model.bin"])
    supply = found(cluster, stack)
    assert delivered(cluster, supply) == sum(map(len, FILES.values()))
    assert not [line for line in hubs.asked if "model.bin" in line]


def test_what_an_interrupted_pull_sent_is_not_downloaded_again(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    large = {**FILES, "model.bin": os.urandom(20 << 20)}
    hubs.models[MODEL], hubs.gated, hubs.held = large, {MODEL}, {"model.bin"}
    first = found(cluster, stack)
    assert first.fetch
    broken = cluster.delivery(first.fetch())

    def end_it(_: object) -> None:
        if list(cluster.own("h2").glob(".clusterctl-incoming/*/model.bin.part")):
            broken.close()

    cluster.run(broken, end_it)
    assert not (cluster.own("h1") / "Tiny").exists()

    hubs.hold.set()
    hubs.asked.clear()
    again = found(cluster, stack)
    assert again.fetch
    _, sent = cluster.push(again.fetch())
    assert (cluster.own("h2") / "Tiny" / "model.bin").read_bytes() == large["model.bin"]
    assert any("model.bin?signed=1 bytes=" in line for line in hubs.asked)
    assert sent < len(large["model.bin"])
