"""Following a service: states in, events and errors out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from clusterctl.deadlines import Wait
from clusterctl.engine.events import Event, Note, StepFinished, StepProgress, StepStarted
from clusterctl.errors import (
    AuthenticationRejected,
    CommandTimedOut,
    RayNotFormed,
    StepFailed,
    Unreachable,
)
from clusterctl.node.documents import IN_TURN, NodeState, ServiceDocument, ServiceState
from clusterctl.serving.declaration import ContactLost, PatientReader, StageEvents, await_ready

DOCUMENT = ServiceDocument(
    name="tiny", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8000, tensor_parallel=2, pipeline_parallel=1, gpus=2, fingerprint="new",
)  # fmt: skip


def node(state: str, *, fingerprint: str = "new", **more: object) -> NodeState:
    service = ServiceState("tiny", state, 0.0, fingerprint, **more)  # type: ignore[arg-type]
    return NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0, services=[service])


def reader(states: list[NodeState | None]) -> Callable[[], NodeState | None]:
    remaining: Iterator[NodeState | None] = iter(states)
    return lambda: next(remaining)


def follow(
    states: list[NodeState | None], seconds_per_look: int = 1
) -> tuple[ServiceState, list[Event]]:
    events: list[Event] = []
    clock = count(0, seconds_per_look)
    wait = Wait(clock=lambda: float(next(clock)), sleep=lambda _: None)
    found = await_ready(DOCUMENT, reader(states), StageEvents("gpu1", events.append), wait)
    return found, events


def test_a_vllm_that_ends_without_a_word_is_not_waited_for() -> None:
    failed = {"last_failure": "ended with status 1"}
    with pytest.raises(StepFailed, match="vLLM ended with status 1 before it wrote a line"):
        follow(
            [
                node("backing-off", attempts=1, **failed),
                node("starting"),
                node("failed", attempts=2, **failed),
            ]
        )


def test_stages_are_told_once_each_in_order() -> None:
    found, events = follow(
        [
            None,
            node("ready", fingerprint="old"),
            node("waiting", detail="gpu2 has not joined Ray"),
            node("starting"),
            node("loading", stage="weights"),
            node("loading", stage="weights"),
            node("loading", stage="kv-cache"),
            node("ready", ready_seconds=12.0),
        ]
    )
    assert found.ready_seconds == 12.0
    begun = [event.step for event in events if isinstance(event, StepStarted)]
    assert begun == ["wait for Ray", "start vLLM", "load weights", "size the KV cache"]
    ended = [event.step for event in events if isinstance(event, StepFinished)]
    assert ended == begun
    assert any(isinstance(e, StepProgress) and "gpu2" in e.text for e in events)


NO_MEMORY = ["(EngineCore pid=7) ValueError: No available memory for the cache blocks."]
PORT_TAKEN = ["(EngineCore pid=8) OSError: [Errno 98] Address already in use"]


def test_a_start_that_fails_twice_for_one_reason_is_told_by_its_cause() -> None:
    """Numbers such as pids aside."""
    again = [NO_MEMORY[0].replace("7", "9")]
    with pytest.raises(StepFailed) as failed:
        follow(
            [
                node("starting"),
                *[node("backing-off", attempts=1, last_error=NO_MEMORY)] * 3,
                node("loading", attempts=2, last_error=NO_MEMORY),
                node("backing-off", attempts=2, last_error=again),
            ]
        )
    assert failed.value.host == "gpu1"
    assert failed.value.hint


def test_a_start_that_failed_once_is_followed_to_the_next_and_told() -> None:
    """A port that was taken for a moment is free for the next attempt."""
    found, events = follow(
        [
            *[node("backing-off", attempts=1, last_error=PORT_TAKEN)] * 3,
            node("backing-off", attempts=2, last_error=NO_MEMORY),
            node("loading", attempts=3),
            node("ready", ready_seconds=12.0),
        ]
    )
    assert found.ready_seconds == 12.0
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len(notes) == 2
    assert all(note.startswith("tiny is tried again after: ") for note in notes)


def test_a_start_that_the_supervisor_does_not_repeat_fails_at_once() -> None:
    with pytest.raises(StepFailed):
        follow([node("failed", attempts=1, last_error=["vllm: error: unrecognized arguments"])])


def test_a_wait_for_ray_ends() -> None:
    with pytest.raises(RayNotFormed, match="gpu2 is gone"):
        follow([node("waiting", detail="gpu2 is gone")] * 20, seconds_per_look=50)


def test_a_wait_for_its_turn_is_none_for_ray() -> None:
    turn = node("waiting", detail=f"{IN_TURN}: other starts on a share of a GPU, too")
    follow([*[turn] * 20, node("ready")], seconds_per_look=50)


def test_a_supervisor_that_takes_no_notice_is_named() -> None:
    with pytest.raises(StepFailed, match="did not pick up tiny within 30 s; it reports nothing"):
        follow([None] * 20, seconds_per_look=50)


def test_a_service_that_is_never_ready_tells_what_was_seen_last() -> None:
    with pytest.raises(StepFailed, match=r"within 1800 s; last seen: load weights: shard 3 of 9"):
        follow([node("loading", stage="weights", detail="shard 3 of 9")] * 90, seconds_per_look=50)


def looks(outcomes: list[NodeState | Exception], clock: Iterator[int]) -> PatientReader:
    remaining = iter(outcomes)

    def read() -> NodeState:
        found = next(remaining)
        if isinstance(found, Exception):
            raise found
        return found

    return PatientReader(read, Wait(clock=lambda: float(next(clock)), sleep=lambda _: None))


def test_a_way_that_fails_for_a_while_is_borne() -> None:
    blinks = [Unreachable("no route"), CommandTimedOut("cat took 20 s")]
    look = looks([*blinks, node("loading"), *blinks], count(0, 40))

    assert [look() is None for _ in range(3)] == [True, True, False]
    assert [look() for _ in range(2)] == [None, None]  # its time begins anew


def test_a_way_that_stays_broken_is_no_verdict_on_the_service() -> None:
    look = looks([Unreachable("no route", host="gpu1")] * 5, count(0, 31))

    with pytest.raises(ContactLost, match="service keeps loading there: no route") as caught:
        [look() for _ in range(5)]
    assert (caught.value.host, caught.value.exit_code) == ("gpu1", 4)
    assert caught.value.hint == "clusterctl status"


def test_a_refused_key_is_not_tried_again() -> None:
    with pytest.raises(ContactLost):
        looks([AuthenticationRejected("no")], count())()


def test_one_look_without_a_state_late_in_the_start_is_no_end() -> None:
    found, _ = follow([*[node("loading")] * 200, None, node("ready")])
    assert found.state == "ready"


def test_the_cause_is_read_from_the_log_and_not_from_its_last_lines() -> None:
    cause = "ERROR 11-02 10:00:00 [core.py:1] ValueError: No available memory for the cache blocks."
    tail = [f"(APIServer pid=1)   line {number} of a traceback" for number in range(20)]
    failed = node("failed", last_error=tail)
    events: list[Event] = []
    log = [cause, *(["(APIServer pid=1)   a traceback"] * 150), *tail]

    with pytest.raises(StepFailed) as raised:
        await_ready(DOCUMENT, reader([failed]), StageEvents("gpu1", events.append), log=lambda: log)
    assert "is left for the KV cache: the weights" in str(raised.value)
    assert raised.value.detail == cause

    with pytest.raises(StepFailed, match="its log shows no failure"):
        await_ready(DOCUMENT, reader([failed]), StageEvents("gpu1", events.append))
