"""Two services that swap: whose turn it is, and requests to both through a real HAProxy."""

from __future__ import annotations

import asyncio
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
from typing import Any

import pytest

from clusterctl.node import sleeping
from clusterctl.node.attempt import Attempt
from clusterctl.node.documents import Member, MembersDocument, ServiceDocument, from_json, to_json
from clusterctl.node.sleeping import HOLD, SLEEP, WAKE, SleepControl
from clusterctl.node.timing import Timing
from clusterctl.node.turns import END, START, Engine, Step, next_swap
from tests.fakes.node_bench import PROGRAMS, QUICK, Bench, await_value
from tests.fakes.ports import port_of, reserved
from tests.fakes.sleep_contract import Sleeper
from tests.unit.node.test_sleeping import Door
from tests.unit.node.test_sleeping import Engine as CountingEngine

KEY = "secret-key"
BOTH = ("chat", "coder")
FASTER = replace(QUICK, swap_least=0.5)

AWAKE, ASLEEP, DUE, ABSENT = map(Engine, ("awake", "asleep", "due", "absent"))
LOADING, MOVING = Engine("loading"), Engine("moving")
ASKED = replace(ASLEEP, waiting=True)
SECOND = True


@pytest.mark.parametrize(
    ("first", "second", "step"),
    [
        # Starts: the first one, and in a quiet moment the second one
        (DUE, ABSENT, Step(START)),
        (DUE, DUE, Step(START)),
        (ABSENT, DUE, Step()),
        (LOADING, DUE, Step()),
        (AWAKE, DUE, Step()),
        (replace(AWAKE, quiet=True), DUE, Step(SLEEP)),
        (replace(AWAKE, quiet=True, busy=True), DUE, Step()),
        (ASLEEP, DUE, Step()),
        (replace(ASLEEP, quiet=True), DUE, Step(START, SECOND)),
        (ASLEEP, LOADING, Step()),
        (ASLEEP, AWAKE, Step()),
        # ... which a request for the first one ends
        (ASKED, DUE, Step(WAKE)),
        (ASKED, LOADING, Step(END, SECOND)),
        (replace(ASKED, quiet=True), DUE, Step(WAKE)),
        # One of them has ended
        (ABSENT, AWAKE, Step()),
        (ABSENT, ASLEEP, Step()),
        (ABSENT, ASKED, Step(WAKE, SECOND)),
        (DUE, ASKED, Step(WAKE, SECOND)),
        (DUE, AWAKE, Step()),
        (DUE, replace(AWAKE, quiet=True), Step(SLEEP, SECOND)),
        (DUE, replace(AWAKE, quiet=True, busy=True), Step()),
        (DUE, ASLEEP, Step()),
        (DUE, replace(ASLEEP, quiet=True), Step(START)),
        (LOADING, ASLEEP, Step()),
        (LOADING, ASKED, Step(END)),
        (ASKED, ABSENT, Step(WAKE)),
        (AWAKE, ABSENT, Step()),
        # ... the first one while the second one starts, whose ranks it keeps apart
        (ABSENT, LOADING, Step(END, SECOND)),
        (DUE, LOADING, Step(END, SECOND)),
        (LOADING, LOADING, Step(END, SECOND)),
        (AWAKE, LOADING, Step(END, SECOND)),
        # Both are there, and one has requests that wait
        (ASLEEP, ASKED, Step(WAKE, SECOND)),
        (AWAKE, ASKED, Step(SLEEP)),
        (replace(AWAKE, kept=True), ASKED, Step(SLEEP)),
        (replace(AWAKE, busy=True, kept=True), ASKED, Step()),
        (replace(AWAKE, busy=True), ASKED, Step(HOLD)),
        (replace(AWAKE, busy=True, held=True), ASKED, Step()),
        (replace(AWAKE, held=True), ASKED, Step(SLEEP)),
        (replace(AWAKE, held=True, waiting=True), ASKED, Step(SLEEP)),
        # ... or none that waits any more
        (replace(AWAKE, held=True), ASLEEP, Step(WAKE)),
        (replace(AWAKE, busy=True, held=True), ASLEEP, Step(WAKE)),
        (replace(AWAKE, held=True), ABSENT, Step(WAKE)),
        (replace(AWAKE, held=True), DUE, Step(WAKE)),
        (AWAKE, ASLEEP, Step()),
        (replace(AWAKE, quiet=True), ASLEEP, Step()),
        (ASLEEP, ASLEEP, Step()),
    ],
)
def test_what_is_due(first: Engine, second: Engine, step: Step) -> None:
    assert next_swap(first, second, second_next=False) == step
    assert next_swap(first, second, second_next=True) == step


