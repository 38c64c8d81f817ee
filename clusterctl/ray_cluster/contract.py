"""The Ray contract, checked by the operator: every host exactly once, as the inventory declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.deadlines import STALE, Wait, wait_until
from clusterctl.errors import RayNotFormed, raise_all
from clusterctl.node.contract import breaches
from clusterctl.node.documents import ExpectedNode, NodeState, RayNode

POLL = 1.0  # Seconds between two reads of the head's state


def problems(expected: Sequence[ExpectedNode], nodes: Sequence[RayNode]) -> list[RayNotFormed]:
    """Return an error for each difference between Ray's nodes and the expected ones."""
    return [
        RayNotFormed(each.summary, host=each.host, hint=f"clusterctl logs --host {each.host}")
        for each in breaches(expected, nodes)
    ]


def await_formed(
    expected: Sequence[ExpectedNode],
    read_state: Callable[[], NodeState | None],
    timeout: float,
    wait: Wait | None = None,
) -> NodeState:
    """Return the head's state once the contract holds.

    `read_state` reads the head's state.json, None if there is none yet. `timeout` is in seconds.
    Raises RayNotFormed, or Problems with one for every host, from the last state read.
    """
    wait = wait or Wait()
    found: list[RayNotFormed] = []
    said = ""

    def look() -> NodeState | None:
        nonlocal found, said
        state = read_state()
        if state is None:
            nothing = "the head's supervisor has not reported anything yet"
            found = [RayNotFormed(nothing, hint="clusterctl status")]
        elif state.time - state.nodes_time > STALE:
            detail = state.ray_detail or "no report of its nodes"
            hint = f"clusterctl logs --host {state.host}"
            summary = f"Ray on the head is {state.ray}: {detail}"
            found = [RayNotFormed(summary, host=state.host, hint=hint)]
        else:
            found = problems(expected, state.nodes)
            if not found:
                return state
        text = "waiting for Ray: " + "; ".join(str(problem) for problem in found)
        if text != said:
            wait.say(text)
            said = text
        return None

    formed = wait_until(look, timeout, every=POLL, wait=wait)
    if formed is None:
        raise_all(found)
        raise AssertionError("timed out without a known difference")
    return formed
