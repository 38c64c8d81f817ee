"""Planning looks at every host, changes none, and keeps the order of stages and hosts."""

from __future__ import annotations

import pytest

from clusterctl.engine.plan import OnFailure, Plan, Stage, plan, plan_apart
from clusterctl.engine.step import Change, HostView, Unknown
from clusterctl.errors import Problems, RequirementsNotMet, StepFailed
from tests.unit.engine.switch import Switch, views

HOSTS = ("gpu1", "gpu2")


def lines(found: Plan) -> list[tuple[str, str, str]]:
    return [(line.stage, line.host, line.step) for line in found.changes]


def test_nothing_to_do_is_an_empty_plan() -> None:
    step = Switch(on={"gpu1", "gpu2"})
    assert plan([Stage("Engine", HOSTS, (step,))], views(*HOSTS)).empty


def test_lines_come_by_stage_then_host_then_step() -> None:
    engine = Stage("Engine", HOSTS, (Switch("a"), Switch("b", on={"gpu2"})))
    head = Stage("Head", ("gpu2",), (Switch("c"),))
    assert lines(plan([engine, head], views("gpu2", "gpu1"))) == [
        ("Engine", "gpu1", "a"),
        ("Engine", "gpu1", "b"),
        ("Engine", "gpu2", "a"),
        ("Head", "gpu2", "c"),
    ]


def test_planning_applies_nothing() -> None:
    step = Switch()
    plan([Stage("Engine", HOSTS, (step,))], views(*HOSTS))
    assert step.applied == []


def test_a_host_named_by_no_stage_is_left_alone() -> None:
    assert plan([Stage("Engine", ("gpu1",), (Switch(on={"gpu1"}),))], views(*HOSTS)).empty


def fails(view: HostView) -> Change | None:
    raise StepFailed("the engine is not running")


def test_a_look_that_fails_behind_a_pending_change_is_unknown() -> None:
    stages = [Stage("Engine", ("gpu1",), (Switch("install"), Switch("image", on_check=fails)))]
    found = plan(stages, views("gpu1")).changes[1].change
    assert found == Unknown("the engine is not running")


def test_a_look_that_fails_with_nothing_pending_is_an_error() -> None:
    stages = [Stage("Engine", ("gpu1",), (Switch(on={"gpu1"}), Switch(on_check=fails)))]
    with pytest.raises(StepFailed, match="gpu1: the engine is not running"):
        plan(stages, views("gpu1"))


def test_a_requirement_is_an_error_even_behind_a_pending_change() -> None:
    def never(view: HostView) -> Change | None:
        raise RequirementsNotMet("no NVIDIA driver")

    stages = [Stage("Engine", ("gpu1",), (Switch(), Switch(on_check=never)))]
    with pytest.raises(RequirementsNotMet):
        plan(stages, views("gpu1"))


def test_the_errors_of_all_hosts_come_together() -> None:
    with pytest.raises(Problems) as raised:
        plan([Stage("Engine", HOSTS, (Switch(on_check=fails),))], views(*HOSTS))
    assert {error.host for error in raised.value.errors} == {"gpu1", "gpu2"}


def test_disruptive_changes_are_told_apart() -> None:
    restart = Switch(on_check=lambda _: Change("restart", disruptive=True))
    found = plan([Stage("Node", ("gpu1",), (Switch(), restart))], views("gpu1"))
    assert [line.change for line in found.disruptive] == [Change("restart", disruptive=True)]


def test_a_bug_in_a_check_is_not_dressed_up() -> None:
    def bug(view: HostView) -> Change | None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        plan([Stage("Engine", ("gpu1",), (Switch(on_check=bug),))], views("gpu1"))


def fails_on_gpu2(view: HostView) -> Change | None:
    if view.host.name == "gpu2":
        raise StepFailed("the engine is not running")
    return Change("remove it")


def test_a_host_that_cannot_be_looked_at_does_not_keep_the_others_from_a_plan() -> None:
    aside = OnFailure.SET_HOST_ASIDE
    step = Switch(on_check=fails_on_gpu2)
    found = plan_apart([Stage("Down", HOSTS, (step,), aside)], views(*HOSTS))
    assert lines(found.plan) == [("Down", "gpu1", "switch")]
    assert [str(error) for error in found.set_aside.values()] == ["gpu2: the engine is not running"]


def test_a_stage_that_stops_for_a_failed_host_is_not_planned_without_it() -> None:
    with pytest.raises(StepFailed, match="gpu2"):
        plan_apart([Stage("Up", HOSTS, (Switch(on_check=fails_on_gpu2),))], views(*HOSTS))