@pytest.mark.parametrize("second_next", [False, True])
def test_with_two_that_are_asked_for_that_one_wakes_which_had_the_gpus_before(
    second_next: bool,
) -> None:
    assert next_swap(ASKED, ASKED, second_next=second_next) == Step(WAKE, second_next)


MARKS = ("busy", "waiting", "held", "quiet", "kept")
EVERY = [
    Engine(phase, **dict(zip(MARKS, marks, strict=True)))
    for phase in ("absent", "due", "loading", "moving", "awake", "asleep")
    for marks in product((False, True), repeat=len(MARKS))
]


def test_no_step_breaks_a_rule_in_any_state() -> None:
    turned = {"awake": "asleep", "asleep": "awake"}
    for first, second, second_next in product(EVERY, EVERY, (False, True)):
        step = next_swap(first, second, second_next=second_next)
        one, other = (second, first) if step.second else (first, second)
        what = (first, second, step)
        if "moving" in (first.phase, second.phase):
            assert not step.word, what
        if step.word in (START, WAKE) and not (step.word == WAKE and one.phase == "awake"):
            assert other.phase in ("absent", "due", "asleep"), what  # It has no memory
            assert not (other.phase == "asleep" and other.waiting and not one.waiting), what
        if step == Step(START, SECOND):
            assert first.phase == "asleep", what
        if step.word == SLEEP:
            assert (one.phase, one.busy) == ("awake", False), what
        if step.word == HOLD:
            assert other == replace(other, phase="asleep", waiting=True), what
            assert (one.phase, one.kept) == ("awake", False), what
        if step.word == END:
            assert one.phase == "loading", what
        if {first.phase, second.phase} == {"awake", "asleep"}:
            # The same for both: neither is preferred
            mirrored = next_swap(second, first, second_next=not second_next)
            assert mirrored == Step(step.word, not step.second if step.word else False), what
            assert turned[one.phase] in (one.phase, other.phase), what


def test_requests_are_held_while_others_run_and_let_in_after_the_sleep() -> None:
    async def run() -> Door:
        door = Door()
        ended = asyncio.Event()

        async def app(_scope: Any, _receive: Any, _send: Any) -> None:
            door.served += 1
            await ended.wait()

        door.held._app = app
        runs = asyncio.ensure_future(door.ask())
        await asyncio.sleep(0)
        door.held._hold()
        waits = asyncio.ensure_future(door.ask())
        await asyncio.sleep(0)
        await door.held._sleep(CountingEngine())
        assert (door.served, door.held._report.asleep) == (1, False), "it still works"
        ended.set()
        await runs
        await door.held._sleep(CountingEngine())
        assert (door.held._report.asleep, door.held._report.waiting) == (True, 1)
        door.held._hold()  # Too late to change anything
        assert not door.held._report.held
        await door.held._wake(CountingEngine())
        await waits
        door.held._hold()
        await door.held._wake(CountingEngine())  # Nobody waits for the GPUs any more
        await door.ask()
        return door

    assert asyncio.run(run()).served == 3


