"""Which hosts another image, or another container of the head, is given to one after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.containers.spec import CLUSTER_LABEL
from clusterctl.engine.plan import Stage
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.facts.model import ContainerFacts
from clusterctl.node.documents import Member, NodeState, ServiceDocument, from_json, to_json
from clusterctl.operations.roll import Roll, why_not_beside
from clusterctl.operations.rolling import groups
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_image import Contents, NodeImageMissing
from clusterctl.survey.cluster import Cluster, topology_of
from clusterctl.survey.taking_over import TakeOver
from tests.fakes.host import fake_driver
from tests.unit.serving.test_rolling_changes import HOSTS, PATHS, World, document

SPANNING = replace(document(2), node_ips=["10.0.0.2", "10.0.0.3"], tensor_parallel=2, gpus=2)
SAME = Contents("2.60.0", "0.33.0", python="3.12.9")


@dataclass
class Node:
    """Step: the containers of these hosts are replaced."""

    hosts: tuple[str, ...] = HOSTS
    title = "node container"

    def check(self, view: HostView) -> Change | None:
        return Change("replace it", disruptive=True) if view.host.name in self.hosts else None

    def apply(self, view: HostView, change: Change) -> None:
        raise NotImplementedError


@dataclass
class Given:
    """The image that is wanted, and the hosts that have it."""

    found: Contents | None = SAME
    hosts: tuple[str, ...] = HOSTS

    def on(self, view: HostView) -> Any:
        if view.host.name not in self.hosts:
            raise NodeImageMissing("not here")
        return SimpleNamespace(id="new")

    def contents(self) -> Contents | None:
        return self.found


@dataclass
class Site:
    """Three hosts whose containers have an image, and services."""

    declared: tuple[ServiceDocument, ...] = (document(1), document(2), document(3))
    image: str = "old"
    keeps_tables: bool = True
    vllm: str = "0.33.0"
    names: tuple[str, ...] = HOSTS
    given: Given = field(default_factory=Given)
    changed: tuple[str, ...] = HOSTS
    taking_over: TakeOver | None = None

    @property
    def roll(self) -> Roll:
        survey = World(*self.declared).survey()
        for name, answer in survey.answers.items():
            labels = {CLUSTER_LABEL: "demo"}
            ours = ContainerFacts("1", "clusterctl-demo", self.image, labels, "running", 0, "", 0)
            state = from_json(NodeState, (answer.files[str(PATHS.state)] or b"").decode())
            state = replace(
                state,
                keeps_tables=self.keeps_tables,
                ray_version="2.60.0",
                python_version="3.12.1",
                vllm_version=self.vllm,
            )
            files = {**answer.files, str(PATHS.state): to_json(state).encode()}
            object.__setattr__(
                survey.outcomes[name], "value", replace(answer, files=files, containers=(ours,))
            )
        survey = replace(survey, taking_over=self.taking_over)
        cluster = Cluster(survey, topology_of(survey), survey.views, HOSTS)
        image, steps = self.given, [Node(self.changed)]
        given: Any = image
        engines = Engines(fake_driver)
        return Roll(cluster, self.names, given, engines, steps, None, lambda _: None)

    @property
    def turns(self) -> list[tuple[str, ...]]:
        return [turn.hosts for turn in self.roll.turns]


def test_another_image_comes_to_each_host_in_turn_and_to_the_head_last() -> None:
    site = Site()
    assert site.turns == [("gpu2",), ("gpu3",), ("gpu1",)]
    assert list(site.roll.notes()) == [
        "another image, host after host: gpu2, gpu3, gpu1",
        "tiny (3 replicas) serves throughout",
        "clients of the gateway on gpu1 are cut off while it restarts",
    ]
    assert all(turn.old for turn in site.roll.turns), "each of them can go back"


def test_hosts_of_one_replica_change_together() -> None:
    site = Site((document(1), SPANNING))
    assert site.turns == [("gpu2", "gpu3"), ("gpu1",)]
    stages: list[Stage] = site.roll.stages()
    assert [(stage.title, stage.hosts) for stage in stages] == [
        ("Replicas on gpu2, gpu3, turn 1 of 2", ("gpu2",)),
        ("Ray on gpu2, gpu3, turn 1 of 2", ("gpu2", "gpu3")),
        ("Replicas on gpu2, gpu3, turn 1 of 2 again", ("gpu2",)),
        ("Ray on gpu1, turn 2 of 2", ("gpu1",)),
    ]


def test_replicas_that_share_hosts_are_one_group() -> None:
    beside = replace(document(3), node_ips=["10.0.0.3", "10.0.0.1"])
    cluster = Site((SPANNING, beside)).roll.cluster
    assert groups(cluster, HOSTS) == [("gpu1", "gpu2", "gpu3")]
    assert groups(cluster, ("gpu2",)) == [("gpu2",)]


def test_one_replica_is_away_in_its_turn_and_others_serve() -> None:
    alone = replace(document(2), name="embed", replica=1)
    site = Site((document(1), document(3), alone))
    assert "embed (1 replica) is away until vLLM is ready again" in list(site.roll.notes())
    assert [turn.spared for turn in site.roll.turns] == [False, True, True]


def test_one_host_may_try_it() -> None:
    assert Site(names=("gpu3",)).turns == [("gpu3",)]


def test_a_replica_is_not_torn_apart() -> None:
    with pytest.raises(RequirementsNotMet, match="have ranks on gpu2,gpu3") as error:
        _ = Site((document(1), SPANNING), names=("gpu3",)).turns
    assert "--limit gpu2,gpu3" in (error.value.hint or "")


@pytest.mark.parametrize(
    ("site", "why"),
    [
        (Site(keeps_tables=False), "keeps its tables in memory"),
        (Site(given=Given(Contents("2.61.0", None, python="3.12.9"))), "it has Ray 2.61.0"),
        (Site(given=Given(Contents("2.60.0", None, python="3.13.0"))), "it has Python 3.13.0"),
        (
            Site((document(1), replace(document(2), node_ips=[]))),
            "declared tiny@2, which needs all",
        ),
    ],
)
def test_where_it_cannot_be_all_services_stop_and_the_plan_says_why(site: Site, why: str) -> None:
    assert site.turns == []
    (note,) = site.roll.notes()
    assert note.startswith("another image, for which all services stop: ")
    assert why in note
    with pytest.raises(RequirementsNotMet, match="cannot be tried on gpu3 alone"):
        _ = replace(site, names=("gpu3",)).turns


def test_what_was_not_known_before_the_image_came_stops_the_run_before_a_change() -> None:
    site = Site(given=Given(None, hosts=()))
    assert site.turns == [("gpu2",), ("gpu3",), ("gpu1",)]
    site.roll.require_same_ray()

    site.given = Given(Contents("2.61.0", None, python="3.12.9"))
    with pytest.raises(RequirementsNotMet, match="nothing that runs was changed"):
        site.roll.require_same_ray()


@pytest.mark.parametrize("keeps_tables", [True, False])
def test_a_head_that_comes_back_as_itself_stops_nobody_else(*, keeps_tables: bool) -> None:
    site = Site(image="new", changed=("gpu1",), keeps_tables=keeps_tables)
    assert ("gpu1",) in site.turns if keeps_tables else site.turns == []
    assert list(site.roll.notes()) == []


LOST = TakeOver("gpu9", "gpu3", 600.0, {}, (), {"tiny": (Member(4, "gpu9", "10.0.0.9", 8100),)})


def test_another_head_is_there_before_the_others_join_its_ray() -> None:
    site = Site(image="new", taking_over=LOST)
    assert site.turns == [("gpu1",), ("gpu2",), ("gpu3",)]
    (first, *_) = site.roll.stages()
    assert [type(step).__name__ for step in first.steps] == ["EndGracefully", "ThenProven"]
    notes = list(site.roll.notes())
    assert notes[0] == ("gpu1 becomes the head in place of gpu9, by gpu3's copy of 10 minutes ago")
    assert "lost with gpu9" in notes[1]
    assert "clusterctl scale tiny 4" in notes[3]
    assert "tiny (3 replicas) serves throughout" in notes


@pytest.mark.parametrize(
    ("site", "what"),
    [
        (Site(taking_over=LOST), "before you give it another image"),
        (Site(image="new", names=("gpu1",), taking_over=LOST), "before you leave hosts out"),
    ],
)
def test_another_head_comes_with_no_other_change(site: Site, what: str) -> None:
    with pytest.raises(RequirementsNotMet, match=what):
        _ = site.turns


def test_a_flag_that_the_new_release_lacks_stops_it_before_anything_changes() -> None:
    gone = replace(document(2), argv=["vllm", "serve", "/m", "--calculate-kv-scales"])
    site = Site((document(1), gone), vllm="0.25.1")
    with pytest.raises(UsageError, match=r"--calculate-kv-scales \(of tiny\) does not"):
        _ = site.roll.turns

    site.given = Given(None, hosts=())  # Its tag says no release
    assert len(site.turns) == 2
    site.given = Given(replace(SAME, vllm="0.33.0"))
    with pytest.raises(UsageError, match=r"vLLM 0\.33\.0"):
        site.roll.require_starts()


def test_unknown_releases_are_no_reason() -> None:
    state = NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0, ray_version="2.60.0")
    assert why_not_beside(None, state) == ""
    assert why_not_beside(Contents(None, None), state) == ""
