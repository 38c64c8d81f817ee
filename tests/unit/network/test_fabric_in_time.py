"""A fabric gate that does not come to its end in time: whom it waited for, by name."""

from __future__ import annotations

import pytest

from clusterctl.node.fabric_documents import FabricReport
from tests.unit.network.test_fabric_verdict import verdict


@pytest.mark.parametrize(
    ("awaited", "told"),
    [
        ({"gpub": [2, 3]}, [("gpub", "rank 2, 3 had not reported")]),
        ({"gpua": [], "gpub": []}, [("gpua", "it had not reported"), ("gpub", "it had not")]),
        ({}, [("gpua", "no host is known to lag behind")]),
    ],
)
def test_a_gate_that_takes_too_long_names_whom_it_waited_for(
    awaited: dict[str, list[int]], told: list[tuple[str, str]]
) -> None:
    late = FabricReport(300, "time", "300 s (all-reduce over gloo)", awaited=awaited)

    found = verdict(late).errors

    assert [error.host for error in found] == [host for host, _ in told]
    for error, (host, words) in zip(found, told, strict=True):
        assert "took longer than 300 s (all-reduce over gloo), and " + words in str(error)
        assert f"clusterctl exec --limit {host} -- uptime" in (error.hint or "")
        assert "clusterctl check demo.yaml --fabric" in (error.hint or "")