class SwapBench:
    """Two services on the same GPUs behind a real HAProxy."""

    def __init__(self, root: Path, doors: tuple[int, int], timing: Timing = FASTER) -> None:
        self.bench = Bench(root, timing=timing)
        self.seat = root / "seat"
        self.bench.paths.members.mkdir()
        self.documents: dict[str, ServiceDocument] = {}
        self.clients: dict[str, Sleeper] = {}
        for name, door in zip(BOTH, doors, strict=True):
            port = self.bench._port(name)
            argv = [str(PROGRAMS / "fake_vllm.py"), str(root), "--port", str(port)]
            argv = [sys.executable, *argv, "--seat", str(self.seat), "--service", name]
            swap = {"swap": True} if name == "chat" else {"swap_with": "chat"}
            self.documents[name] = self.bench.declare(
                name, argv=argv, stall_timeout=60, served_name=name, **swap
            )
            member = Member(1, "a", "127.0.0.1", port)
            listed = MembersDocument(name, [name], door, [member], listen="127.0.0.1")
            (self.bench.paths.members / f"{name}.json").write_text(to_json(listed))
            self.clients[name] = Sleeper(SleepControl(), "127.0.0.1", door, name, KEY)
        self.behave()

    def behave(self, **settings: Any) -> None:
        coder = {"text": "coder", **settings.pop("coder", {})}
        self.bench.behaviour("vllm", {"text": "chat", "coder": coder, **settings})

    def phase(self, name: str) -> str:
        state = self.bench.service(name)
        return "asleep" if state and state.sleep.asleep else state.state if state else ""

    def await_phases(self, *phases: str) -> None:
        def look() -> bool:
            return tuple(map(self.phase, BOTH)) == phases

        try:
            await_value(look, " and ".join(phases))
        except AssertionError as error:
            raise AssertionError(f"{error}: {list(map(self.bench.service, BOTH))}") from error

    def start(self) -> None:
        self.bench.start()
        self.await_phases("asleep", "ready")
        for name in BOTH:
            self.await_there(name)

    def await_there(self, name: str) -> None:
        """It has started, and the gateway knows."""
        await_value(lambda: self.phase(name) in ("ready", "asleep"), f"{name} to be there")

        def admitted() -> bool:
            state = self.bench.state()
            members = state.gateway.members if state else []
            return any(each.admitted for each in members if each.service == name)

        await_value(admitted, f"{name} to be admitted")

    def text(self, name: str) -> str:
        return self.clients[name].text()

    def process(self, name: str) -> int:
        """Of its last start."""
        starts = self.bench.starts("vllm")
        return next(int(each["pid"]) for each in reversed(starts) if name in each["argv"])

    def kill(self, name: str) -> None:
        os.kill(self.process(name), signal.SIGKILL)

    def turns(self) -> int:
        """How often one was woken."""
        return sum(self.bench.events(name).count("awake") for name in BOTH)


@pytest.fixture
def swap(haproxy: None) -> Iterator[SwapBench]:
    # Short enough for the path of HAProxy's socket
    with tempfile.TemporaryDirectory(prefix="swap") as root, reserved() as one, reserved() as two:
        found = SwapBench(Path(root), (port_of(one), port_of(two)))
        yield found
        found.bench.stop()
        assert not found.seat.with_suffix(".taken").exists(), "two were awake at once"


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


def test_the_first_one_starts_first_and_each_wakes_when_it_is_asked(swap: SwapBench) -> None:
    swap.start()
    started = [word for each in swap.bench.starts("vllm") for word in each["argv"] if word in BOTH]
    assert started == ["chat", "coder"]
    told = swap.bench.told("coder")
    assert "for its turn: chat, with which it swaps, starts first" in told
    assert any("s without requests for chat" in each for each in told)

    assert swap.text("chat") == "chat"
    swap.await_phases("ready", "asleep")
    assert swap.text("chat") == "chat", "at once"
    assert swap.text("coder") == "coder"
    swap.await_phases("asleep", "ready")
    assert len(swap.bench.starts("vllm")) == 2


def test_200_swaps_lose_nothing_and_leave_nothing_behind(swap: SwapBench) -> None:
    swap.start()
    for name in BOTH:
        swap.text(name)
    swap.await_phases("asleep", "ready")  # An answer may be faster than the journal
    threads, files, before = threading.active_count(), open_files(), swap.turns()

    longest = 0.0
    for number in range(200):
        name = BOTH[number % 2]
        began = time.monotonic()
        assert swap.text(name) == name
        longest = max(longest, time.monotonic() - began)
    assert longest < 10, "seconds"
    swap.await_phases("asleep", "ready")
    assert swap.turns() == before + 200
    for name in BOTH:
        state = swap.bench.service(name)
        assert state is not None
        assert (state.restarts, state.last_failure, state.sleep.refused) == (0, "", 0)
    await_value(lambda: threading.active_count() <= threads + 2, "threads to end")
    await_value(lambda: open_files() <= files + 4, "files to be closed")


class Crowd:
    """Clients of one service, each of which asks again at once."""

    def __init__(self, swap: SwapBench, name: str, number: int) -> None:
        self.seconds: list[float] = []
        self.wrong: list[object] = []
        self._swap, self._name = swap, name
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(number)
        self._running = [self._pool.submit(self._ask) for _ in range(number)]

    def _ask(self) -> None:
        while not self._ended.is_set():
            began = time.monotonic()
            status, content = self._swap.clients[self._name].ask()
            self.seconds.append(time.monotonic() - began)
            if (status, content.get("choices")) != (200, [{"text": self._name}]):
                self.wrong.append((status, content))

    def stop(self) -> None:
        self._ended.set()
        for each in self._running:
            each.result(60)


