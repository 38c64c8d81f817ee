"""Which of two engines on the same GPUs starts, sleeps or wakes: see node/standby.py. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.node.sleeping import HOLD, REFUSE, SLEEP, WAKE

START, END = "start", "end"


@dataclass(frozen=True)
class Engine:
    """A service of two on the same GPUs, at one moment.

    `phase`: absent (no process, and it cannot start now) | due (no process, and only its turn is in
    the way) | loading | awake | asleep | moving (it falls asleep, wakes or ends: nobody knows how
    much memory it has).
    """

    phase: str
    busy: bool = False  # It works on requests
    waiting: bool = False  # Requests wait until it is awake, or until they are let in
    held: bool = False  # It is awake, and lets no new request in
    silent: bool = False  # No sign of life: the gateway prefers others
    quiet: bool = False  # It has had no request for so long that another engine may start
    kept: bool = False  # It has not been awake for long


@dataclass(frozen=True)
class Turn:
    """Whether a service of two on the same GPUs may start."""

    why_wait: str = ""
    beside: bool = False  # The other one has a process, maybe with memory of the GPUs
    paired: bool = False  # It sleeps and wakes when it is ordered to


class Step(NamedTuple):
    """What is due with one of two engines; no word if nothing is."""

    word: str = ""  # START, END, or an order of node/sleeping.py
    second: bool = False


def next_step(first: Engine, standby: Engine, *, quiet: bool) -> Step:
    """Return what is due with an engine and its standby. `quiet`: neither has had a request for so
    long that the service may do without an engine that is awake."""
    phases = (first.phase, standby.phase)
    if "moving" in phases:
        return Step()
    if "asleep" in phases:
        return _beside_a_sleeper(first, standby, quiet=quiet)

    if standby.phase == "loading":  # The first one, whose shares keep its ranks apart, has ended
        return Step(END, second=True)
    if first.phase == "due" and standby.phase != "awake":
        return Step(START)
    if phases == ("due", "awake") and quiet and not standby.busy:
        return Step(SLEEP, second=True)
    if phases == ("awake", "due") and quiet and not first.busy:
        return Step(SLEEP)
    return Step()


def _beside_a_sleeper(first: Engine, standby: Engine, *, quiet: bool) -> Step:
    it_is = first.phase != "asleep"  # Whether the standby is the one that sleeps
    sleeper, other = (standby, first) if it_is else (first, standby)
    if other.phase == "loading":
        return Step(END, not it_is) if sleeper.waiting else Step()
    if other.phase == "due" and quiet and not sleeper.waiting:
        return Step(START, not it_is)
    if other.phase != "awake":
        return Step(WAKE, it_is)
    if other is standby:  # It was started, and has proven that it answers
        return Step() if standby.busy else Step(SLEEP, second=True)
    if standby.waiting and not first.silent:
        return Step(REFUSE, second=True)
    return Step()


def next_swap(first: Engine, second: Engine, *, second_next: bool) -> Step:
    """Return what is due with two services that swap. `second_next`: whether the first one had the
    GPUs last."""
    if "moving" in (first.phase, second.phase):
        return Step()
    if second.phase == "loading" and first.phase != "asleep":
        return Step(END, second=True)  # The first one, whose shares keep its ranks apart, has ended
    if first.phase == "due" and second.phase in ("absent", "due"):
        return Step(START)

    sides = [(first, second, False), (second, first, True)]
    for asks, other, is_second in sorted(sides, key=lambda side: side[2] != second_next):
        if asks.phase == "asleep" and asks.waiting:
            return _its_turn(other, is_second=is_second)
    for one, other, is_second in sides:
        if one.phase == "awake" and one.held:  # Nobody waits for the GPUs any more
            return Step(WAKE, is_second)
        if one.phase == "due" and other.quiet:
            if other.phase == "asleep":
                return Step(START, is_second)
            if other.phase == "awake" and not other.busy:
                return Step(SLEEP, not is_second)
    return Step()


def _its_turn(other: Engine, *, is_second: bool) -> Step:
    """Return what is due with two services of which one sleeps although requests wait for it."""
    if other.phase == "loading":
        return Step(END, not is_second)
    if other.phase != "awake":
        return Step(WAKE, is_second)
    if not other.busy:
        return Step(SLEEP, not is_second)
    return Step() if other.kept or other.held else Step(HOLD, not is_second)
