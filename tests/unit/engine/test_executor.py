"""Execution: order, barriers, failure policies, asking to stop."""

from __future__ import annotations

import threading

import pytest

from clusterctl.engine.events import (
    HostSetAside,
    StageFinished,
    StageStarted,
    StepBroke,
    StepFinished,
    StepProgress,
    StepStarted,
)
from clusterctl.engine.executor import execute
from clusterctl.engine.plan import OnFailure, Stage
from clusterctl.engine.step import HostView, Unknown
from clusterctl.errors import ConnectionFailed, Interrupted, Problems, StepFailed, Unreachable
from clusterctl.transport.fanout import LIMIT
from tests.unit.engine.switch import Record, Switch, views

HOSTS = ("gpu1", "gpu2")
WAIT = 60.0
"""Seconds after which a test that waits for a thread has failed."""


def failing_on(*names: str) -> Switch:
    def refuse(view: HostView) -> None:
        if view.host.name in names:
            raise StepFailed("disk is full")

    return Switch("refuses", on_apply=refuse)


def test_every_step_is_applied_once_on_every_host_and_counted() -> None:
    step = Switch()
    outcome = execute([Stage("Engine", HOSTS, (step,))], views(*HOSTS), Record())
    assert sorted(step.applied) == ["gpu1", "gpu2"]
    assert outcome.changed == 2


def test_a_second_run_changes_nothing() -> None:
    stages = [Stage("Engine", HOSTS, (Switch(), Switch("other")))]
    execute(stages, views(*HOSTS), Record())
    assert execute(stages, views(*HOSTS), Record()).changed == 0


def test_events_tell_the_story_in_order() -> None:
    record = Record()
    step = Switch(on_apply=lambda view: view.say("half way"))
    execute([Stage("Engine", ("gpu1",), (step, Switch(on={"gpu1"})))], views("gpu1"), record)
    assert [type(event) for event in record.events] == [
        StageStarted,
        StepStarted,
        StepProgress,
        StepFinished,
        StepFinished,
        StageFinished,
    ]
    finished = [event for event in record.events if isinstance(event, StepFinished)]
    assert [event.outcome for event in finished] == ["changed", "unchanged"]


def test_a_change_that_does_not_take_effect_is_an_error() -> None:
    with pytest.raises(StepFailed, match="had no effect"):
        execute([Stage("Engine", ("gpu1",), (Switch(sticks=False),))], views("gpu1"), Record())


def test_what_is_still_unknown_when_its_turn_comes_is_an_error() -> None:
    step = Switch(on_check=lambda _: Unknown("no image on the head"))
    with pytest.raises(StepFailed, match="no image on the head"):
        execute([Stage("Image", ("gpu1",), (step,))], views("gpu1"), Record())


def test_all_hosts_of_a_stage_run_at_the_same_time() -> None:
    """However many: what passes through all of them would pass again for those that begin later."""
    hosts = tuple(f"gpu{number}" for number in range(LIMIT + 1))
    together = threading.Barrier(len(hosts), timeout=WAIT)

    def meet(_: HostView) -> None:
        together.wait()

    step = Switch(on_apply=meet)
    assert execute([Stage("Engine", hosts, (step,))], views(*hosts), Record()).changed == len(hosts)


def test_a_slow_host_holds_back_the_next_stage() -> None:
    """gpu1 is let go only when gpu2 has come to the end of the stage."""
    fast_done, order = threading.Event(), []

    def first(view: HostView) -> None:
        if view.host.name == "gpu1":
            assert fast_done.wait(WAIT)
        order.append("first")

    def after(view: HostView) -> None:
        if view.host.name == "gpu2":
            fast_done.set()

    stages = [
        Stage("One", HOSTS, (Switch("a", on_apply=first), Switch("b", on_apply=after))),
        Stage("Two", HOSTS, (Switch("c", on_apply=lambda _: order.append("second")),)),
    ]
    execute(stages, views(*HOSTS), Record())
    assert order == ["first", "first", "second", "second"]


def test_stop_lets_other_hosts_finish_the_stage_and_begins_no_other() -> None:
    last, next_stage = Switch("last"), Switch("next")
    stages = [
        Stage("One", HOSTS, (failing_on("gpu1"), last)),
        Stage("Two", HOSTS, (next_stage,)),
    ]
    with pytest.raises(StepFailed, match="gpu1: disk is full"):
        execute(stages, views(*HOSTS), Record())
    assert last.applied == ["gpu2"]
    assert next_stage.applied == []


def test_the_errors_of_all_hosts_come_together() -> None:
    record = Record()
    with pytest.raises(Problems) as raised:
        execute([Stage("One", HOSTS, (failing_on(*HOSTS),))], views(*HOSTS), record)
    assert {error.host for error in raised.value.errors} == set(HOSTS)
    assert len(record.of(StepBroke)) == 2


