"""Replicas that are asked as they are needed: over hours of load, and with a real HAProxy."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pytest

from clusterctl.node.endpoint import Reading, parse_metrics
from clusterctl.node.gateway_members import MemberProof
from clusterctl.node.scaling import MOST_LATE, Scaling, ScalingTarget
from clusterctl.node.timing import Timing
from tests.bench.load import Load, LoadReport, run_load
from tests.fakes.model_server import ModelServer
from tests.fakes.node_bench import await_value
from tests.fakes.ports import port_of, reserved
from tests.unit.node.test_gateway import CLUSTER_KEY, GatewayBench, dying, short_path

__all__ = ["short_path"]

TIMING = Timing()
FOUR = ["replica-1", "replica-2", "replica-3", "replica-4"]
NAMES = frozenset


@dataclass
class Queue:
    """A replica with places for `places` requests, each of which takes `seconds`."""

    places: int = 10
    seconds: float = 5.0
    running: list[float] = field(default_factory=list)
    waiting: int = 0

    def second(self, arrived: int) -> Reading:
        """Pass a second in which so many requests arrived."""
        self.running = [left - 1.0 for left in self.running if left > 1.0]
        self.waiting += arrived
        while self.waiting and len(self.running) < self.places:
            self.waiting -= 1
            self.running.append(self.seconds)
        return Reading(ready=True, running=len(self.running), waiting=self.waiting)


@dataclass
class Fleet:
    """Four replicas, of which those that are asked share what arrives."""

    target: ScalingTarget = field(default_factory=lambda: ScalingTarget(least=1))
    scaling: Scaling = field(default_factory=lambda: Scaling(TIMING))
    queues: dict[str, Queue] = field(default_factory=lambda: {name: Queue() for name in FOUR})
    now: float = 0.0
    due: float = 0.0
    asked: frozenset[str] = NAMES({FOUR[0]})
    numbers: list[int] = field(default_factory=list)
    """Of replicas that were asked, by second."""

    def serve(self, seconds: int, rate: float) -> None:
        for _ in range(seconds):
            self.due += rate
            arriving = dict.fromkeys(FOUR, 0)
            while self.due >= 1:
                self.due -= 1
                least = min(
                    sorted(self.asked),
                    key=lambda n: (
                        len(self.queues[n].running) + self.queues[n].waiting + arriving[n]
                    ),
                )
                arriving[least] += 1
            readings = {name: self.queues[name].second(arriving[name]) for name in FOUR}
            self.asked = self.scaling.asked(self.now, self.target, FOUR, readings)
            self.numbers.append(len(self.asked))
            self.now += 1.0

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in self.queues.values())


def test_a_load_times_three_is_met_within_ten_seconds_and_left_again_when_it_ends() -> None:
    fleet = Fleet()
    fleet.serve(120, rate=1.0)
    assert set(fleet.numbers) == {1}

    fleet.serve(10, rate=3.0)
    assert fleet.numbers[-1] == 2  # Three requests a second of 5 s each need 15 of 20 places
    fleet.serve(20, rate=3.0)
    assert fleet.waiting == 0
    fleet.serve(10, rate=7.0)
    assert fleet.numbers[-1] == 4

    fleet.serve(300, rate=0.5)
    assert fleet.numbers[-1] == 1
    assert fleet.waiting == 0


@pytest.mark.parametrize("rate", [0.1, 1.0, 1.7, 1.9, 2.1, 2.6, 3.4, 3.9, 4.2, 5.5, 6.3, 7.7])
def test_a_steady_load_settles(rate: float) -> None:
    fleet = Fleet()
    fleet.serve(900, rate)
    fleet.numbers.clear()
    fleet.serve(3600, rate)

    changes = sum(one != other for one, other in pairwise(fleet.numbers))
    assert changes <= 2, fleet.numbers
    assert fleet.waiting < 20, fleet.numbers


@pytest.mark.parametrize("least", [0, 1, 2, 4])
def test_never_fewer_than_the_least_are_asked_and_always_one(least: int) -> None:
    fleet = Fleet(ScalingTarget(least))
    fleet.serve(1000, rate=0.1)
    assert set(fleet.numbers) == {max(least, 1)}


def test_only_replicas_that_are_ready_are_asked_the_first_ones() -> None:
    scaling, idle = Scaling(TIMING), Reading(ready=True)
    readings = dict.fromkeys(FOUR, idle)
    target = ScalingTarget(least=2)
    assert scaling.asked(0.0, target, FOUR, readings) == NAMES(FOUR[:2])
    assert scaling.asked(0.2, target, FOUR[1:], readings) == NAMES(FOUR[1:3])
    assert scaling.asked(0.4, target, FOUR[3:], readings) == NAMES(FOUR[3:])
    assert scaling.asked(0.6, target, [], {}) == NAMES()
    assert scaling.asked(0.8, target, FOUR, readings) == NAMES(FOUR[:2])


def seconds_of(readings: Iterator[dict[str, Reading]], target: ScalingTarget) -> Iterator[Scaling]:
    scaling = Scaling(TIMING)
    for now, each in enumerate(readings):
        scaling.asked(float(now), target, FOUR, each)
        yield scaling


def events(readings: list[Reading], target: ScalingTarget) -> list[str]:
    """Return what changed while the first replica's readings were these, a second apart."""
    idle = dict.fromkeys(FOUR, Reading(ready=True))
    each = ({**idle, FOUR[0]: reading} for reading in readings)
    return [scaling.event for scaling in seconds_of(each, target) if scaling.event]


