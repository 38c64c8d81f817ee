"""How every change to services is made: look and plan, ask, lock, look again, act.

A kind of change is a file in `commands`: a plan with the lines that the user sees, a function that
makes it from a survey, and one that carries it out. A plan that starts, moves or stops replicas is
a `planning.moves.ServiceMoves`, which `operations.moving.move` carries out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import TypeVar

from clusterctl.engine.carry_out import carry_out
from clusterctl.operations.session import Session
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock

P = TypeVar("P")
R = TypeVar("R")


def change(
    session: Session,
    command: str,
    look: Callable[[Mapping[str, Transport]], P],
    ask: Callable[[P], object],
    act: Callable[[P, ClusterLock | None], R],
    shown: Callable[[P], Set[object]],
) -> R:
    """Connect to all hosts, and `carry_out` the change. `command` is shown to others that want the
    lock. Changed documents of the head are copied to the hosts that keep them."""
    with session.connected() as transports:
        lock = partial(ClusterLock.of, session.inventory, transports, command)
        return carry_out(lambda: look(transports), ask, lock, act, shown)
