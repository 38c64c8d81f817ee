"""What a tag stands for in Docker's own registry: shown, recorded on two hosts in memory, and
compared with the registry when the tag has moved there."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx2
import pytest

from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Stage, plan
from clusterctl.engine.step import Change, HostView
from clusterctl.facts.model import ImageFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory
from clusterctl.steps.image_digest import DIGESTS, read_record, record_file
from clusterctl.survey.drift import differences
from clusterctl.survey.survey import Survey
from clusterctl.transfer.asked_registry import ask_environment, ask_registry
from clusterctl.transfer.blob_store import BlobStore
from clusterctl.transfer.image_receiver import ImageReceiver
from clusterctl.transfer.image_sources import ImageFinder
from clusterctl.transfer.transfer import Route, Transfer
from tests.fakes.chain import FakeChains
from tests.fakes.docker_registry import Registry, docker_registry
from tests.fakes.host import FakeHost, fake_driver, fake_view
from tests.fakes.host_facts import host_facts
from tests.fakes.image_archives import MadeImage, layer_tar, sha256
from tests.fakes.surveys import survey_of

pytestmark = pytest.mark.skipif(
    shutil.which("docker-registry") is None, reason="docker-registry is not installed"
)

BASE = layer_tar("base", 100_000)
OLD = MadeImage("acme/vllm:1", (BASE, layer_tar("old", 5000)))
NEW = MadeImage("acme/vllm:1", (BASE, layer_tar("new", 5000)))
OLD_DIGEST, NEW_DIGEST = sha256(OLD.manifest), sha256(NEW.manifest)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    with docker_registry(tmp_path) as running:
        yield running


@dataclass
class Site:
    """gpu1 and gpu2, which are brought `reference`."""

    reference: str
    store: BlobStore
    hosts: dict[str, FakeHost] = field(
        default_factory=lambda: {name: FakeHost(name) for name in ("gpu1", "gpu2")}
    )

    @property
    def views(self) -> dict[str, HostView]:
        return {name: fake_view(host, host_facts()) for name, host in self.hosts.items()}

    def transfer(self, chosen: str | None = None, only: str | None = None) -> Transfer:
        views = self.views
        route = Route(
            {name: view.transport for name, view in views.items()},
            lambda name: name,
            chain=FakeChains({name: host.engine for name, host in self.hosts.items()}),  # type: ignore[arg-type]
        )
        drivers = {name: fake_driver(view.transport) for name, view in views.items()}
        finder = ImageFinder(
            self.reference,
            drivers,
            tuple(views),
            chosen=chosen,
            store=self.store,
            recorded=lambda name: read_record(views[name].transport, self.reference),
        )
        targets = (only,) if only else tuple(views)
        return Transfer(ImageReceiver(finder.find, drivers, targets, route), route)

    def planned(self, chosen: str | None = None) -> list[str]:
        stage = Stage("Image", tuple(self.hosts), (self.transfer(chosen),))
        changes = [each.change for each in plan([stage], self.views).changes]
        return [each.summary for each in changes if isinstance(each, Change)]

    def bring(self, chosen: str | None = None, only: str | None = None) -> int:
        with self.transfer(chosen, only) as transfer:
            stage = Stage("Image", (only,) if only else tuple(self.hosts), (transfer,))
            return execute([stage], self.views, lambda _: None).changed

    def digests(self) -> list[str | None]:
        return [self.survey().image_digests.get(name) for name in self.hosts]

    def survey(self, reference: str = "") -> Survey:
        """What hosts show of the image, and the records."""
        hosts = (
            Host(name="gpu1", address="10.0.0.1", role="head"),
            Host(name="gpu2", address="10.0.0.2", role="worker"),
        )
        inventory = Inventory(cluster="demo", image=reference or self.reference, hosts=hosts)
        answers: dict[str, Probe] = {}
        for name, view in self.views.items():
            held = fake_driver(view.transport).image(self.reference)
            image = (
                ImageFacts(held.id, held.tags, (), held.layers, 1, "amd64", {}) if held else None
            )
            files = {path: data for path, (data, _) in self.hosts[name].files.items()}
            answers[name] = Probe(host_facts(), dict(files), (), (), image)
        return survey_of(inventory, answers, {n: v.transport for n, v in self.views.items()})


@pytest.fixture
def site(registry: Registry, tmp_path: Path) -> Site:
    return Site(registry.push(OLD), BlobStore(tmp_path / "cache"))


def remove_images(site: Site) -> None:
    for host in site.hosts.values():
        host.engine.images.clear()


def test_the_digest_is_shown_and_recorded_for_root_alone(site: Site) -> None:
    assert all(f"from its registry ({OLD_DIGEST}), by" in line for line in site.planned())
    assert site.bring() == 2
    assert site.digests() == [OLD_DIGEST, OLD_DIGEST]
    for host in site.hosts.values():
        data, mode = host.files[record_file(site.reference)]
        assert (mode, host.directories[DIGESTS]) == (0o600, 0o700)
        assert json.loads(data)["image"] == site.reference


def test_a_second_run_changes_nothing_and_needs_no_registry(tmp_path: Path) -> None:
    with docker_registry(tmp_path) as registry:
        site = Site(registry.push(OLD), BlobStore(tmp_path / "cache"))
        site.bring()
    before = {name: host.picture() for name, host in site.hosts.items()}
    assert site.bring() == 0
    assert {name: host.picture() for name, host in site.hosts.items()} == before
    engine = site.hosts["gpu2"].engine
    site.hosts["gpu2"] = FakeHost("gpu2")
    site.hosts["gpu2"].engine.images |= {
        name: replace(image, tags=()) for name, image in engine.images.items()
    }
    assert site.bring() == 1
    assert site.digests() == [OLD_DIGEST, OLD_DIGEST], "a host passes its digest on"


@pytest.mark.parametrize("gone", [True, False])
def test_a_tag_that_moved_is_said_before_anything_changes(
    site: Site, registry: Registry, *, gone: bool
) -> None:
    site.bring()
    registry.push(NEW)
    chosen = None if gone else "registry"
    if gone:
        remove_images(site)
    planned = site.planned(chosen)
    assert len(planned) == 2
    for line in planned:
        assert f"the tag has moved, from {OLD_DIGEST} to {NEW_DIGEST}" in line
        assert f"`image: {site.reference}@{OLD_DIGEST}`" in line
    record = read_record(site.views["gpu1"].transport, site.reference)
    assert record is not None
    assert record.digest == OLD_DIGEST, "a plan changes nothing"
    assert site.bring(chosen) == 2
    assert site.digests() == [NEW_DIGEST, NEW_DIGEST]
    assert site.planned(chosen) == []


def test_a_pinned_image_stays_and_takes_the_place_of_another(
    site: Site, registry: Registry
) -> None:
    site.bring()
    registry.push(NEW)
    pinned = replace(site, reference=f"{site.reference}@{OLD_DIGEST}")
    assert pinned.bring() == 0
    assert site.bring("registry") == 2
    for host in site.hosts.values():
        del host.engine.images[sha256(OLD.config)]
    planned = pinned.planned()
    assert len(planned) == 2
    assert all(f"from its registry ({OLD_DIGEST})" in line for line in planned)
    assert not any("moved" in line for line in planned)
    assert pinned.bring() == 2
    assert pinned.digests() == [OLD_DIGEST, OLD_DIGEST]
    assert pinned.bring() == 0


def test_the_same_image_under_another_digest_is_only_recorded(
    site: Site, registry: Registry
) -> None:
    site.bring()
    again = json.dumps(json.loads(OLD.manifest)).encode()
    kind = "application/vnd.oci.image.manifest.v1+json"
    url = f"http://{registry.address}/v2/acme/vllm/manifests/1"
    httpx2.put(url, content=again, headers={"Content-Type": kind}).raise_for_status()
    assert f"{site.reference} is {sha256(again)} in its registry" in site.planned("registry")[0]
    assert site.bring("registry") == 2
    assert site.digests() == [sha256(again), sha256(again)]
    assert site.bring("registry") == 0


def test_of_an_image_that_came_otherwise_nothing_is_claimed(site: Site, tmp_path: Path) -> None:
    new = replace(NEW, name=site.reference)
    (tmp_path / "new.tar").write_bytes(new.legacy())
    site.bring()
    assert site.bring(str(tmp_path / "new.tar")) == 2
    assert site.digests() == [None, None], "the record is of an image that was replaced"
    assert ask_registry(site.survey())() == []


def test_hosts_with_unlike_digests_are_a_problem(site: Site, registry: Registry) -> None:
    site.bring()
    assert differences(site.survey()) == []
    again = json.dumps(json.loads(OLD.manifest)).encode()
    data = json.loads(site.hosts["gpu2"].files[record_file(site.reference)][0])
    text = json.dumps({**data, "digest": sha256(again)}).encode()
    site.hosts["gpu2"].files[record_file(site.reference)] = (text, 0o600)
    (problem,) = differences(site.survey())
    assert problem.host == "gpu2"
    assert f"a different image than gpu1 under the name {site.reference}" in str(problem)
    assert f"{sha256(again)} here, {OLD_DIGEST} on gpu1" in str(problem)


def test_check_notes_that_the_tag_has_moved_since(site: Site, registry: Registry) -> None:
    site.bring()
    assert ask_registry(site.survey())() == []
    registry.push(NEW)
    (note,) = ask_registry(site.survey())()
    assert f"the hosts have {OLD_DIGEST}, but {registry.address} now has {NEW_DIGEST}" in note
    assert f"`image: {site.reference}@{OLD_DIGEST}`" in note
    assert ask_registry(site.survey(f"{site.reference}@{OLD_DIGEST}"))() == []


def test_a_registry_that_is_silent_is_not_waited_for(tmp_path: Path) -> None:
    with docker_registry(tmp_path) as registry:
        site = Site(registry.push(OLD), BlobStore(tmp_path / "cache"))
        site.bring()
    host, _, port = registry.address.partition(":")
    with socket.create_server((host, int(port))):
        began = time.monotonic()
        assert ask_registry(site.survey(), limit=0.5)() == []
    assert 0.4 < time.monotonic() - began < 5


def test_check_asks_what_cuda_an_image_needs_that_no_host_has(
    site: Site, registry: Registry, tmp_path: Path
) -> None:
    registry.push(replace(OLD, env=("CUDA_VERSION=13.0.1", "PATH=/bin")))
    answer = ask_environment(site.survey(), limit=30)()
    assert answer == {"CUDA_VERSION": "13.0.1", "PATH": "/bin"}
    site.bring()
    assert ask_environment(site.survey(), limit=30)() == {}, "the host's own image decides"
