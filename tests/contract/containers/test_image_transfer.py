"""One image to three real engines at once, two with overlay2 and one with the containerd store:
a relay beside each, a chain between them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.engine.events import Event, StepProgress
from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Stage, plan
from clusterctl.engine.step import Change, HostView
from clusterctl.transfer.engine_state import Method, choose_delivery, inspect_engine
from clusterctl.transfer.image_receiver import ImageReceiver
from clusterctl.transfer.image_sources import EngineStates, Origin, host_origin, local_origin
from clusterctl.transfer.transfer import Route, Transfer
from tests.contract.containers.dockerd import Engine
from tests.contract.containers.newer_engine import WITH_NEWER_ENGINE
from tests.fakes.host_facts import host_facts
from tests.fakes.made_image import REFERENCE, MadeImage, layer, made_image

pytestmark = [pytest.mark.dockerd, WITH_NEWER_ENGINE]

BASE = layer("base", os.urandom(6_000_000))
MIDDLE = layer("middle", os.urandom(2_000_000))
FIRST = (BASE, MIDDLE, layer("top", b"first"))
SECOND = (BASE, MIDDLE, layer("top", b"second"))


@dataclass(frozen=True)
class Site:
    """Engines as hosts."""

    engines: dict[str, Engine]
    caches: Path
    events: list[Event]

    @property
    def views(self) -> dict[str, HostView]:
        return {
            name: HostView(engine.transport.host, host_facts(), engine.transport)
            for name, engine in self.engines.items()
        }

    def transfer(self, find: Callable[[EngineStates], Origin]) -> Transfer:
        transports = {name: engine.transport for name, engine in self.engines.items()}
        route = Route(transports, lambda _: "127.0.0.1", cache=lambda name: str(self.caches / name))
        drivers = {name: engine.driver() for name, engine in self.engines.items()}
        return Transfer(ImageReceiver(find, drivers, tuple(self.engines), route), route)

    def bring(self, find: Callable[[EngineStates], Origin]) -> int:
        """Bring it everywhere; how many hosts were changed."""
        with self.transfer(find) as transfer:
            stage = Stage("Image", tuple(self.engines), (transfer,))
            return execute([stage], self.views, self.events.append).changed

    def plan(self, find: Callable[[EngineStates], Origin]) -> list[str]:
        stage = Stage("Image", tuple(self.engines), (self.transfer(find),))
        changes = plan([stage], self.views).changes
        return [found.change.summary for found in changes if isinstance(found.change, Change)]

    def layers(self) -> set[tuple[str, ...]]:
        """What REFERENCE stands for, on all hosts."""
        found = (engine.driver().image(REFERENCE) for engine in self.engines.values())
        return {image.layers if image else () for image in found}

    def tags(self, name: str) -> set[str]:
        shown = self.engines[name].docker("images", "--format", "{{.Repository}}:{{.Tag}}")
        return set(shown.split())


@pytest.fixture
def site(
    engine: Engine, second_engine: Engine, newer_engine: Engine, tmp_path: Path
) -> Iterator[Site]:
    engines = {"gpu1": engine, "gpu2": second_engine, "gpu3": newer_engine}
    for each in engines.values():
        each.clear()
    yield Site(engines, tmp_path, [])
    for each in engines.values():
        each.clear()


def from_here(image: MadeImage) -> Callable[[EngineStates], Origin]:
    return lambda _: local_origin("bundle.tar", image, REFERENCE)


def from_first(site: Site) -> Callable[[EngineStates], Origin]:
    def find(stocks: EngineStates) -> Origin:
        held = stocks["gpu1"].tagged(REFERENCE)
        assert held is not None
        driver = site.engines["gpu1"].driver()
        return host_origin(driver, stocks["gpu1"], held, REFERENCE, str(site.caches / "saved"))

    return find


def test_all_hosts_get_it_once_and_a_second_time_nothing_moves(site: Site) -> None:
    image = made_image(*FIRST, packed=True)
    planned = site.plan(from_here(image))
    assert len(planned) == 3
    assert ": 0.01 GiB from bundle.tar, by docker pull" in planned[0]
    assert site.layers() == {()}, "a plan changes nothing"

    image.given = 0
    assert site.bring(from_here(image)) == 3
    assert site.layers() == {image.content.diff_ids}
    assert image.given < 1.02 * image.content.size, "each byte leaves the source once"
    only = {name: {REFERENCE} for name in site.engines}
    assert {name: site.tags(name) for name in site.engines} == only, "no temporary name stays"
    assert not list(site.caches.rglob("*.part"))
    assert any(isinstance(event, StepProgress) for event in site.events)

    image.given = 0
    assert site.bring(from_here(image)) == 0
    assert image.given < 2000, "its config, to know what hosts should have"


def test_a_change_in_the_top_layer_moves_that_layer(site: Site) -> None:
    site.bring(from_here(made_image(*FIRST, packed=True)))
    changed = made_image(*SECOND, packed=True)
    assert site.bring(from_here(changed)) == 3
    assert changed.given < 0.01 * changed.content.size
    assert site.layers() == {changed.content.diff_ids}


def test_what_came_by_docker_load_is_not_fetched_again(site: Site) -> None:
    """overlay2 does not recognize such layers in a pull; the containerd store does."""
    base = layer("base", os.urandom(4_000_000))  # unheard of: engines remember what they pulled
    first = made_image(base, layer("top", b"first"))
    changed = made_image(base, layer("top", b"second"), packed=True)
    site.bring(from_here(first))
    site.engines["gpu2"].docker("load", stdin=_saved_again(site.engines["gpu2"]))
    ways = {
        name: choose_delivery(inspect_engine(engine.driver()), changed.content).method
        for name, engine in site.engines.items()
    }
    assert ways == {"gpu1": Method.LOAD, "gpu2": Method.LOAD, "gpu3": Method.PULL}
    changed.given = 0
    site.bring(from_here(changed))
    assert changed.given < 0.01 * changed.content.size
    assert site.layers() == {changed.content.diff_ids}


def _saved_again(engine: Engine) -> bytes:
    """The image out of an engine that then forgets it: it comes back without a digest map."""
    saved = subprocess.run([*engine.argv, "save", REFERENCE], capture_output=True, check=True)
    engine.clear()
    return saved.stdout


@pytest.mark.parametrize("packed", [True, False])
def test_a_host_that_has_it_heads_the_chain(site: Site, packed: bool) -> None:
    image = made_image(*FIRST, packed=packed)
    only = Site({"gpu1": site.engines["gpu1"]}, site.caches, [])
    only.bring(from_here(image))
    image.given = 0
    assert site.bring(from_first(site)) == 2
    assert site.layers() == {image.content.diff_ids}
    assert image.given == 0, "nothing passes through the operator's machine"
    assert not (site.caches / "saved").exists()
    assert site.bring(from_first(site)) == 0


def test_a_run_that_was_cut_short_before_the_name_was_given_converges(site: Site) -> None:
    image = made_image(*FIRST, packed=True)
    site.bring(from_here(image))
    left = f"127.0.0.1:4711/{'ab' * 16}/layered:1"
    site.engines["gpu1"].docker("tag", REFERENCE, left)
    site.engines["gpu3"].docker("tag", REFERENCE, left)
    site.engines["gpu3"].docker("rmi", REFERENCE)
    assert len(site.plan(from_here(image))) == 2
    assert site.bring(from_here(image)) == 2
    assert all(site.tags(name) == {REFERENCE} for name in site.engines)
