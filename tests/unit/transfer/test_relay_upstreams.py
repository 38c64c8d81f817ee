"""Whom a relay asks, and when it asks somebody else."""

from __future__ import annotations

import pytest

from clusterctl.transfer.relay.upstream import (
    LONG_REST,
    REST,
    SHORT_STALL,
    SOURCE,
    Roster,
    Standing,
    Upstream,
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
    return Upstream("gpu2", Standing("gpu2", clock))


@pytest.fixture
def first(clock: Clock) -> Upstream:
    return Upstream("gpu1", Standing("gpu1", clock))


@pytest.fixture
def source(clock: Clock) -> Upstream:
    return Upstream(SOURCE, Standing(SOURCE, clock))


@pytest.fixture
def roster(clock: Clock, before: Upstream, first: Upstream, source: Upstream) -> Roster:
    found = Roster(STALL, clock)
    found.set([before, first, source])
    return found


@pytest.fixture
def pair(clock: Clock, before: Upstream, source: Upstream) -> Roster:
    """The host before and the source alone."""
    found = Roster(STALL, clock)
    found.set([before, source])
    return found


def test_the_host_before_is_asked_first(roster: Roster, before: Upstream) -> None:
    assert roster.choose(()) is before


def test_one_that_broke_rests_and_the_next_host_is_asked(
    roster: Roster, clock: Clock, before: Upstream, first: Upstream
) -> None:
    roster.failed(before, for_now=True)

    assert roster.choose(()) is first
    clock.now += REST
    assert roster.choose(()) is before


def test_the_source_waits_until_a_broken_host_had_time_to_come_back(
    pair: Roster, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=True)

    assert pair.choose({"gpu2"}) is None
    clock.now += STALL
    assert pair.choose({"gpu2"}) is source


def test_one_that_fell_silent_or_refuses_is_not_waited_for(
    pair: Roster, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=False)

    assert pair.choose({"gpu2"}) is source


def test_a_host_that_stays_away_rests_longer(
    pair: Roster, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=True)
    clock.now += STALL
    pair.failed(before, for_now=True)

    clock.now += LONG_REST - 1
    assert pair.choose(()) is source
    clock.now += 1
    assert pair.choose(()) is before


def test_after_it_worked_again_a_failure_counts_anew(
    pair: Roster, clock: Clock, before: Upstream, source: Upstream
) -> None:
    pair.failed(before, for_now=True)
    clock.now += STALL + 1
    pair.works(before)
    pair.failed(before, for_now=True)

    assert pair.choose({"gpu2"}) is None


def test_wrong_bytes_are_not_asked_for_again(roster: Roster, source: Upstream) -> None:
    assert roster.choose({"gpu1", "gpu2"}) is source


def test_a_host_that_came_back_is_better_than_the_source(
    roster: Roster, clock: Clock, before: Upstream, first: Upstream, source: Upstream
) -> None:
    joined = clock.now
    assert not roster.has_better(source, joined)

    clock.now += 5
    again = Upstream("gpu2", Standing("gpu2", clock))
    roster.set([again, first, source])

    assert roster.has_better(source, joined)
    assert not roster.has_better(again, joined)
    assert not roster.has_better(source, clock.now)


def test_one_that_another_is_preferred_to_now_is_left(
    roster: Roster, clock: Clock, before: Upstream, first: Upstream, source: Upstream
) -> None:
    joined = clock.now
    clock.now += 5
    roster.set([first, source])

    assert roster.has_better(before, joined), "it is not to be used any more"
    assert roster.has_better(source, joined)
    assert not roster.has_better(first, joined)
    clock.now += 5
    roster.set([before, first, source])
    assert roster.has_better(first, clock.now - 5)


def test_silence_is_borne_longer_where_only_the_source_is_left(
    roster: Roster, pair: Roster, before: Upstream, first: Upstream, source: Upstream
) -> None:
    assert roster.patience(before) == SHORT_STALL
    assert roster.patience(source) == pair.patience(before) == STALL
    roster.failed(first, for_now=False)
    assert roster.patience(before) == STALL, "the other host does not answer either"


def test_silence_is_that_of_all_streams_together(clock: Clock) -> None:
    standing = Standing("gpu1", clock)
    standing.began()
    clock.now += 10
    standing.began()
    assert standing.silence() == 10
    standing.heard(5)
    clock.now += 3
    assert (standing.silence(), standing.received) == (3, 5)
    standing.ended()
    standing.ended()
    clock.now += 100
    standing.began()
    assert standing.silence() == 0