def test_a_full_cache_wakes_another_and_a_moment_does_not() -> None:
    full, half = Reading(ready=True, kv_cache_use=0.97), Reading(ready=True, kv_cache_use=0.5)
    assert events([half, full, half] * 20, ScalingTarget(1)) == []
    assert events([half, full, full, full, half], ScalingTarget(1)) == [
        "uses 2 of 4 replicas: a KV cache is 97% full"
    ]


def test_a_queue_that_drains_wakes_nobody() -> None:
    queue = [Reading(ready=True, running=8, waiting=n) for n in (60, 50, 40, 30, 20, 10, 0, 0)]
    assert events(queue, ScalingTarget(1)) == []
    assert events(queue[::-1], ScalingTarget(1)) == [
        "uses 2 of 4 replicas: 30 requests are waiting"
    ]


@pytest.mark.parametrize("waiting", [(7, 6, 7, 6, 7), (7, 7, 0, 7, 7)])
def test_a_queue_that_clients_fill_again_wakes_another(waiting: tuple[int, ...]) -> None:
    queue = [Reading(ready=True, running=1, waiting=number) for number in waiting]
    assert len(events(queue, ScalingTarget(1))) == 1


def first_tokens(in_time: int, late: int) -> Reading:
    buckets = {0.5: float(in_time), 1.0: float(in_time), float("inf"): float(in_time + late)}
    return Reading(ready=True, first_tokens=buckets)


def test_late_first_tokens_wake_another_if_there_is_a_target() -> None:
    late = [first_tokens(100 + 10 * n, 50 + 5 * n) for n in range(4)]
    assert events(late, ScalingTarget(1)) == []
    assert events(late, ScalingTarget(1, ttft=1.0)) == [
        "uses 2 of 4 replicas: 33% of first tokens came after 1 s"
    ]
    few = [first_tokens(1000 * n, round(1000 * n * MOST_LATE / 2)) for n in range(9)]
    assert events(few, ScalingTarget(1, ttft=1.0)) == []