def test_two_that_are_never_without_requests_have_the_gpus_in_turn(swap: SwapBench) -> None:
    swap.start()
    swap.behave(seconds=0.1)
    before = swap.turns()
    crowds = [Crowd(swap, name, 8) for name in BOTH]
    await_value(lambda: swap.turns() >= before + 10, "turns")
    for crowd in crowds:
        crowd.stop()
        assert crowd.wrong == []
        assert len(crowd.seconds) > 50
        assert max(crowd.seconds) < 10


def test_a_request_that_runs_is_never_cut(swap: SwapBench) -> None:
    swap.start()
    swap.behave(seconds=2.0)
    with ThreadPoolExecutor(3) as pool:
        long = pool.submit(swap.text, "coder")
        await_value(lambda: "] request" in swap.bench.log("coder"), "it to run")
        other = pool.submit(swap.text, "chat")
        kept = time.monotonic() + 2 * FASTER.swap_least
        await_value(lambda: time.monotonic() > kept, "new requests to be held")
        late = pool.submit(swap.text, "coder")
        assert long.result(60) == "coder"
        assert not other.done()
        assert other.result(60) == "chat"
        assert not late.done(), "after the one that waited before it"
        assert late.result(60) == "coder"


@pytest.mark.parametrize("name", BOTH)
def test_one_that_is_killed_awake_starts_again_and_the_other_serves(
    swap: SwapBench, name: str
) -> None:
    other = BOTH[name == "chat"]
    swap.start()
    assert swap.text(name) == name
    swap.kill(name)
    assert swap.text(other) == other
    await_value(lambda: (swap.bench.service(name) or pytest.fail("gone")).restarts, "a restart")
    swap.await_there(name)
    assert swap.text(name) == name
    assert swap.text(other) == other
    state = swap.bench.service(other)
    assert state is not None
    assert state.restarts == 0


def test_one_that_is_killed_while_it_wakes_starts_again_with_its_cause(swap: SwapBench) -> None:
    swap.start()
    swap.behave(wake_up="hang", coder={"wake_up": "ok"})
    asked = ThreadPoolExecutor(1).submit(swap.clients["chat"].ask)
    swap.await_phases("asleep", "asleep")
    await_value(lambda: (swap.bench.service() or pytest.fail("gone")).sleep.waiting, "a request")
    swap.behave()
    swap.kill("chat")
    assert asked.result(60)[0] in (200, 502, 503), "lost, unless it is back"
    assert swap.text("coder") == "coder"
    await_value(lambda: (swap.bench.service() or pytest.fail("gone")).restarts, "a restart")
    swap.await_there("chat")
    assert "signal 9" in (swap.bench.service() or pytest.fail("gone")).last_failure
    assert swap.text("chat") == "chat"


def test_one_that_cannot_wake_is_tried_again_with_a_pause(haproxy: None) -> None:
    timing = replace(FASTER, service_backoff_first=1.0, service_backoff_max=4.0)
    with tempfile.TemporaryDirectory(prefix="swap") as root, reserved() as one, reserved() as two:
        swap = SwapBench(Path(root), (port_of(one), port_of(two)), timing)
        try:
            swap.start()
            swap.behave(wake_up="error", coder={"wake_up": "ok"})
            began = time.monotonic()
            assert swap.clients["chat"].ask()[0] in (502, 503)
            state = await_value(
                lambda: next((s for s in [swap.bench.service()] if s and s.last_failure), None),
                "its failure",
            )
            assert "could not wake: CUDA error: out of memory" in state.last_failure
            assert "retrying in 1 s" in state.detail
            assert swap.text("coder") == "coder"
            swap.behave()
            swap.await_there("chat")
            assert time.monotonic() - began > 1.0
            assert swap.text("chat") == "chat"
            assert not swap.seat.with_suffix(".taken").exists()
        finally:
            swap.bench.stop()


def test_one_that_is_killed_in_its_sleep_starts_again_in_a_pause_of_the_other(
    swap: SwapBench,
) -> None:
    swap.start()
    assert swap.text("chat") == "chat"
    swap.await_phases("ready", "asleep")
    crowd = Crowd(swap, "chat", 4)
    await_value(lambda: len(crowd.seconds) > 50, "answers")
    swap.kill("coder")
    told = "for its turn: it starts after 0.5 s without requests for chat"
    await_value(lambda: told in swap.bench.told("coder"), "it to wait")
    since, number = time.monotonic(), len(crowd.seconds)
    await_value(lambda: time.monotonic() > since + 2, "more than such a pause")
    assert swap.phase("coder") == "waiting"
    crowd.stop()
    assert crowd.wrong == []
    assert len(crowd.seconds) > number
    swap.await_there("coder")
    assert swap.text("coder") == "coder"


