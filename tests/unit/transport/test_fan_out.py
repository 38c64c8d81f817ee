"""The same work on many hosts: order, limit, failures, bugs, Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.errors import ClusterctlError, CommandFailed, Unreachable
from clusterctl.transport import fanout
from clusterctl.transport.fanout import (
    Done,
    Failed,
    FanOutInterrupted,
    failures,
    fan_out,
    values,
)


@settings(deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=4), st.integers(), max_size=30), st.integers(1, 8)
)
def test_every_item_has_its_outcome_in_order(items: dict[str, int], limit: int) -> None:
    def work(number: int) -> int:
        if number % 3 == 0:
            raise CommandFailed("a multiple of three")
        return number * 2

    outcomes = fan_out(items, work, limit=limit)

    assert list(outcomes) == list(items)
    for name, number in items.items():
        outcome = outcomes[name]
        if number % 3 == 0:
            assert isinstance(outcome, Failed)
            assert outcome.error.host == name
        else:
            assert outcome == Done(number * 2)
    assert len(values(outcomes)) + len(failures(outcomes)) == len(items)


def test_an_error_keeps_the_host_it_names() -> None:
    def work(_: int) -> None:
        raise Unreachable("down", host="jump host")

    assert [str(error) for error in failures(fan_out({"gpu1": 1}, work))] == ["jump host: down"]


def test_no_more_than_the_limit_at_once() -> None:
    running, most, lock = 0, 0, threading.Lock()
    together = threading.Barrier(3, timeout=60)

    def work(_: int) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait()
        with lock:
            running -= 1

    outcomes = fan_out({str(n): n for n in range(9)}, work, limit=3)

    assert failures(outcomes) == []
    assert most == 3


def test_a_bug_is_raised_with_the_host_it_struck() -> None:
    done: list[str] = []

    def work(name: str) -> None:
        if name == "gpu2":
            raise ZeroDivisionError("oops")
        done.append(name)

    names = [f"gpu{n}" for n in range(1, 10)]
    with pytest.raises(ZeroDivisionError) as caught:
        fan_out(dict(zip(names, names, strict=True)), work, limit=1)

    assert caught.value.__notes__ == ["while working on host gpu2"]
    assert done == ["gpu1"], "nothing new is started after a bug"


class CtrlC:
    """Ctrl-C, pressed again until it is heard: Python misses a signal that comes just as it begins
    to wait for a lock. It is heard once, and once more from `twice` on."""

    def __init__(self) -> None:
        self.heard = 0
        self.twice = threading.Event()
        self.stopped = threading.Event()
        """A fan-out has taken note that it is to start nothing more."""

    def press(self, until: threading.Event) -> None:
        while not until.wait(0.05):
            os.kill(os.getpid(), signal.SIGINT)

    def hear(self, number: int, frame: FrameType | None) -> None:
        if self.heard <= self.twice.is_set():
            self.heard += 1
            raise KeyboardInterrupt


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[CtrlC]:
    pressed, stop = CtrlC(), fanout._Crew.stop

    def stop_and_tell(crew: fanout._Crew[object, object]) -> None:
        stop(crew)
        pressed.stopped.set()

    monkeypatch.setattr(fanout._Crew, "stop", stop_and_tell)
    before = signal.signal(signal.SIGINT, pressed.hear)
    yield pressed
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_lets_what_runs_finish(ctrl_c: CtrlC) -> None:
    def work(number: int) -> int:
        ctrl_c.press(ctrl_c.stopped)
        return number

    with pytest.raises(FanOutInterrupted) as caught:
        fan_out({str(n): n for n in range(3)}, work, limit=1)

    assert caught.value.outcomes == {"0": Done(0)}
    assert caught.value.summary == "interrupted after 1 of 3 hosts"
    assert caught.value.exit_code == 130


def test_a_second_ctrl_c_leaves_at_once(ctrl_c: CtrlC) -> None:
    left, quiet = threading.Event(), threading.Event()

    def work(_: int) -> None:
        ctrl_c.press(ctrl_c.stopped)
        ctrl_c.twice.set()
        ctrl_c.press(left)
        quiet.set()

    with pytest.raises(KeyboardInterrupt):
        fan_out({"gpu1": 1}, work)
    left.set()
    assert quiet.wait(60)


def test_nothing_to_do() -> None:
    def work(_: int) -> None:
        raise ClusterctlError("never called")

    assert fan_out({}, work) == {}
