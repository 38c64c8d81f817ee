"""The Ray contract as the operator sees it: every host exactly once, as the inventory says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import RayNotFormed, raise_all
from clusterctl.node.contract import Breach, breaches
from clusterctl.node.documents import ExpectedNode, NodeState, RayNode

POLL = 1.0  # Seconds between two looks at the head's state


@dataclass(frozen=True)
class Wait:
    """How `await_formed` passes time; tests bring their own."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = lambda _: None


def problems(expected: Sequence[ExpectedNode], nodes: Sequence[RayNode]) -> list[RayNotFormed]:
    """One error for each way in which Ray is not what the inventory promises."""
    return [_error(breach) for breach in breaches(expected, nodes)]


def await_formed(
    expected: Sequence[ExpectedNode],
    read_state: Callable[[], NodeState | None],
    timeout: float,
    wait: Wait | None = None,
) -> NodeState:
    """The head's state, once the contract holds in it.

    `read_state` fetches the head's state.json, None while there is none. `timeout` in seconds.
    Raises RayNotFormed, or Problems with one for every host, naming what was seen last.
    """
    wait = wait or Wait()
    deadline = wait.clock() + timeout
    said = ""
    while True:
        state = read_state()
        found = _missing_so_far(expected, state)
        if state and not found:
            return state
        if wait.clock() >= deadline:
            raise_all(found)
        text = "waiting for Ray: " + "; ".join(str(problem) for problem in found)
        if text != said:
            wait.say(text)
            said = text
        wait.sleep(POLL)


def _missing_so_far(
    expected: Sequence[ExpectedNode], state: NodeState | None
) -> list[RayNotFormed]:
    if state is None:
        return [
            RayNotFormed(
                "the head's supervisor has reported nothing yet",
                hint="clusterctl status",
            )
        ]
    if state.time - state.nodes_time > deadlines.STALE:
        return [
            RayNotFormed(
                f"Ray on the head is {state.ray}: {state.ray_detail or 'no report of its nodes'}",
                host=state.host,
                hint=f"clusterctl logs --host {state.host}",
            )
        ]
    return problems(expected, state.nodes)


def _error(breach: Breach) -> RayNotFormed:
    return RayNotFormed(
        breach.summary, host=breach.host, hint=f"clusterctl logs --host {breach.host}"
    )