def test_a_host_set_aside_misses_the_later_stages_only() -> None:
    record, later = Record(), Switch("later")
    stages = [
        Stage("Workers", HOSTS, (failing_on("gpu2"),), OnFailure.SET_HOST_ASIDE),
        Stage("Later", HOSTS, (later,)),
    ]
    outcome = execute(stages, views(*HOSTS), record)
    assert later.applied == ["gpu1"]
    assert set(outcome.set_aside) == {"gpu2"}
    assert record.of(HostSetAside) == [HostSetAside("gpu2", "disk is full")]


def test_a_host_that_goes_down_while_checked_is_named() -> None:
    def gone(view: HostView) -> None:
        raise Unreachable("connection lost")

    step = Switch(on_check=gone)
    with pytest.raises(Unreachable, match="gpu1: connection lost"):
        execute([Stage("One", ("gpu1",), (step,))], views("gpu1"), Record())


def test_asking_to_stop_finishes_the_running_apply_and_begins_nothing() -> None:
    cancelled = threading.Event()
    running = Switch("running", on_apply=lambda _: cancelled.set())
    never = Switch("never")
    with pytest.raises(Interrupted, match="never"):
        execute(
            [Stage("One", ("gpu1",), (running, never))],
            views("gpu1"),
            Record(),
            cancelled=cancelled,
        )
    assert running.on == {"gpu1"}
    assert never.applied == []


def test_asking_to_stop_in_the_last_step_is_too_late() -> None:
    cancelled = threading.Event()
    step = Switch(on_apply=lambda _: cancelled.set())
    stages = [Stage("One", ("gpu1",), (step,))]
    assert execute(stages, views("gpu1"), Record(), cancelled=cancelled).changed == 1


def test_asking_to_stop_keeps_the_errors_that_came_before() -> None:
    cancelled = threading.Event()

    def refuse_and_stop(view: HostView) -> None:
        if view.host.name == "gpu1":
            cancelled.set()
            raise StepFailed("disk is full")
        assert cancelled.wait(WAIT)

    steps = (Switch(on_apply=refuse_and_stop), Switch("never"))
    with pytest.raises(Problems) as raised:
        execute([Stage("One", HOSTS, steps)], views(*HOSTS), Record(), cancelled=cancelled)
    assert {type(error) for error in raised.value.errors} == {StepFailed, Interrupted}


def test_a_run_after_an_interrupted_one_does_the_rest() -> None:
    cancelled = threading.Event()
    first, second = Switch("a", on_apply=lambda _: cancelled.set()), Switch("b")
    stages = [Stage("One", ("gpu1",), (first, second))]
    with pytest.raises(Interrupted):
        execute(stages, views("gpu1"), Record(), cancelled=cancelled)
    assert execute(stages, views("gpu1"), Record()).changed == 1


def test_a_bug_is_not_taken_for_a_failed_step() -> None:
    def bug(view: HostView) -> None:
        raise ZeroDivisionError

    stages = [Stage("One", ("gpu1",), (Switch(on_apply=bug),), OnFailure.SET_HOST_ASIDE)]
    with pytest.raises(ZeroDivisionError):
        execute(stages, views("gpu1"), Record())


def test_a_stage_without_hosts_says_nothing() -> None:
    record = Record()
    execute([Stage("Workers", (), (Switch(),))], views("gpu1"), record)
    assert record.events == []


def test_a_lock_lost_on_the_way_ends_the_run_before_the_next_change() -> None:
    first, second = Switch("first"), Switch("second")
    lost = ConnectionFailed("the lock was lost", host="gpu1")

    def ensure_held() -> None:
        if len(first.applied) == len(HOSTS):
            raise lost

    stages = [Stage("First", HOSTS, (first,)), Stage("Second", HOSTS, (second,))]
    with pytest.raises(ConnectionFailed, match="gpu1: the lock was lost"):  # once for both hosts
        execute(stages, views(*HOSTS), Record(), before_change=ensure_held)
    assert (len(first.applied), second.applied) == (2, [])


def test_a_lock_lost_within_a_stage_ends_it_there() -> None:
    first, second = Switch("first"), Switch("second")

    def ensure_held() -> None:
        if first.applied:
            raise ConnectionFailed("the lock was lost", host="gpu1")

    with pytest.raises(ConnectionFailed, match="the lock was lost"):
        execute(
            [Stage("Both", ("gpu1",), (first, second))],
            views("gpu1"),
            Record(),
            before_change=ensure_held,
        )
    assert (first.applied, second.applied) == (["gpu1"], [])
