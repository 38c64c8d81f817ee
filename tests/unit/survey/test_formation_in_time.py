"""What is told of a host that did not join Ray in time."""

from __future__ import annotations

import pytest

from clusterctl.node.documents import NodeState
from clusterctl.survey.formation import told_by


def state(ray: str, detail: str) -> NodeState:
    return NodeState("gpu2", "worker", 0.0, "1", ray, 0.0, 0, ray_detail=detail)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (
            state("waiting", "for the head's GCS at 10.0.0.1:6379 (no answer)"),
            "its supervisor says that its Ray is waiting: for the head's GCS at 10.0.0.1:6379 "
            "(no answer)",
        ),
        (state("up", ""), "its supervisor says that its Ray is up"),
        (None, "its supervisor has not reported anything"),
    ],
)
def test_its_own_supervisor_says_why(seen: NodeState | None, words: str) -> None:
    told = told_by("has not joined Ray", seen)
    assert told == f"has not joined Ray (waited 180 s); {words}"
