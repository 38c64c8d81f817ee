from __future__ import annotations

from collections.abc import Iterator

import pytest

from clusterctl.deadlines import Wait
from clusterctl.errors import Problems, RayNotFormed
from clusterctl.node.documents import ExpectedNode, NodeState, RayNode
from clusterctl.ray_cluster.contract import await_formed, problems

EXPECTED = [ExpectedNode("a", "10.0.0.1", 1), ExpectedNode("b", "10.0.0.2", 1)]
A = RayNode("n1", "10.0.0.1", "a", True, True, 1, 0, 8)
B = RayNode("n2", "10.0.0.2", "b", True, False, 1, 0, 8)


def state(*nodes: RayNode, nodes_time: float = 100.0) -> NodeState:
    return NodeState(
        "a", "head", 100.0, "0.1", "up", 0.0, 0, "pid 7", nodes=list(nodes), nodes_time=nodes_time
    )


class Passing:
    """A clock that moves when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []

    def wait(self) -> Wait:
        return Wait(clock=lambda: self.now, sleep=self._sleep, say=self.said.append)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds


def test_it_waits_until_the_contract_holds_and_says_what_for() -> None:
    states: Iterator[NodeState | None] = iter([None, state(A), state(A), state(A, B)])
    passing = Passing()

    found = await_formed(EXPECTED, lambda: next(states), 60, passing.wait())

    assert found == state(A, B)
    assert passing.said == [
        "waiting for Ray: the head's supervisor has not reported anything yet",
        "waiting for Ray: b: has not joined Ray",
    ]


def test_at_the_deadline_it_names_every_host() -> None:
    with pytest.raises(Problems) as caught:
        await_formed(EXPECTED, state, 5, Passing().wait())
    assert [str(error) for error in caught.value.errors] == [
        "a: has not joined Ray",
        "b: has not joined Ray",
    ]
    assert caught.value.exit_code == 9


def test_an_old_report_proves_nothing() -> None:
    with pytest.raises(RayNotFormed, match="Ray on the head is up"):
        await_formed(EXPECTED, lambda: state(A, B, nodes_time=0.0), 5, Passing().wait())


def test_problems_carry_host_and_hint() -> None:
    found = problems(EXPECTED, [A])
    assert [(p.host, p.hint) for p in found] == [("b", "clusterctl logs --host b")]
    assert problems(EXPECTED, [A, B]) == []
