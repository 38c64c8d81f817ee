"""A host that asks hubs and downloads by itself: its program, on this machine's own Python."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.transfer.weights.fetcher import fetch, http_get
from clusterctl.transfer.weights.hashing import Hashed, hash_file
from clusterctl.transfer.weights.host_web import HostWeb
from clusterctl.transfer.weights.hub import Listing, needed
from clusterctl.transfer.weights.hub_access import Access
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


def hub_of(hubs: FakeHubs, web: HostWeb, token: str | None = None) -> HuggingFace:
    return HuggingFace(web, Access(hubs.endpoint, token, "give your token"))


def got(hub: HuggingFace, web: HostWeb, listing: Listing, directory: Path) -> Mapping[str, Hashed]:
    told: list[int] = []
    found = web.download(
        listing.files,
        str(directory),
        hub.headers,
        explain=lambda r: hub.refusal(r.answer, listing.model_id, listing.revision),
        told=told.append,
    )
    assert told[-1] == listing.size
    return found


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_host_lists_and_downloads(
    token: str | None, hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    web = HostWeb(here)
    hub = hub_of(hubs, web, token)
    listing = needed(hub.listing(MODEL, None))
    found = got(hub, web, listing, tmp_path / "got")
    for path, data in FILES.items():
        assert (tmp_path / "got" / path).read_bytes() == data
        assert found[path] == hash_file(tmp_path / "got" / path)
    modelscope = ModelScope(web, Access(hubs.endpoint, token))
    assert {file.path for file in modelscope.listing(MODEL, None).files} == FILES.keys()


def test_a_download_goes_on_where_it_broke_off(
    hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    web = HostWeb(here)
    hub = hub_of(hubs, web)
    listing = needed(hub.listing(MODEL, None))
    hubs.cut = {"model-1.safetensors": 40_000}
    part = tmp_path / "got" / "model-2.safetensors.part"
    part.parent.mkdir()
    part.write_bytes(FILES["model-2.safetensors"][:20_000])
    hubs.asked.clear()
    got(hub, web, listing, tmp_path / "got")
    ranged = {line.partition(" ")[2] for line in hubs.asked if "signed" in line}
    assert ranged == {"", "bytes=40000-", "bytes=20000-"}
    hubs.asked.clear()
    got(hub, web, listing, tmp_path / "got")
    assert hubs.asked == []


def test_wrong_bytes_and_refusals_are_told_as_on_this_machine(
    hubs: FakeHubs, here: LocalTransport, tmp_path: Path
) -> None:
    web = HostWeb(here)
    hub = hub_of(hubs, web)
    listing = needed(hub.listing(MODEL, None))
    hubs.wrong = {"config.json": 2}
    with pytest.raises(StepFailed, match=r"config.json did not arrive: it arrived twice"):
        got(hub, web, listing, tmp_path / "got")
    hubs.gated = {MODEL}
    with pytest.raises(RequirementsNotMet) as raised:
        got(hub, web, listing, tmp_path / "other")
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
    whole, _ = fetch.bring(fetch.File("unused", str(path), "100", "-", "-"), {}, 64)
    assert whole == hash_file(path).sha256
    assert synced == [f"{path}.part"]


def test_no_way_to_the_hub_is_the_hosts_trouble(here: LocalTransport) -> None:
    hub = HuggingFace(HostWeb(here), Access("http://127.0.0.1:9"))
    with pytest.raises(ClusterctlError) as raised:
        hub.listing(MODEL, None)
    assert raised.value.host == "gpu1"
    assert "127.0.0.1 cannot be reached" in raised.value.summary


def test_the_program_needs_no_more_than_a_minimal_python() -> None:
    """What Debian's python3-minimal has, of what the two modules import."""
    minimal = {"base64", "hashlib", "os", "socket", "ssl", "sys", "threading", "time", "typing"}
    for module in (fetch, http_get):
        for line in Path(str(module.__file__)).read_text().splitlines():
            words = line.split()
            if words[:1] in (["import"], ["from"]):
                assert words[1] in minimal or words[1].startswith("clusterctl."), line


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("https://hub.example/x", {}, None),
        ("https://hub.example/x", {"https_proxy": "http://p.example:3128"}, ("p.example", 3128)),
        ("https://hub.example/x", {"HTTPS_PROXY": "p.example:3128"}, ("p.example", 3128)),
        ("http://hub.example/x", {"https_proxy": "http://p.example:3128"}, None),
        ("https://hub.example/x", {"https_proxy": "http://p:1", "no_proxy": ".example"}, None),
        ("https://hub.example/x", {"https_proxy": "http://p:1", "NO_PROXY": "*"}, None),
        ("https://hub.example/x", {"https_proxy": "http://p:1", "no_proxy": "b.example"}, ("p", 1)),
    ],
)
def test_proxies_are_read_as_others_read_them(
    url: str, environment: dict[str, str], proxy: tuple[str, int] | None
) -> None:
    found = http_get.proxy_for(http_get.Url(url), environment)
    assert (found and (found.host, found.port)) == proxy


@pytest.mark.parametrize(
    ("location", "joined"),
    [
        ("https://cdn.example/a?b", "https://cdn.example/a?b"),
        ("//cdn.example/a", "https://cdn.example/a"),
        ("/a", "https://hub.example:8443/a"),
    ],
)
def test_redirects_are_joined(location: str, joined: str) -> None:
    assert http_get.Url("https://hub.example:8443/x/y").joined(location) == joined
