"""Workers that `bootstrap` changes one at a time, while other replicas serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pytest

from clusterctl import deadlines
from clusterctl.engine.events import Note
from clusterctl.engine.executor import execute
from clusterctl.engine.plan import Stage, plan
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed
from clusterctl.inventory.model import GatewayAccess, Inventory
from clusterctl.node.documents import GatewayState, NodeState, declared_dir, from_json
from clusterctl.operations import rolling
from clusterctl.operations.rolling import LeaveGateway, ReturnToGateway, Rolling, left_out, spares
from clusterctl.serving import rollout
from clusterctl.survey.cluster import Cluster, topology_of
from clusterctl.survey.survey import Survey
from clusterctl.transport.fanout import Failed
from clusterctl.transport.lock import ClusterLock
from tests.fakes.transport import starts
from tests.unit.serving.test_rolling_changes import HOSTS, MEMBERS, World, document

WORKERS = ("gpu2", "gpu3")


@dataclass
class Replaced:
    """Step: each host has its change once."""

    world: World
    disruptive: bool = True
    done: set[str] = field(default_factory=set)
    title = "node container"

    def check(self, view: HostView) -> Change | None:
        if view.host.name in self.done:
            return None
        return Change("replace it", disruptive=self.disruptive)

    def apply(self, view: HostView, change: Change) -> None:
        del change
        self.world.story.append(f"replace {view.host.name}")
        self.done.add(view.host.name)


class Bootstrap(Protocol):
    def __call__(self, world: World, step: Replaced, old: Replaced | None = None) -> None: ...


@pytest.fixture
def bootstrap(monkeypatch: pytest.MonkeyPatch) -> Bootstrap:
    """Runs the stages of workers, as `bootstrap` does."""

    def proven(planned: Any, *_: Any) -> str:
        return str(planned.document.name)

    monkeypatch.setattr(rollout, "prove", proven)
    monkeypatch.setattr(deadlines, "GATEWAY_NOTICE", 0.0)
    monkeypatch.setattr(ClusterLock, "ensure_held", lambda _: None)

    def run(world: World, step: Replaced, old: Replaced | None = None) -> None:
        cluster = cluster_of(world)
        monkeypatch.setattr(rolling, "take_survey", lambda *_: world.survey())
        for transport in world.transports.values():
            transport.on(starts("date"), stdout="0\n")  # before the supervisor's report
        with ClusterLock(world.transports["gpu1"], "demo", "bootstrap") as lock:
            stages = []
            for name in WORKERS:
                own = Rolling(cluster, (name,), lock, world.events.append, old)
                around = (LeaveGateway(own, (step,)), *own.around((step,)), ReturnToGateway(own))
                if own.spared:
                    stages.append(Stage(name, (name,), around))
                elif name in left_out(cluster.survey):
                    stages.append(Stage(name, (name,), (step, ReturnToGateway(own))))
            assert not plan(stages, cluster.views).disruptive
            execute(stages, cluster.views, world.events.append)

    return run


def cluster_of(world: World) -> Cluster:
    survey = world.survey()
    return Cluster(survey, topology_of(survey), survey.views, HOSTS)


def test_each_worker_has_its_turn_when_the_replicas_before_it_serve_again(
    bootstrap: Bootstrap,
) -> None:
    world = World(document(1), document(2), document(3))
    bootstrap(world, Replaced(world))
    assert world.story == [
        "1 2- 3", "replace gpu2", "1 2 3",
        "1 2 3-", "replace gpu3", "1 2 3",
    ]  # fmt: skip


def test_where_nothing_differs_nothing_is_written(bootstrap: Bootstrap) -> None:
    world = World(document(1), document(2), document(3))
    bootstrap(world, Replaced(world, done={*WORKERS}))
    assert world.story == []


def test_no_replica_leaves_for_a_change_that_interrupts_nothing(bootstrap: Bootstrap) -> None:
    world = World(document(1), document(2))
    bootstrap(world, Replaced(world, disruptive=False))
    assert world.story == ["replace gpu2"]


def test_the_next_worker_is_not_touched_when_one_does_not_come_back(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(document(1), document(2), document(3))

    def prove(planned: Any, *_: Any) -> str:
        raise StepFailed(f"{planned.document.name} gives no answer")

    monkeypatch.setattr(rollout, "prove", prove)
    step = Replaced(world)
    with pytest.raises(ClusterctlError, match="tiny@2 gives no answer"):
        bootstrap(world, step)
    assert world.story == ["1 2- 3", "replace gpu2"]

    monkeypatch.setattr(rollout, "prove", lambda planned, *_: str(planned.document.name))
    bootstrap(world, step)
    assert world.story[2:] == ["1 2 3", "1 2 3-", "replace gpu3", "1 2 3"]


@pytest.mark.parametrize(
    ("declared", "spared"),
    [
        ((document(1), document(2)), True),
        ((document(2),), False),
        ((document(1),), False),
        ((document(1), document(2), replace(document(1), name="big", node_ips=[])), False),
    ],
    ids=["another replica", "alone", "none there", "a service that needs all nodes"],
)
def test_which_workers_are_spared(declared: tuple[Any, ...], spared: bool) -> None:
    assert spares(cluster_of(World(*declared)), ["gpu2"]) is spared


def test_replicas_that_are_not_ready_spare_nobody() -> None:
    world = World(document(1, "bad"), document(2), broken="bad")
    assert not spares(cluster_of(world), ["gpu2"])


def test_a_worker_is_left_alone_when_the_others_fail_before_its_turn(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(document(1, "bad"), document(2))
    monkeypatch.setattr(World, "survey", _first_as_if_all_were_ready(World.survey))
    with pytest.raises(ClusterctlError, match="no other replica of its services is ready now"):
        bootstrap(world, Replaced(world))
    assert world.story == []


def _first_as_if_all_were_ready(survey: Callable[[World], Survey]) -> Callable[[World], Survey]:
    looks = iter(["", *["bad"] * 9])

    def look(world: World) -> Survey:
        world.broken = next(looks)
        return survey(world)

    return look


def test_a_host_whose_new_image_does_not_serve_gets_its_old_one_back(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(document(1), document(2), document(3))
    old = Replaced(world)
    step = Replaced(world)

    def prove(planned: Any, *_: Any) -> str:
        if "gpu2" in step.done and "gpu2" not in old.done:
            raise StepFailed(f"{planned.document.name} gives no answer")
        return str(planned.document.name)

    monkeypatch.setattr(rollout, "prove", prove)
    with pytest.raises(ClusterctlError) as error:
        bootstrap(world, step, old)
    assert str(error.value).endswith(
        "tiny@2 gives no answer; gpu2 is back on the image of before, and serves"
    )
    assert world.story == ["1 2- 3", "replace gpu2", "replace gpu2", "1 2 3"]


class Story(list[str]):
    """What a run wrote, up to the line after which it is killed."""

    killed_after = ""

    def append(self, line: str) -> None:
        super().append(line)
        if line == self.killed_after:
            raise Killed


class Killed(Exception):
    pass


@pytest.mark.parametrize("stage", ["1 2- 3", "replace gpu2", "1 2 3", "1 2 3-", "replace gpu3"])
def test_a_run_killed_at_any_stage_is_ended_by_the_next_one(
    bootstrap: Bootstrap, stage: str
) -> None:
    world = World(document(1), document(2), document(3))
    world.story = story = Story()
    step = Replaced(world)
    story.killed_after = stage
    with pytest.raises(Killed):
        bootstrap(world, step)

    story.killed_after = ""
    bootstrap(world, step)
    assert step.done == set(WORKERS)
    assert story[-1] == "1 2 3"
    assert all(line.count("-") <= 1 for line in story), "the others serve at any moment"


def test_a_worker_that_is_away_keeps_none_of_the_others_from_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(document(1), document(2))
    survey = World.survey

    def without_the_third(world: World) -> Survey:
        found = survey(world)
        away = Failed(ConnectionFailed("timed out", host="gpu3"))
        return replace(found, outcomes={**found.outcomes, "gpu3": away})

    topology = topology_of(world.survey())
    monkeypatch.setattr(World, "survey", without_the_third)
    found = world.survey()
    cluster = Cluster(found, topology, found.views, ("gpu1", "gpu2"))
    assert spares(cluster, ["gpu2"])
    rolling_host = Rolling(cluster, ("gpu2",), None, world.events.append)
    monkeypatch.setattr(rolling, "take_survey", lambda *_: world.survey())
    assert spares(rolling_host.now(), ["gpu2"])
    with pytest.raises(ConnectionFailed):
        replace(rolling_host, cluster=replace(cluster, held=HOSTS)).now()


def test_what_the_gateways_made_of_requests_is_told_after_each_turn(
    bootstrap: Bootstrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(document(1), document(2))
    counts = GatewayState("up", served=1_000, failed=3)

    def now(inventory: Inventory, transports: Any) -> dict[str, NodeState | None]:
        del inventory, transports
        state = from_json(NodeState, world.state("gpu1"))
        return {"gpu1": replace(state, gateway=counts), "gpu2": None}

    monkeypatch.setattr(rolling, "gateway_states", now)
    bootstrap(world, Replaced(world))
    assert Note("3 of 1,003 requests failed meanwhile", "gpu2") in world.events

    own = Rolling(cluster_of(world), ("gpu2",), None, world.events.append)
    counts = GatewayState("up")
    assert own.answered() == "", "nobody asked"


def test_a_damaged_list_of_members_is_nobody_to_wait_for(bootstrap: Bootstrap) -> None:
    world = World(document(1), document(2))
    copy = f"{declared_dir('demo')}/members/tiny.json"
    world.files["gpu1"] |= {MEMBERS: b"{", copy: world.files["gpu1"][MEMBERS]}
    step = Replaced(world)
    bootstrap(world, step)
    assert world.story == ["replace gpu2"]


def test_a_worker_with_a_gateway_interrupts_the_clients_of_that() -> None:
    world = World(document(1), document(2))
    cluster = cluster_of(world)
    doors = GatewayAccess(hosts=("gpu2",))
    inventory = cluster.inventory.model_copy(update={"gateway": doors})
    cluster = replace(cluster, survey=replace(cluster.survey, inventory=inventory))
    steps = Rolling(cluster, ("gpu2",), None, world.events.append).around((Replaced(world),))
    assert plan([Stage("gpu2", ("gpu2",), steps)], cluster.views).disruptive
