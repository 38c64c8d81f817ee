"""Which of two engines on the same GPUs starts, sleeps or wakes: see node/standby.py. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clusterctl.node.sleeping import REFUSE, SLEEP, WAKE

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
    waiting: bool = False  # Requests wait until it is awake
    silent: bool = False  # No sign of life: the gateway prefers others


@dataclass(frozen=True)
class Turn:
    """Whether a service of two on the same GPUs may start."""

    why_wait: str = ""
    beside: bool = False  # The other one has a process, maybe with memory of the GPUs


class Step(NamedTuple):
    """What is due with one of two engines; no word if nothing is."""

    word: str = ""  # START, END, or an order of node/sleeping.py
    standby: bool = False


def next_step(first: Engine, standby: Engine, *, quiet: bool) -> Step:
    """Return what is due. `quiet`: neither has had a request for so long that the service may do
    without an engine that is awake."""
    phases = (first.phase, standby.phase)
    if "moving" in phases:
        return Step()
    if "asleep" in phases:
        return _beside_a_sleeper(first, standby, quiet=quiet)

    if standby.phase == "loading":  # The first one, whose shares keep its ranks apart, has ended
        return Step(END, standby=True)
    if first.phase == "due" and standby.phase != "awake":
        return Step(START)
    if phases == ("due", "awake") and quiet and not standby.busy:
        return Step(SLEEP, standby=True)
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
        return Step() if standby.busy else Step(SLEEP, standby=True)
    if standby.waiting and not first.silent:
        return Step(REFUSE, standby=True)
    return Step()
