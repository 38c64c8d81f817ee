"""A host that asks hubs and downloads by itself: its program, on this machine's own Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.weights import host_fetch
from clusterctl.transfer.weights.downloads import HostTransport, download_on_host
from clusterctl.transfer.weights.hashing import Hashed, hash_file
from clusterctl.transfer.weights.hub import Hub, Listing, hub_session, needed
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transport.local import LocalTransport
from tests.fakes.hubs import TOKEN, FakeHubs, running_hubs
from tests.unit.transfer.weights.conftest import safetensors

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hosts are worked on as root")

MODEL = "Org/Tiny-1B"
FILES = {
    "config.json": b"{}",
    "model-1.safetensors": safetensors(70_000),
    "model-2.safetensors": safetensors(50_000),
}


@pytest.fixture
def hubs() -> Iterator[FakeHubs]:
    with running_hubs(FakeHubs(models={MODEL: dict(FILES)})) as running:
        yield running


def listed(hub: Hub, here: LocalTransport) -> Listing:
    with hub_session(HostTransport(here)):
        return needed(hub.listing(MODEL, None))


def got(hub: Hub, here: LocalTransport, listing: Listing, directory: Path) -> Mapping[str, Hashed]:
    told: list[int] = []
    found = download_on_host(here, hub, listing, str(directory), told=told.append)
    assert told[-1] == listing.size
    return found


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_host_lists_and_downloads(
    token: str | None, hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    for hub in (HuggingFace(hubs.endpoint, token or False), ModelScope(hubs.endpoint, token)):
        listing = listed(hub, here)
        directory = tmp_path / listing.hub
        found = got(hub, here, listing, directory)
        for path, data in FILES.items():
            assert (directory / path).read_bytes() == data
            assert found[path] == hash_file(directory / path)


def test_a_download_goes_on_where_it_broke_off(
    hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    hub = HuggingFace(hubs.endpoint, False)
    listing = listed(hub, here)
    hubs.cut = {"model-1.safetensors": 40_000}
    part = tmp_path / "got" / "model-2.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(FILES["model-2.safetensors"][:20_000])
    hubs.asked.clear()
    got(hub, here, listing, tmp_path / "got")
    ranged = {line.partition(" ")[2] for line in hubs.asked if "signed" in line}
    assert ranged == {"", "bytes=40000-", "bytes=20000-"}
    hubs.asked.clear()
    got(hub, here, listing, tmp_path / "got")
    assert hubs.asked == []


def test_a_server_without_ranges_sends_all_of_it_again(
    hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    hub = HuggingFace(hubs.endpoint, False)
    listing = listed(hub, here)
    hubs.ranges = False
    (tmp_path / "got").mkdir()
    part = tmp_path / "got" / "model-1.safetensors.part"
    part.write_bytes(FILES["model-1.safetensors"][:20_000])
    got(hub, here, listing, tmp_path / "got")
    whole = (tmp_path / "got" / "model-1.safetensors").read_bytes()
    assert whole == FILES["model-1.safetensors"]


def test_wrong_bytes_and_refusals_are_told_as_on_this_machine(
    hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    hub = HuggingFace(hubs.endpoint, False)
    listing = listed(hub, here)
    hubs.wrong = {"config.json": 2}
    with pytest.raises(StepFailed, match=r"config.json did not arrive: it arrived twice"):
        got(hub, here, listing, tmp_path / "got")
    hubs.gated = {MODEL}
    with pytest.raises(RequirementsNotMet) as raised:
        got(hub, here, listing, tmp_path / "other")
    assert f"accept them at {hubs.endpoint}/{MODEL}" in str(raised.value.hint)


def test_each_file_is_on_the_disk_before_it_counts_as_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not only when the tree is put in place, which says nothing meanwhile."""
    synced: list[str] = []

    def synced_file(file: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{file}").readlink()))

    monkeypatch.setattr(os, "fsync", synced_file)
    path = tmp_path / "model.bin"
    path.write_bytes(b"x" * 100)
    whole, _ = host_fetch.File("unused", str(path), 100, "", "").fetch({}, 64)
    assert whole == hash_file(path).sha256
    assert synced == [f"{path}.part"]


def test_no_way_to_the_hub_is_the_hosts_trouble(here: LocalTransport) -> None:
    with pytest.raises(ClusterctlError) as raised:
        listed(HuggingFace("http://127.0.0.1:9", False), here)
    assert raised.value.host == "gpu1"
    assert "127.0.0.1:9 cannot be reached" in raised.value.summary


def test_proxies_of_the_hosts_environment_are_used(
    hubs: FakeHubs, here: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake hub stands in for a proxy too: it serves what is asked of it by a whole URL."""
    monkeypatch.setenv("http_proxy", hubs.endpoint)
    assert listed(HuggingFace("http://hub.example", False), here).files
    assert any(line.startswith("http://hub.example/api/models/") for line in hubs.asked)
    monkeypatch.setenv("no_proxy", ".example")
    with pytest.raises(ClusterctlError, match=r"hub\.example cannot be reached"):
        listed(HuggingFace("http://hub.example", False), here)
