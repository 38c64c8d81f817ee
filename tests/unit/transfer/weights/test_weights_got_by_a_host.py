"""A host that asks hubs and reads files from them: its program, on this machine's own Python."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import httpx2
import pytest

from clusterctl.errors import ClusterctlError, RequirementsNotMet, StepFailed
from clusterctl.inventory.outside import NOTHING
from clusterctl.transfer.relay.hub import TRIES, TRYING, Hub
from clusterctl.transfer.relay.upstream import HUB, UpstreamFailed, UpstreamStats
from clusterctl.transfer.relay.web import opener
from clusterctl.transfer.weights.host_transport import HostTransport
from clusterctl.transfer.weights.hub import Hub as ModelHub
from clusterctl.transfer.weights.hub import Listing, hub_session, needed
from clusterctl.transfer.weights.hub_source import HubSource
from clusterctl.transfer.weights.huggingface import HuggingFace
from clusterctl.transfer.weights.modelscope import ModelScope
from clusterctl.transport.local import LocalTransport
from tests.fakes.hubs import TOKEN, FakeHubs, running_hubs
from tests.unit.transfer.weights.conftest import safetensors

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


def listed(hub: ModelHub, here: LocalTransport) -> Listing:
    with hub_session(HostTransport(here)):
        return needed(hub.listing(MODEL, None))


class Reading:
    """Files that a relay reads, and what it tells of them."""

    def __init__(self, hub: ModelHub, here: LocalTransport) -> None:
        listing = listed(hub, here)
        self.source = HubSource(hub, listing, say=lambda _: None)
        with hub_session(HostTransport(here)):
            self.manifest = self.source.manifest("Tiny-1B")
        self.web = self.source.read_by("gpu1", NOTHING, entrusted=True)
        self.told: list[tuple[str, ...]] = []
        self.now = 0.0
        headers, urls = dict(self.web.headers), dict(self.web.urls)
        stats, through = UpstreamStats(HUB), opener("", {})
        self.hub = Hub(stats, self.say, through, headers, urls, lambda: self.now)

    def say(self, *words: str) -> None:
        self.told.append(words)

    def read(self, path: str, start: int = 0) -> bytes:
        """The bytes that come, until the upstream fails."""
        blob = next(file.blob for file in self.manifest.files if file.path == path)
        return b"".join(self.hub.pieces(blob.hex, start, blob.size - start, 1.0))

    def error(self) -> ClusterctlError:
        (name, digest, said), *_ = self.told
        assert name == "unserved"
        return self.web.unserved(digest, json.loads(said))


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_host_lists_and_reads(token: str | None, hubs: FakeHubs, here: LocalTransport) -> None:
    for hub in (HuggingFace(hubs.endpoint, token or False), ModelScope(hubs.endpoint, token)):
        reading = Reading(hub, here)
        for file in reading.manifest.files:
            assert file.sha256 == hashlib.sha256(FILES[file.path]).hexdigest()
            assert reading.read(file.path) == FILES[file.path]
        assert reading.hub.name == HUB
        assert not reading.told


@pytest.mark.parametrize("ranges", [True, False])
def test_it_reads_from_any_byte_on(ranges: bool, hubs: FakeHubs, here: LocalTransport) -> None:
    reading = Reading(HuggingFace(hubs.endpoint, False), here)
    hubs.ranges = ranges
    for path, data in FILES.items():
        assert reading.read(path, 1) == data[1:]


def test_what_came_before_a_connection_broke_is_kept(hubs: FakeHubs, here: LocalTransport) -> None:
    reading = Reading(HuggingFace(hubs.endpoint, False), here)
    hubs.cut = {"model-1.safetensors": 40_000}
    blob = next(file.blob for file in reading.manifest.files if file.path in hubs.cut)
    came = bytearray()
    pieces = map(came.extend, reading.hub.pieces(blob.hex, 0, blob.size, 1.0))
    with pytest.raises(UpstreamFailed, match="the connection ended early"):
        list(pieces)
    assert came == FILES["model-1.safetensors"][:40_000]
    assert not reading.told, "the relay asks again"


def test_a_refusal_is_told_as_on_this_machine(hubs: FakeHubs, here: LocalTransport) -> None:
    reading = Reading(HuggingFace(hubs.endpoint, False), here)
    hubs.gated = {MODEL}
    with pytest.raises(UpstreamFailed, match="HTTP status 403"):
        reading.read("config.json")
    error = reading.error()
    assert isinstance(error, RequirementsNotMet)
    assert f"accept them at {hubs.endpoint}/{MODEL}" in str(error.hint)


def test_a_hub_that_goes_away_is_given_up_after_a_while(
    hubs: FakeHubs, here: LocalTransport
) -> None:
    reading = Reading(HuggingFace(hubs.endpoint, False), here)
    hubs.busy = {"model-1.safetensors": 2 * TRIES + 2}
    for _ in range(TRIES):
        with pytest.raises(UpstreamFailed, match="HTTP status 503"):
            reading.read("model-1.safetensors")
    assert not reading.told
    assert reading.read("model-2.safetensors") == FILES["model-2.safetensors"]
    for _ in range(TRIES):
        reading.now += TRYING / 2
        with pytest.raises(UpstreamFailed):
            reading.read("model-1.safetensors")
    assert isinstance(reading.error(), StepFailed)
    assert "status 503" in reading.error().summary


@pytest.mark.parametrize(
    "target", ["http://[::", "http://a..b", "file:///etc", "ftp://127.0.0.1:9"]
)
def test_a_redirect_that_leads_nowhere_is_a_failure_of_the_hub(
    target: str, hubs: FakeHubs, here: LocalTransport
) -> None:
    reading = Reading(HuggingFace(hubs.endpoint, False), here)
    hubs.storage = target
    path = "model-1.safetensors"
    with pytest.raises(UpstreamFailed, match=r"cannot be reached|status 302"):
        reading.read(path)
    digest = next(file.blob.hex for file in reading.manifest.files if file.path == path)
    request = httpx2.Request("GET", reading.web.urls[digest])
    with pytest.raises(StepFailed, match=r"127\.0\.0\.1.* cannot be reached: (?!I/O|ftp)"):
        HostTransport(here).handle_request(request)


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