def test_late_first_tokens_that_come_seldom_wake_another_too() -> None:
    """One in three seconds, all of them late: long prompts."""
    late = [first_tokens(0, n // 3) for n in range(30)]
    assert events(late, ScalingTarget(1, ttft=1.0))[:1] == [
        "uses 2 of 4 replicas: 100% of first tokens came after 1 s"
    ]


def test_late_first_tokens_are_forgotten_when_nobody_asks_any_more() -> None:
    late = [first_tokens(0, n) for n in range(9)]
    assert events(late + [late[-1]] * 300, ScalingTarget(1, ttft=1.0)) == [
        "uses 2 of 4 replicas: 100% of first tokens came after 1 s",
        "uses 4 of 4 replicas: 100% of first tokens came after 1 s",
        "uses 3 of 4 replicas: 0 requests, which fewer can take",
        "uses 2 of 4 replicas: 0 requests, which fewer can take",
        "uses 1 of 4 replicas: 0 requests, which fewer can take",
    ]


def test_a_gateway_that_starts_asks_those_that_have_requests() -> None:
    busy = dict.fromkeys(FOUR, Reading(ready=True, running=8))
    scaling, target = Scaling(TIMING), ScalingTarget(least=1)
    assert scaling.asked(0.0, target, FOUR[:1], busy) == NAMES(FOUR[:1])
    assert scaling.asked(1.0, target, FOUR, busy) == NAMES(FOUR)
    assert scaling.asked(2.0, target, FOUR, dict.fromkeys(FOUR, Reading())) == NAMES(FOUR)


def test_one_that_is_not_ready_for_a_moment_leaves_the_number() -> None:
    busy = dict.fromkeys(FOUR, Reading(ready=True, running=8))
    scaling, target = Scaling(TIMING), ScalingTarget(least=1)
    for now in range(10):
        assert scaling.asked(now, target, FOUR, busy) == NAMES(FOUR)
    assert scaling.asked(10.0, target, FOUR[:1], busy) == NAMES(FOUR[:1])
    assert scaling.asked(11.0, target, FOUR, busy) == NAMES(FOUR)


def test_one_that_flaps_changes_hands_once() -> None:
    """Each change is a reload of the gateway."""
    idle = dict.fromkeys(FOUR, Reading(ready=True))
    scaling, target = Scaling(TIMING), ScalingTarget(least=1)
    asked = []
    for now in range(600):
        ready = FOUR if now % 24 < 12 else FOUR[1:]
        asked.append(scaling.asked(float(now), target, ready, idle))
    assert sum(one != other for one, other in pairwise(asked)) == 1
    asked += [scaling.asked(float(now), target, FOUR, idle) for now in range(600, 700)]
    assert asked[-1] == NAMES(FOUR[:1])
    assert sum(one != other for one, other in pairwise(asked)) == 2


def test_an_engine_that_counts_from_zero_again_is_no_news() -> None:
    history = [first_tokens(100, 50), first_tokens(0, 0), first_tokens(0, 0), first_tokens(9, 0)]
    assert events(history, ScalingTarget(1, ttft=1.0)) == []


METRICS = """\
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.001",model_name="m}"} 0.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="m"} 7.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="m"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="0.5",model_name="m"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="1",le="+Inf",model_name="m"} 1.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 9.0
"""


def test_first_tokens_are_read_from_the_histogram_over_all_engines() -> None:
    assert parse_metrics(METRICS).first_tokens == {0.001: 0.0, 0.5: 8.0, float("inf"): 10.0}


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_a_number_that_is_none_is_left_out(value: str) -> None:
    text = METRICS + f"vllm:num_requests_running {value}\nvllm:num_requests_waiting {value}\n"
    text += f'vllm:time_to_first_token_seconds_bucket{{le="2"}} {value}\n'
    found = parse_metrics(text)
    assert (found.running, found.waiting, found.first_tokens.get(2.0)) == (0, 0, None)


def test_a_long_line_takes_no_longer_than_its_length() -> None:
    def seconds(times: int) -> float:
        line = "vllm:time_to_first_token_seconds_bucket{" + 'le="1" ' * times
        began = time.process_time()
        parse_metrics(f"{line}}} 1\n" * 20)
        return time.process_time() - began

    seconds(1000)
    assert seconds(40_000) < 40 * seconds(4_000) + 0.5


class ScalingBench(GatewayBench):
    """A gateway over three replicas of `tiny`, one of which stays awake."""

    def __init__(self, root: Path, port: int) -> None:
        super().__init__(root, port)
        self.replicas.append(ModelServer(CLUSTER_KEY))
        self.documents = {"tiny": replace(self.service("tiny", self.replicas), least=1)}
        self.report([Reading(ready=True)] * 3)

    def report(self, readings: list[Reading]) -> None:
        """Have the replicas say this of themselves from now on."""
        self.proofs = {
            replica.port: MemberProof(ready=reading.ready, reading=reading)
            for replica, reading in zip(self.replicas, readings, strict=True)
        }
        self.follow()

    def asked(self) -> list[int]:
        """Return the numbers of the replicas that get requests and are not spare."""
        members = self.state().members
        return [one.replica for one in members if one.admitted and not one.spare]

    def await_asked(self, *numbers: int) -> None:
        await_value(lambda: self.asked() == list(numbers), f"{numbers}, not {self.asked()}")

    def served(self) -> list[int]:
        return [len(replica.requests) for replica in self.replicas]


@pytest.fixture
def bench(short_path: Path, haproxy: None) -> Iterator[ScalingBench]:
    with reserved() as port:
        bench = ScalingBench(short_path, port_of(port))
        bench.await_up()
        bench.await_asked(1)
        yield bench
        bench.stop()


WAITS = Reading(ready=True, running=50, waiting=20)


def test_others_get_requests_once_they_are_needed(bench: ScalingBench) -> None:
    assert {bench.post().status_code for _ in range(10)} == {200}
    assert bench.served() == [10, 0, 0]
    assert all(member.admitted for member in bench.state().members)

    bench.report([WAITS, *[Reading(ready=True)] * 2])
    bench.await_asked(1, 2)
    assert "uses 2 of 3 replicas: 20 requests are waiting" in bench.paths.journal.read_text()
    bench.report([Reading(ready=True)] * 3)
    await_value(lambda: bench.post().status_code == 200 and bench.served()[1] > 0, "the second")
    assert bench.served()[2] == 0


def test_no_request_is_lost_while_the_number_changes(bench: ScalingBench) -> None:
    url, reports = f"http://127.0.0.1:{bench.port}", list[LoadReport]()
    load = Load(url, "tiny", 20, 10, CLUSTER_KEY)
    thread = threading.Thread(target=lambda: reports.append(run_load(load)))
    thread.start()
    bench.report([WAITS, *[Reading(ready=True)] * 2])
    bench.await_asked(1, 2)
    bench.report([Reading(ready=False), *[Reading(ready=True)] * 2])
    bench.await_asked(2, 3)
    thread.join()
    assert reports[0].lost == 0, reports[0].to_json()


def test_what_the_only_one_that_is_asked_loses_is_answered_by_a_spare(bench: ScalingBench) -> None:
    first, url = bench.replicas[0], f"http://127.0.0.1:{bench.port}"

    with dying(first):
        report = run_load(Load(url, "tiny", 20, 1, CLUSTER_KEY))

    assert report.lost == 0, report.to_json()
    assert first.dropped
    assert bench.served()[1] == len(first.dropped)
