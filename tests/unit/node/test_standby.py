"""A replica with a standby: which engine is to do what, and takeovers through a real HAProxy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from clusterctl.node.documents import (
    Member,
    MembersDocument,
    ServiceDocument,
    ServiceState,
    to_json,
)
from clusterctl.node.rank_placement import PER_WORKER
from clusterctl.node.sleeping import REFUSE, SLEEP, WAKE, SleepControl
from clusterctl.node.standby import engines_of
from clusterctl.node.timing import Timing
from clusterctl.node.turns import END, START, Engine, Step, next_step
from tests.fakes.node_bench import PROGRAMS, QUICK, Bench, await_value
from tests.fakes.ports import port_of, reserved
from tests.fakes.sleep_contract import Sleeper

KEY, STANDBY = "secret-key", "chat@standby"


@pytest.mark.parametrize(
    ("first", "standby", "quiet", "step"),
    [
        # Starts: the first one, which serves, then in a quiet moment its standby
        ("due", "absent", False, Step(START)),
        ("due", "due", True, Step(START)),
        ("loading", "due", True, Step()),
        ("awake", "due", False, Step()),
        ("awake", "due", True, Step(SLEEP)),
        ("moving", "due", True, Step()),
        ("asleep", "due", True, Step(START, second=True)),
        ("asleep", "due", False, Step(WAKE)),
        ("asleep", "loading", False, Step()),
        ("asleep", "awake", True, Step(SLEEP, second=True)),
        ("asleep", "asleep", True, Step(WAKE)),
        ("asleep", "absent", True, Step(WAKE)),
        ("awake", "asleep", True, Step()),
        # The first one ends
        ("absent", "asleep", True, Step(WAKE, second=True)),
        ("due", "asleep", False, Step(WAKE, second=True)),
        ("due", "awake", False, Step()),
        ("due", "awake", True, Step(SLEEP, second=True)),
        ("due", "asleep", True, Step(START)),
        ("loading", "asleep", False, Step()),
        # ... while its standby starts, whose ranks it keeps apart
        ("absent", "loading", True, Step(END, second=True)),
        ("due", "loading", True, Step(END, second=True)),
    ],
)
def test_what_is_due(first: str, standby: str, quiet: bool, step: Step) -> None:
    assert next_step(Engine(first), Engine(standby), quiet=quiet) == step


@pytest.mark.parametrize(
    ("first", "standby", "step"),
    [
        (Engine("asleep", waiting=True), Engine("loading"), Step(END, second=True)),
        (Engine("loading"), Engine("asleep", waiting=True), Step(END)),
        (Engine("asleep", waiting=True), Engine("due"), Step(WAKE)),
        (Engine("due"), Engine("asleep", waiting=True), Step(WAKE, second=True)),
        (Engine("awake", busy=True), Engine("due"), Step()),
        (Engine("due"), Engine("awake", busy=True), Step()),
        (Engine("asleep"), Engine("awake", busy=True), Step()),
        # What the gateway sent there although the other works, and what it sent since that hangs
        (Engine("awake"), Engine("asleep", waiting=True), Step(REFUSE, second=True)),
        (Engine("awake", silent=True), Engine("asleep", waiting=True), Step()),
    ],
)
def test_a_request_comes_first(first: Engine, standby: Engine, step: Step) -> None:
    assert next_step(first, standby, quiet=True) == step


PHASES = ("absent", "due", "loading", "moving", "awake", "asleep")
WITH_MEMORY = {"loading", "moving", "awake"}


def test_no_step_gives_the_memory_to_two() -> None:
    for phases in product(PHASES, PHASES):
        for waits, quiet in product((False, True), (False, True)):
            step = next_step(*(Engine(each, waiting=waits) for each in phases), quiet=quiet)
            if step.word in (START, WAKE):
                assert phases[not step.second] not in WITH_MEMORY, phases


def test_the_standby_is_the_same_on_another_port_and_with_what_is_left_of_its_gpus() -> None:
    argv = ["vllm", "serve", "/m", "--port", "8100", "--served-model-name", "8100"]
    declared = ServiceDocument(
        name="chat", model="m", served_name="8100", argv=argv, env={"A": "1"}, host="", port=8100,
        tensor_parallel=2, pipeline_parallel=1, gpus=2, fingerprint="", standby_port=8101,
    )  # fmt: skip
    first, standby = engines_of(declared)

    assert (first.name, first.argv, first.port, first.is_standby) == ("chat", argv, 8100, False)
    assert first.env == {"A": "1", PER_WORKER: "0.75"}
    assert (standby.name, standby.port, standby.is_standby) == (STANDBY, 8101, True)
    assert standby.argv == [*argv[:4], "8101", *argv[5:]]
    assert standby.env == {"A": "1", PER_WORKER: "0.25"}
    joined = engines_of(replace(declared, argv=["vllm", "serve", "/m", "--port=8100"]))
    assert joined[1].argv == ["vllm", "serve", "/m", "--port=8101"]
    alone = replace(declared, standby_port=0)
    assert engines_of(alone) == [alone]


class PairBench:
    """A service with a standby behind a real HAProxy."""

    def __init__(
        self, root: Path, door: int, timing: Timing = QUICK, parked_gib: float = 0.0
    ) -> None:
        self.bench = Bench(root, timing=timing)
        self.seat = root / "seat"
        own, other = self.bench._port("chat"), self.bench._port("standby")
        argv = [str(PROGRAMS / "fake_vllm.py"), str(root), "--port", str(own)]
        argv = [sys.executable, *argv, "--seat", str(self.seat)]
        self.document = self.bench.declare(
            argv=argv, standby_port=other, stall_timeout=60, parked_gib=parked_gib
        )
        member = Member(1, "a", "127.0.0.1", own, standby_port=other)
        listed = MembersDocument("chat", ["tiny"], door, [member], listen="127.0.0.1")
        self.bench.paths.members.mkdir()
        (self.bench.paths.members / "chat.json").write_text(to_json(listed))
        self.client = Sleeper(SleepControl(), "127.0.0.1", door, "tiny", KEY)

    def standby(self) -> ServiceState | None:
        state = self.bench.state()
        return next(iter(state.standbys), None) if state else None

    def await_phases(self, first: str, standby: str) -> None:
        """`asleep`, or a state."""

        def shown(state: ServiceState | None) -> str:
            return "asleep" if state and state.sleep.asleep else state.state if state else ""

        def look() -> bool:
            return (shown(self.bench.service()), shown(self.standby())) == (first, standby)

        try:
            await_value(look, f"{first}, {standby}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.bench.service()}, {self.standby()}") from error

    def process(self, port: int) -> int:
        """Of the last start on that port."""
        starts = self.bench.starts("vllm")
        return next(int(each["pid"]) for each in reversed(starts) if str(port) in each["argv"])

    def kill_first(self) -> None:
        os.kill(self.process(self.document.port), signal.SIGKILL)

    def events(self, name: str = STANDBY) -> list[str]:
        return self.bench.events(name)


@pytest.fixture
def pair(haproxy: None) -> Iterator[PairBench]:
    # Short enough for the path of HAProxy's socket
    with tempfile.TemporaryDirectory(prefix="pair") as root, reserved() as door:
        found = PairBench(Path(root), port_of(door))
        yield found
        found.bench.stop()
        assert not found.seat.with_suffix(".taken").exists(), "two were awake at once"


def test_it_starts_in_a_quiet_moment_and_the_first_one_serves_again(pair: PairBench) -> None:
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    assert pair.events("chat")[-2:] == ["asleep", "awake"]
    assert pair.client.ask()[0] == 200
    assert pair.events()[-1] == "asleep", "the request went to the first one"


class Clients:
    """Who asks, each again as soon as it has its answer, until `stop`."""

    def __init__(self, client: Sleeper, number: int, pause: float = 0.0) -> None:
        self.answers: list[tuple[float, int]] = []  # When they came, and their status
        self._client, self._pause = client, pause
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(number)
        self._running = [self._pool.submit(self._ask) for _ in range(number)]

    def _ask(self) -> None:
        while not self._ended.wait(self._pause):
            status, _ = self._client.ask()
            self.answers.append((time.monotonic(), status))

    def stop(self) -> int:
        """How many did not get 200."""
        self._ended.set()
        for each in self._running:
            each.result(60)
        return sum(status != 200 for _, status in self.answers)

    def after(self, moment: float) -> list[float]:
        """Seconds until each answer since then."""
        return sorted(at - moment for at, _ in self.answers if at > moment)


def test_it_takes_over_from_one_that_is_killed_and_nothing_is_lost(pair: PairBench) -> None:
    pair.bench.behaviour("vllm", {"seconds": 0.1})
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    clients = Clients(pair.client, 10)
    await_value(lambda: len(clients.answers) > 100, "answers")

    killed = time.monotonic()
    pair.kill_first()
    await_value(lambda: len(clients.after(killed)) > 200, "answers after it was killed")
    assert pair.events()[-2:] == ["takes over", "awake"]
    waiting = pair.bench.service()
    assert waiting is not None
    assert "its standby serves; it starts after " in waiting.detail

    assert clients.stop() == 0
    assert clients.after(killed)[0] < 10, "seconds"
    pair.await_phases("ready", "asleep")
    assert pair.client.ask()[0] == 200
    assert pair.events()[-1] == "asleep", "the first one serves again"


def test_a_request_ends_a_start_and_loses_nothing(pair: PairBench) -> None:
    pair.bench.behaviour("vllm", {"standby": {"never_listen": True}})
    pair.bench.start()
    pair.await_phases("asleep", "loading")
    assert pair.client.ask()[0] == 200
    pair.await_phases("asleep", "loading")  # In the next quiet time, which is longer
    told = [text for text in pair.bench.told(STANDBY) if "without requests" in text]
    assert "for its turn: it starts after 1 s without requests" in told
    state = pair.standby()
    assert state is not None
    assert (state.restarts, state.last_failure) == (0, "")

    pair.bench.behaviour("vllm", {})
    clients = Clients(pair.client, 4, pause=0.01)
    await_value(lambda: len(clients.answers) > 200, "answers")
    assert clients.stop() == 0
    pair.await_phases("ready", "asleep")


def test_a_first_one_that_cannot_start_again_is_stood_in_for(pair: PairBench) -> None:
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    pair.bench.behaviour("vllm", {"exit": 1})
    pair.kill_first()
    failed = pair.bench.await_service("backing-off")
    assert failed.attempts == 0
    await_value(lambda: (pair.bench.service() or failed).attempts >= 3, "it to be tried again")
    assert pair.client.ask()[0] == 200, "by the standby, which wakes for it"

    pair.bench.behaviour("vllm", {})
    pair.await_phases("ready", "asleep")


@pytest.mark.parametrize("kind", ["error", "hang"])
def test_a_standby_that_cannot_wake_is_started_again(kind: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pair") as root, reserved() as door:
        pair = PairBench(Path(root), port_of(door), replace(QUICK, sleep_limit=1.0))
        pair.bench.behaviour("vllm", {"standby": {"wake_up": kind}})
        pair.bench.start()
        try:
            pair.await_phases("ready", "asleep")
            pair.kill_first()
            asked = ThreadPoolExecutor(1).submit(pair.client.ask)
            failed = await_value(
                lambda: (pair.standby() or pytest.fail("gone")).last_failure, "a failure to wake"
            )
            assert "not wake" in failed
            assert asked.result(60)[0] in (200, 502, 503), "lost, unless the first is back"
            pair.await_phases("ready", "asleep")
            assert pair.events().count("takes over") == 1
            failures = [text for text in pair.bench.told(STANDBY) if "not wake" in text]
            assert failures == [f"{failed}; retrying in 0.1 s"]
            assert not pair.seat.with_suffix(".taken").exists()
        finally:
            pair.bench.stop()


def test_a_standby_that_fails_at_each_start_is_given_up(haproxy: None) -> None:
    with tempfile.TemporaryDirectory(prefix="pair") as root, reserved() as door:
        timing = replace(QUICK, attempts_until_failed=2)
        pair = PairBench(Path(root), port_of(door), timing)
        pair.bench.behaviour("vllm", {"standby": {"exit": 1}})
        pair.bench.start()
        try:
            pair.await_phases("ready", "failed")
            assert (pair.standby() or pytest.fail("gone")).detail == (
                "ended with status 1; 2 failures in a row, and the first engine sleeps for each "
                "start; not retried until it is changed"
            )
            await_value(lambda: pair.events("chat")[-1] == "awake", "the first one to wake")
            assert pair.client.ask()[0] == 200

            pair.bench.behaviour("vllm", {})
            pair.bench.declare(**{**vars(pair.document), "fingerprint": "2"})
            pair.await_phases("ready", "asleep")
            assert len(pair.bench.starts("vllm")) == 5, "twice the first one, thrice its standby"
        finally:
            pair.bench.stop()


def test_one_killed_in_its_sleep_and_one_killed_as_it_starts(pair: PairBench) -> None:
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    os.kill(pair.process(pair.document.standby_port), signal.SIGKILL)
    pair.bench.behaviour("vllm", {"standby": {"never_listen": True}})
    pair.await_phases("asleep", "loading")
    pair.kill_first()  # Its shares keep apart the ranks that start
    pair.bench.await_service("ready", restarts=1)
    pair.bench.behaviour("vllm", {})
    pair.await_phases("ready", "asleep")


def test_it_wakes_once_no_rank_of_the_first_one_has_memory(pair: PairBench) -> None:
    ranks = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        pair.bench.start()
        pair.await_phases("ready", "asleep")
        driver = pair.process(pair.document.port)
        pair.bench.actors(
            *(
                {"name": f"vllm_Worker_x_TP{number}", "node_id": "n1", "node_ip": "10.0.0.1",
                 "pid": rank.pid, "driver_pid": driver}
                for number, rank in enumerate(ranks)
            )
        )  # fmt: skip
        await_value(lambda: len((pair.bench.service() or pytest.fail("gone")).ranks) == 2, "ranks")

        ranks[0].kill()
        told = f"a rank ended on this host (process {ranks[0].pid})"
        await_value(
            lambda: told in (pair.bench.service() or pytest.fail("gone")).last_failure,
            "its end to be seen, although Ray still has it",
        )
        asked = ThreadPoolExecutor(1).submit(pair.client.ask)
        await_value(lambda: (pair.standby() or pytest.fail("gone")).sleep.waiting, "a request")
        assert "takes over" not in pair.events()
        ranks[1].kill()
        assert asked.result(60)[0] == 200
        assert "takes over" in pair.events()
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def killed_with_a_rank_elsewhere(pair: PairBench) -> float:
    """Return the seconds from the kill, after which Ray drops the rank, until an answer."""
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    driver = pair.process(pair.document.port)
    other = {"name": "vllm_Worker_x_TP1", "node_id": "n2", "node_ip": "10.0.0.2", "pid": 7}
    pair.bench.actors({**other, "driver_pid": driver})
    await_value(lambda: (pair.bench.service() or pytest.fail("gone")).ranks, "the rank")

    pair.kill_first()
    killed = time.monotonic()
    asked = ThreadPoolExecutor(1).submit(pair.client.ask)
    await_value(lambda: (pair.standby() or pytest.fail("gone")).sleep.waiting, "a request")
    assert "takes over" not in pair.events()
    pair.bench.actors()
    assert asked.result(60)[0] == 200
    assert "takes over" in pair.events()
    return time.monotonic() - killed


def test_it_wakes_once_ray_has_no_rank_of_the_first_one_on_another_host(pair: PairBench) -> None:
    killed_with_a_rank_elsewhere(pair)


def test_a_rank_of_another_host_has_time_to_give_back_what_it_pinned(haproxy: None) -> None:
    with tempfile.TemporaryDirectory(prefix="pair") as root, reserved() as door:
        pair = PairBench(Path(root), port_of(door), parked_gib=16.0)
        try:
            assert killed_with_a_rank_elsewhere(pair) > 8.0
        finally:
            pair.bench.stop()


def test_what_the_first_one_answers_with_an_error_does_not_wake_it(pair: PairBench) -> None:
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    pair.bench.behaviour("vllm", {"completion": "refuse"})
    status, content = pair.client.ask()
    assert status == 503
    assert "the standby of an engine that works" in content["error"]["message"]
    assert pair.events()[-1] == "asleep"


def test_a_change_restarts_both_and_the_end_ends_both(pair: PairBench) -> None:
    pair.bench.start()
    pair.await_phases("ready", "asleep")
    pair.bench.declare(**{**vars(pair.document), "fingerprint": "2"})
    await_value(lambda: len(pair.bench.starts("vllm")) == 4, "both to start again")
    pair.await_phases("ready", "asleep")
    first, standby, again, other = (each["argv"][2] for each in pair.bench.starts("vllm"))
    assert (first, standby) == (again, other), "in this order"

    pair.bench.remove()
    await_value(lambda: pair.bench.service() is None and pair.standby() is None, "both to end")
