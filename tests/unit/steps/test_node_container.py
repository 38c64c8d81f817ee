"""The node container: whose it is, why it is replaced, and whether it lives."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.containers.spec import ContainerSpec
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.inventory.model import Gpu
from clusterctl.steps.gpus_in_image import without_gpus
from clusterctl.steps.node_container import ContainersAbsent, NodeContainer
from clusterctl.steps.node_image import NodeImageMissing
from tests.fakes.container_engine import foreign
from tests.fakes.host_facts import gpus
from tests.unit.steps.stage import Cluster, cluster, facts, spec


@pytest.fixture
def made() -> Cluster:
    return cluster()


def step(made: Cluster, command: str = "node") -> NodeContainer:
    return NodeContainer("demo", lambda _: spec(made, command=command), made.engines, settle=0)


def start(made: Cluster, command: str = "node") -> HostView:
    step(made, command).apply(made.head_view, Change(""))
    return made.head_view


def test_the_first_start_disrupts_nothing(made: Cluster) -> None:
    assert step(made).check(made.head_view) == Change("start clusterctl-demo")


def test_a_running_one_that_differs_is_replaced_and_the_plan_says_why(made: Cluster) -> None:
    view = start(made, "old")
    change = step(made).check(view)
    assert change == Change("replace clusterctl-demo: command: old -> node", disruptive=True)


def test_a_running_one_whose_new_image_is_still_to_come_is_replaced_with_consent(
    made: Cluster,
) -> None:
    def no_image(view: HostView) -> ContainerSpec:
        raise NodeImageMissing("the node image is not on this host yet", host=view.host.name)

    waiting = NodeContainer("demo", no_image, made.engines, settle=0)
    with pytest.raises(NodeImageMissing):  # unknown, with nothing to stop
        waiting.check(made.head_view)
    start(made)
    assert waiting.check(made.head_view) == Change(
        "replace clusterctl-demo: the node image is not on this host yet", disruptive=True
    )


def test_a_stopped_one_that_differs_disrupts_nothing(made: Cluster) -> None:
    view = start(made, "old")
    for container in made.engines(view).containers("demo"):
        made.engines(view).stop(container.id, 1)
    change = step(made).check(view)
    assert change is not None
    assert not change.disruptive


def test_a_stopped_one_is_started_not_made_anew(made: Cluster) -> None:
    view = start(made)
    (before,) = made.engines(view).containers("demo")
    made.engines(view).stop(before.id, 1)
    assert step(made).check(view) == Change("start clusterctl-demo again")
    start(made)
    assert [container.id for container in made.engines(view).containers("demo")] == [before.id]


def test_one_that_lost_its_gpus_is_made_anew(made: Cluster) -> None:
    """As `systemctl daemon-reload` does it to those started by the toolkit's classic mode."""
    promised = made.head_view.host.model_copy(update={"gpus": (Gpu(),)})
    view = replace(made.head_view, host=promised, facts=replace(facts(), gpus=gpus(1)))
    wanted = replace(spec(made), all_gpus=True)
    step = NodeContainer("demo", lambda _: wanted, made.engines, why_anew=without_gpus, settle=0)
    step.apply(view, Change(""))
    assert step.check(view) is None
    (before,) = made.engines(view).containers("demo")
    made.head.engine.gpus_inside[before.id] = "Failed to initialize NVML: Unknown Error"
    change = step.check(view)
    assert change == Change(
        "replace clusterctl-demo: its GPUs are gone: Failed to initialize NVML: Unknown Error",
        disruptive=True,
    )
    step.apply(view, change)
    assert step.check(view) is None
    (after,) = made.engines(view).containers("demo")
    assert after.id != before.id


@pytest.mark.parametrize(
    ("labels", "whose"),
    [({}, "is not clusterctl's"), ({"cluster": "other"}, "belongs to cluster other")],
)
def test_somebody_elses_container_of_that_name_is_not_touched(
    made: Cluster, labels: dict[str, str], whose: str
) -> None:
    theirs = foreign("clusterctl-demo", **labels)
    made.head.engine.containers[theirs.id] = theirs
    with pytest.raises(RequirementsNotMet, match=whose) as raised:
        step(made).check(made.head_view)
    assert "docker rename clusterctl-demo" in str(raised.value.hint)
    assert made.head.engine.containers == {theirs.id: theirs}


def test_somebody_elses_container_is_told_before_there_is_an_image(made: Cluster) -> None:
    theirs = foreign("clusterctl-demo")
    made.head.engine.containers[theirs.id] = theirs

    def no_image(_: HostView) -> ContainerSpec:
        raise StepFailed("the image is not there")

    with pytest.raises(RequirementsNotMet, match="is not clusterctl's"):
        NodeContainer("demo", no_image, made.engines, settle=0).check(made.head_view)


def test_one_that_dies_at_once_is_told_with_its_last_words(made: Cluster) -> None:
    made.head.engine.dies_at_once = True
    with pytest.raises(StepFailed, match="gpu1: clusterctl-demo ended with status 1") as raised:
        start(made)
    assert "last words" in str(raised.value.detail)


def test_absence_spares_the_containers_of_others(made: Cluster) -> None:
    view = start(made)
    theirs = foreign("clusterctl-other", cluster="other")
    made.head.engine.containers[theirs.id] = theirs
    ContainersAbsent("demo", made.engines).apply(view, Change(""))
    assert made.head.engine.containers == {theirs.id: theirs}
