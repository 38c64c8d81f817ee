"""How every change to a cluster is made: look, ask, lock, look again, act.

The lock is never held while a person thinks: if something new is found under the lock, the lock is
released before it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from clusterctl.errors import StepFailed

ROUNDS = 5  # Times that a plan is shown before the user is told that others change the cluster


class Held(Protocol):
    """The cluster's lock."""

    def ensure_held(self) -> None:
        """Raise if the lock was lost."""


P = TypeVar("P")
L = TypeVar("L", bound=Held)
R = TypeVar("R")


def carry_out(
    look: Callable[[], P],
    ask: Callable[[P], object],
    lock: Callable[[], AbstractContextManager[L]],
    act: Callable[[P, L | None], R],
    shown: Callable[[P], Set[object]],
) -> R:
    """Return the result of `act` for a plan that the user has agreed to.

    look   look at the cluster, and plan; called again under the lock, since another run may have
           changed the cluster meanwhile
    ask    show the plan; raises if the user declines
    act    gets the plan and the lock; None if there is nothing to change
    shown  everything that the user sees of a plan: if nothing was added, there is no second prompt

    Raises StepFailed if the plan differs each time, and what its arguments raise.
    """
    plan = look()
    for _ in range(ROUNDS):
        ask(plan)
        if not shown(plan):
            return act(plan, None)
        with lock() as held:
            now = look()
            if shown(now) <= shown(plan):
                return act(now, held)
        plan = now
    raise StepFailed(
        f"the cluster was changed {ROUNDS} times between the plan and the lock",
        hint="clusterctl status; run the same command again once other runs have ended",
    )
