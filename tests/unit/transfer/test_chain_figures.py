"""The control side's own arithmetic: the rate limit, and what hosts say of themselves."""

from __future__ import annotations

import pytest

from clusterctl.transfer.relay_supervisor import RelayFigures
from clusterctl.transfer.source_multiplexer import Throttle


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_limit_holds_over_all_streams() -> None:
    time = Time()
    throttle = Throttle(1000, clock=time, sleep=time.sleep)

    for _ in range(10):
        throttle.take(500)

    assert time.now == 4.5, "the first piece may go at once"


def test_time_that_nobody_used_is_not_made_up_for() -> None:
    time = Time()
    throttle = Throttle(1000, clock=time, sleep=time.sleep)
    throttle.take(500)
    time.now = 100.0

    throttle.take(500)
    throttle.take(500)

    assert time.now == 100.5


def test_without_a_limit_nothing_waits() -> None:
    time = Time()
    Throttle(None, clock=time, sleep=time.sleep).take(10**12)
    assert time.now == 0


def test_pieces_are_small_where_the_rate_is() -> None:
    assert Throttle(1000).piece < Throttle(None).piece


def test_rates_are_those_of_the_last_seconds() -> None:
    time = Time()
    figures = RelayFigures("gpu1", time)
    for second in range(20):
        time.now = float(second)
        figures.take(str(second * 100), "5000", str(second * 100), "gpu0,source", "")

    found = figures.progress(lost=False)

    assert found.rate == 100
    assert (found.done, found.total, found.received) == (1900, 5000, 1900)
    assert found.sources == ("gpu0", "source")
    time.now = 40.0
    assert figures.progress(lost=False).rate == 0


def test_a_relay_that_was_started_again_counts_on() -> None:
    time = Time()
    figures = RelayFigures("gpu1", time)
    figures.take("700", "1000", "700", "source", "")
    figures.relay_ended()
    between = figures.progress(lost=False)
    time.now = 1.0
    figures.take("800", "1000", "150", "source", "")

    assert (between.received, between.sources) == (700, ())
    assert between.waiting == "waiting for its relay to restart"
    assert figures.progress(lost=False).received == 850
    assert figures.progress(lost=True).waiting is None


@pytest.mark.parametrize("count", ["-1", "9" * 400])
def test_counts_that_no_disk_holds_are_refused(count: str) -> None:
    """Rates are floats, which end at 1e308."""
    figures = RelayFigures("gpu1", Time())

    with pytest.raises(ValueError, match="no counts of bytes"):
        figures.take("1", "1", count, "", "")

    assert figures.progress(lost=False).rate == 0
