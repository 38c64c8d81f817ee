"""Whom a relay asks, and when it asks somebody else."""

from __future__ import annotations

import pytest

from clusterctl.transfer.relay.upstream import (
    LONG_REST,
    REST,
    SHORT_STALL,
    SOURCE,
    Upstream,
    Upstreams,
    UpstreamStats,
)

STALL = 15.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def before(clock: Clock) -> Upstream:
    return Upstream("gpu2", UpstreamStats("gpu2", clock))


@pytest.fixture
def first(clock: Clock) -> Upstream:
    return Upstream("gpu1", UpstreamStats("gpu1", clock))


@pytest.fixture
def source(clock: Clock) -> Upstream:
    return Upstream(SOURCE, UpstreamStats(SOURCE, clock))


@pytest.fixture
def upstreams(clock: Clock, before: Upstream, first: Upstream, source: Upstream) -> Upstreams:
    found = Upstreams(STALL, clock)
    found.set([before, first, source])
    return found


@pytest.fixture
def pair(clock: Clock, before: Upstream, source: Upstream) -> Upstreams:
    """The host before and the source alone."""
    found = Upstreams(STALL, clock)
    found.set([before, source])
    return found


def test_the_host_before_is_asked_first(upstreams: Upstreams, before: Upstream) -> None:
    assert upstreams.choose(()) is before


def test_one_that_broke_rests_and_the_next_host_is_asked(
    upstreams: Upstreams, clock: Clock, before: Upstream, first: Upstream
) -> None:
    upstreams.failed(before, for_now=True)

    assert upstreams.choose(()) is first
    clock.now += REST
    assert upstreams.choose(()) is before


def test_the_source_waits_until_a_broken_host_had_time_to_come_back(
    pair: Upstreams, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=True)

    assert pair.choose({"gpu2"}) is None
    clock.now += STALL
    assert pair.choose({"gpu2"}) is source


def test_one_that_fell_silent_or_refuses_is_not_waited_for(
    pair: Upstreams, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=False)

    assert pair.choose({"gpu2"}) is source


def test_a_host_that_stays_away_rests_longer(
    pair: Upstreams, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=True)
    clock.now += STALL
    pair.failed(before, for_now=True)

    clock.now += LONG_REST - 1
    assert pair.choose(()) is source
    clock.now += 1
    assert pair.choose(()) is before


def test_after_it_worked_again_a_failure_counts_anew(
    pair: Upstreams, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=True)
    clock.now += STALL + 1
    pair.works(before)
    pair.failed(before, for_now=True)

    assert pair.choose({"gpu2"}) is None


def test_wrong_bytes_are_not_asked_for_again(upstreams: Upstreams, source: Upstream) -> None:
    assert upstreams.choose({"gpu1", "gpu2"}) is source


def test_a_host_that_came_back_is_better_than_the_source(
    upstreams: Upstreams, clock: Clock, before: Upstream, first: Upstream, source: Upstream
) -> None:
    joined = clock.now
    assert not upstreams.has_better(source, joined)

    clock.now += 5
    again = Upstream("gpu2", UpstreamStats("gpu2", clock))
    upstreams.set([again, first, source])

    assert upstreams.has_better(source, joined)
    assert not upstreams.has_better(again, joined)
    assert not upstreams.has_better(source, clock.now)


def test_one_that_another_is_preferred_to_now_is_left(
    upstreams: Upstreams, clock: Clock, before: Upstream, first: Upstream, source: Upstream
) -> None:
    joined = clock.now
    clock.now += 5
    upstreams.set([first, source])

    assert upstreams.has_better(before, joined), "it is not to be used any more"
    assert upstreams.has_better(source, joined)
    assert not upstreams.has_better(first, joined)
    clock.now += 5
    upstreams.set([before, first, source])
    assert upstreams.has_better(first, clock.now - 5)


def test_silence_is_borne_longer_where_only_the_source_is_left(
    upstreams: Upstreams, pair: Upstreams, before: Upstream, first: Upstream, source: Upstream
) -> None:
    assert upstreams.patience(before) == SHORT_STALL
    assert upstreams.patience(source) == pair.patience(before) == STALL
    upstreams.failed(first, for_now=False)
    assert upstreams.patience(before) == STALL, "the other host does not answer either"


def test_silence_is_that_of_all_streams_together(clock: Clock) -> None:
    stats = UpstreamStats("gpu1", clock)
    stats.began()
    clock.now += 10
    stats.began()
    assert stats.silence() == 10
    stats.heard(5)
    clock.now += 3
    assert (stats.silence(), stats.received) == (3, 5)
    stats.ended()
    stats.ended()
    clock.now += 100
    stats.began()
    assert stats.silence() == 0
