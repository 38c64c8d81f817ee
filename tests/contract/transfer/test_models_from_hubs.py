"""Where a hub's model is downloaded: by a host that reaches the hub, else by this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from clusterctl.commands.model_pull import FromHub, HubModel
from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Stage
from clusterctl.inventory.model import Inventory
from clusterctl.transfer.transfer import Route, Transfer
from clusterctl.transfer.weights.delivery import Destination
from clusterctl.transfer.weights.receiver import Supply, WeightsReceiver
from clusterctl.transfer.weights.staging import staging_path
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


def fetched(cluster: Cluster, stack: ExitStack, *, on: str | None = None) -> Supply:
    supply = found(cluster, stack, on=on)
    assert supply.fetch
    return supply.fetch()


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
    hubs.entrusted.clear()
    assert delivered(cluster, supply) == 0
    assert hubs.entrusted == []
    assert not (tmp_path / "cache").exists()
    assert found(cluster, stack).holder, "a host that has it comes first"


def test_a_model_that_takes_the_users_token_comes_through_this_machine(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.gated = {MODEL}
    supply = found(cluster, stack)
    assert supply.name == "hf"
    assert delivered(cluster, supply) == sum(map(len, FILES.values()))


def test_a_host_that_does_not_reach_the_hubs_storage_is_not_chosen(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.storage = "http://127.0.0.1:9"
    assert found(cluster, stack).name == "hf"


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


LARGE = {**FILES, "model.bin": os.urandom(20 << 20)}


@pytest.mark.parametrize("by_host", [True, False])
def test_what_an_interrupted_pull_brought_is_not_downloaded_again(
    by_host: bool, hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.models[MODEL], hubs.held = dict(LARGE), {"model.bin"}
    hubs.gated = set() if by_host else {MODEL}
    on = "h1" if by_host else None
    first = found(cluster, stack, on=on)
    assert first.fetch
    broken = cluster.delivery(first.fetch())

    def end_it(_: object) -> None:
        if came(cluster, "h2"):
            broken.close()

    cluster.run(broken, end_it)
    assert not (cluster.own("h1") / "Tiny").exists()

    hubs.hold.set()
    hubs.asked.clear()
    again = found(cluster, stack, on=on)
    assert again.fetch
    cluster.push(again.fetch())
    assert (cluster.own("h2") / "Tiny" / "model.bin").read_bytes() == LARGE["model.bin"]
    read = [line for line in hubs.asked if "model.bin?signed=1" in line]
    assert len(read) == 1
    assert "bytes=" in read[0]


def came(cluster: Cluster, host: str) -> bool:
    """Whether some bytes of the weights are on this host's disk."""
    parts = cluster.own(host).glob(".clusterctl-incoming/*/model.bin.part")
    return any(part.stat().st_blocks for part in parts)


def test_other_hosts_have_the_first_bytes_before_the_first_host_has_the_last(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.models[MODEL], hubs.held = dict(LARGE), {"model.bin"}
    delivery = cluster.delivery(fetched(cluster, stack, on="h1"))

    def let_it_go_on(_: object) -> None:
        if came(cluster, "h2"):
            hubs.hold.set()

    outcome = cluster.run(delivery, let_it_go_on)
    assert outcome.changed == 2
    assert hubs.hold.is_set()
    assert len([line for line in hubs.asked if "model.bin?signed=1" in line]) == 1


def test_a_broken_connection_of_a_host_costs_no_byte_twice(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.cut = {"model.bin": 2_000_000}
    assert delivered(cluster, found(cluster, stack, on="h1")) == 0
    read = [line.partition(" ")[2] for line in hubs.asked if "model.bin?signed=1" in line]
    assert read == ["", "bytes=2000000-"]


def test_wrong_bytes_are_read_again_once(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    hubs.wrong = {"model.bin": 1}
    assert delivered(cluster, found(cluster, stack, on="h1")) == 0


def test_wrong_bytes_of_a_hub_end_the_run_of_all(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    supply = fetched(cluster, stack, on="h1")
    hubs.wrong = {"model.bin": 100}
    outcome, _ = cluster.push(supply)
    errors = [error.summary for error in outcome.set_aside.values()]
    assert len(errors) == 2
    assert all("bytes that do not match" in error for error in errors)


def test_what_the_hub_refuses_a_host_ends_the_run_of_all(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_of_someone_else")
    supply = fetched(cluster, stack, on="h1")
    hubs.gated = {MODEL}
    outcome, _ = cluster.push(supply)
    assert len(outcome.set_aside) == 2
    for error in outcome.set_aside.values():
        assert f"accept them at {hubs.endpoint}/{MODEL}" in str(error.hint)


def test_a_full_disk_of_the_host_that_reads_ends_the_run_of_all(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack
) -> None:
    supply = fetched(cluster, stack, on="h1")
    in_the_way = staging_path(supply.manifest, "") + "/model.bin.part"
    (cluster.own("h1") / in_the_way[1:]).mkdir(parents=True)
    outcome, _ = cluster.push(supply)
    assert outcome.set_aside.keys() == {"h1", "h2"}
    for error in outcome.set_aside.values():
        assert "cannot write received data to disk" in str(error)
        assert "--limit h1" in str(error.hint)


def test_a_host_that_only_reads_passes_on_and_keeps_nothing(
    hubs: FakeHubs, cluster: Cluster, stack: ExitStack, tmp_path: Path
) -> None:
    supply = fetched(cluster, stack, on="h1")
    transports = {name: view.transport for name, view in cluster.views.items()}
    route = Route(transports, lambda _: "127.0.0.1", cache=lambda _: str(tmp_path / "blobs"))
    wanted = {"h2": cluster.views["h2"]}
    receiver = WeightsReceiver(supply, wanted, str(cluster.models), route)
    with Transfer(receiver, route) as transfer:
        stage = Stage("Model", ("h2",), (transfer,))
        assert execute((stage,), wanted, cluster.events.append).changed == 1
    assert (cluster.own("h2") / "Tiny" / "model.bin").read_bytes() == FILES["model.bin"]
    assert list(cluster.own("h1").iterdir()) == []
    assert list((tmp_path / "blobs").iterdir()) == []
