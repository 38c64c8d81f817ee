"""One image to two hosts in memory: who gets what by a chain, and what is said before."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Stage, plan
from clusterctl.engine.step import Change
from clusterctl.errors import ConnectionFailed, Problems, RequirementsNotMet, StepFailed
from clusterctl.transfer.image_receiver import Find
from clusterctl.transfer.image_sources import EngineStates, Origin, host_origin
from clusterctl.transfer.transfer import Transfer
from clusterctl.units import GIB
from tests.fakes.chain import FakeChains
from tests.fakes.host import fake_driver
from tests.fakes.made_image import layer, made_image
from tests.unit.steps.shipping import BASE, IMAGE, NEWER, REFERENCE, from_archive, give_image, ship
from tests.unit.steps.stage import Cluster, cluster

LARGE_LAYERS = (layer("large", b"l" * 12_000_000), layer("larger", b"r" * 12_000_000))
LARGE = made_image(*LARGE_LAYERS)


@pytest.fixture
def made() -> Cluster:
    return cluster()


@dataclass(frozen=True)
class Site:
    """gpu1 and gpu2, and what chains between them do."""

    made: Cluster
    chains: FakeChains

    def ship(self, find: Find) -> Transfer:
        views = {"gpu1": self.made.head_view, "gpu2": self.made.worker_view}
        return ship(find, views, self.chains)

    def run(self, find: Find) -> int:
        """How many hosts were changed."""
        with self.ship(find) as transfer:
            stage = Stage("Image", ("gpu1", "gpu2"), (transfer,))
            views = {"gpu1": self.made.head_view, "gpu2": self.made.worker_view}
            return execute([stage], views, lambda _: None).changed


@pytest.fixture
def site(made: Cluster) -> Site:
    engines = {"gpu1": made.head.engine, "gpu2": made.worker.engine}
    return Site(made, FakeChains(engines))


def test_one_chain_serves_all_that_lack_it(site: Site) -> None:
    assert site.run(from_archive(IMAGE)) == 2
    assert site.chains.links == [("gpu1", "gpu2")]
    assert site.chains.kept == [False], "nothing stays in caches"
    for host in (site.made.head, site.made.worker):
        (image_,) = host.engine.images.values()
        assert image_.tags == (REFERENCE,)
    assert site.run(from_archive(IMAGE)) == 0
    assert len(site.chains.links) == 1


def planned(site: Site, find: Find) -> str:
    """What is said of gpu2 before anything is sent."""
    found = site.ship(find).check(site.made.worker_view)
    assert isinstance(found, Change)
    return found.summary


def test_its_size_and_its_source_are_said_before(site: Site) -> None:
    assert planned(site, from_archive(LARGE)).startswith(
        f"get {REFERENCE}: 0.02 GiB from bundle.tar, by docker "
    )
    give_image(site.made.worker, made_image(*LARGE_LAYERS[:1]), REFERENCE)
    assert planned(site, from_archive(LARGE)).startswith(
        f"replace {REFERENCE}: 0.01 of its 0.02 GiB from bundle.tar, by docker "
    )


def test_the_size_of_an_image_of_a_host_is_said_unpacked(site: Site) -> None:
    give_image(site.made.head, LARGE, REFERENCE)
    driver = fake_driver(site.made.head_view.transport)

    def find(states: EngineStates) -> Origin:
        (held,) = states["gpu1"].images
        held = replace(held, size=30 * GIB)
        return host_origin(driver, states["gpu1"], held, REFERENCE)

    assert planned(site, find) == f"get {REFERENCE}: 30.00 GiB, unpacked, from gpu1"
    give_image(site.made.worker, made_image(*LARGE_LAYERS[:1]), "other:1")
    assert planned(site, find) == f"get {REFERENCE}: 1 of its 2 layers from gpu1"


def test_a_slow_host_slows_none_but_those_behind_it(site: Site) -> None:
    views = {"gpu1": site.made.head_view, "gpu2": site.made.worker_view}
    with ship(from_archive(IMAGE), views, site.chains, gpu1=1_000, gpu2=10_000) as transfer:
        execute([Stage("Image", tuple(views), (transfer,))], views, lambda _: None)
    assert site.chains.links == [("gpu2", "gpu1")]


def test_a_host_that_has_it_is_left_out_of_the_chain(site: Site) -> None:
    give_image(site.made.head, IMAGE, REFERENCE)
    assert site.run(from_archive(IMAGE)) == 1
    assert site.chains.links == [("gpu2",)]


def test_a_host_without_python_is_told_what_installs_it(site: Site) -> None:
    site.made.worker.engine.python = False
    with pytest.raises(StepFailed, match=r"no Python 3\.9 or newer") as raised:
        site.run(from_archive(IMAGE))
    assert raised.value.host == "gpu2"
    assert "clusterctl bootstrap" in str(raised.value.hint)
    assert raised.value.detail == "python3: older than 3.9"
    give_image(site.made.worker, IMAGE, REFERENCE)
    assert site.run(from_archive(IMAGE)) == 0, "one that has the image needs none"


def test_only_what_lacks_is_fetched_for_a_partial_load(site: Site) -> None:
    give_image(site.made.worker, IMAGE, REFERENCE)
    site.run(from_archive(NEWER))
    assert site.chains.fetched == [("gpu2", (NEWER.content.layers[1].digest,))]
    for host in (site.made.head, site.made.worker):
        assert host.engine.images[NEWER.content.config.digest].tags == (REFERENCE,)


def test_what_came_so_far_stays_when_a_host_fails(site: Site) -> None:
    site.made.worker.cut_at = 2
    with pytest.raises(ConnectionFailed):
        site.run(from_archive(IMAGE))
    assert site.chains.kept == [True]
    assert site.made.head.engine.images, "the other host has it"
    assert site.run(from_archive(IMAGE)) == 1


def test_room_is_asked_of_all_hosts_before_anything_is_sent(site: Site) -> None:
    site.made.head.engine.free = site.made.worker.engine.free = 2**20
    stage = Stage("Image", ("gpu1", "gpu2"), (site.ship(from_archive(IMAGE)),))
    views = {"gpu1": site.made.head_view, "gpu2": site.made.worker_view}
    with pytest.raises(Problems) as raised:
        plan([stage], views)
    assert [error.host for error in raised.value.errors] == ["gpu1", "gpu2"]
    assert "needs 0.3 GiB at /var/lib/docker" in str(raised.value.errors[0])
    assert site.chains.links == []


def test_an_image_for_another_processor_is_refused_before_it_is_sent(site: Site) -> None:
    arm = made_image(BASE, platform="linux/arm64")
    with pytest.raises(RequirementsNotMet, match="built for linux/arm64, but the host is linux/a"):
        site.ship(from_archive(arm)).check(site.made.head_view)


def test_a_chain_that_cannot_go_on_ends_the_pull_with_its_own_words(site: Site) -> None:
    site.chains.problem = StepFailed("the source is gone")
    site.chains.broken = True
    with pytest.raises(StepFailed, match="the source is gone"):  # once, for all hosts
        site.run(from_archive(IMAGE))