def test_a_new_supervisor_starts_both_in_order(swap: SwapBench) -> None:
    swap.start()
    assert swap.text("chat") == "chat"
    swap.bench.end_supervisor()
    swap.start()
    for name in BOTH:
        assert swap.text(name) == name
    started = [word for each in swap.bench.starts("vllm") for word in each["argv"] if word in BOTH]
    assert started == ["chat", "coder"] * 2


def test_a_request_ends_the_start_of_the_other(swap: SwapBench) -> None:
    swap.behave(coder={"never_listen": True})
    swap.bench.start()
    swap.await_phases("asleep", "loading")
    assert swap.text("chat") == "chat"
    state = swap.bench.service("coder")
    assert state is not None
    assert (state.restarts, state.last_failure) == (0, "")
    swap.behave()
    swap.await_phases("asleep", "ready")


def test_one_wakes_once_no_rank_of_the_other_has_memory(swap: SwapBench) -> None:
    rank = subprocess.Popen(["sleep", "600"])
    try:
        swap.start()
        swap.bench.actors(
            {"name": "vllm_Worker_x", "node_id": "n1", "node_ip": "10.0.0.1", "pid": rank.pid,
             "driver_pid": swap.process("coder")}
        )  # fmt: skip
        coder = await_value(
            lambda: next((s for s in [swap.bench.service("coder")] if s and s.ranks), None), "ranks"
        )
        assert len(coder.ranks) == 1
        swap.behave(coder={"never_listen": True})
        swap.kill("coder")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(swap.text, "chat")
            await_value(
                lambda: (swap.bench.service() or pytest.fail("gone")).sleep.waiting, "a request"
            )
            assert swap.phase("chat") == "asleep"
            rank.kill()
            rank.wait()
            swap.bench.actors()
            assert asked.result(60) == "chat"
    finally:
        rank.kill()
        rank.wait()


def test_the_second_one_is_removed_and_declared_again_while_the_first_one_serves(
    swap: SwapBench,
) -> None:
    swap.start()
    swap.bench.remove("coder")
    assert swap.text("chat") == "chat", "it wakes alone"
    await_value(lambda: swap.bench.service("coder") is None, "it to end")
    swap.bench.declare(**vars(swap.documents["coder"]))
    swap.await_phases("asleep", "ready")
    assert swap.text("chat") == "chat"


def test_a_change_of_the_first_one_restarts_it_alone(swap: SwapBench) -> None:
    swap.start()
    swap.bench.declare(**{**vars(swap.documents["chat"]), "fingerprint": "2"})
    await_value(lambda: len(swap.bench.starts("vllm")) == 3, "it to start again")
    swap.await_phases("ready", "asleep")
    assert swap.text("coder") == "coder"


def test_metrics_are_read_at_once_when_it_matters_whether_it_still_works(bench: Bench) -> None:
    bench.behaviour("vllm", {"running": 1})
    timing = replace(QUICK, scrape_every=600.0)
    attempt = Attempt(bench.declare(swap=True), {}, bench.paths, timing, frozenset(), KEY)
    try:
        await_value(lambda: attempt.reading.ready, "it to answer")
        attempt.look_again(1)
        await_value(lambda: attempt.reading.running == 1, "a reading")
        bench.behaviour("vllm", {})
        attempt.look_again(1)
        assert attempt.reading.running == 1, "once for each time that it was busy"
        attempt.look_again(2)
        await_value(lambda: attempt.reading.running == 0, "another reading")
    finally:
        attempt.kill()


def test_one_whose_partner_is_not_there_says_so(bench: Bench) -> None:
    bench.declare("coder", swap_with="chat")
    bench.start()
    state = await_value(
        lambda: next(
            (s for s in [bench.service("coder")] if s and s.detail.startswith("for chat")), None
        ),
        "it to wait",
    )
    serve = "clusterctl serve MODEL --name chat --swap"
    assert state.detail == f"for chat, with which it swaps: {serve}"


def test_a_document_of_before_reads_as_one_that_does_not_swap(bench: Bench) -> None:
    document = bench.declare()
    text = to_json(document).replace('"swap": false,', "").replace('"swap_with": "",', "")
    assert '"swap' not in text
    assert from_json(ServiceDocument, text) == document
    assert not document.takes_turns
    assert sleeping.HOLD == "hold"
