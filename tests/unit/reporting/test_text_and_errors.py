"""Sizes, times, columns, and errors as users read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.cli.check import _lines
from clusterctl.commands.check import Report
from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change, Unknown
from clusterctl.errors import ClusterctlError, Problems, RequirementsNotMet, Unreachable
from clusterctl.node.documents import RayNode
from clusterctl.reporting.error_view import error_document, error_lines
from clusterctl.reporting.plan_view import plan_document, plan_lines
from clusterctl.reporting.text import columns, count, duration, size
from clusterctl.survey.status import ray_lines
from tests.fakes.host_facts import host_facts


def test_what_ray_says_of_its_nodes() -> None:
    alive = RayNode("n1", "10.0.0.1", "gpu1", True, True, 2, 1, 8)
    dead = RayNode("n2", "10.0.0.2", "gpu2", False, False, 0, 0, 0)
    assert ray_lines([alive, dead], "gpu1") == [
        "gpu1 10.0.0.1: 1 of 2 GPUs in use",
        "gpu2 10.0.0.2: dead",
        "in Ray's own words: clusterctl exec --limit gpu1 --node -- ray status",
    ]
    back = replace(dead, node_id="n3", alive=True, gpus=2)
    assert ray_lines([alive, dead, back], "gpu1")[1] == "gpu2 10.0.0.2: 0 of 2 GPUs in use"
    assert len(ray_lines([alive, dead, back], "gpu1")) == 3, "dead and back is one host"
    assert ray_lines([], "gpu1") == []
    assert ray_lines([alive], "gpu1", "CPU device")[0] == "gpu1 10.0.0.1: 1 of 2 CPU devices in use"


def test_check_ends_with_a_verdict() -> None:
    facts = {"gpu1": host_facts(), "gpu2": host_facts()}
    noted = Report(facts, {}, ("a note",), ())
    assert _lines(noted, "gpu1", None)[-2:] == ["note: a note", "2 hosts: no problem found"]
    wrong = Report(facts, {}, (), (RequirementsNotMet("no engine", host="gpu1"),))
    assert "no problem" not in "\n".join(_lines(wrong, "gpu1", None)), "errors follow on stderr"


@pytest.mark.parametrize(
    ("number", "words"),
    [(512, "512 B"), (2048, "2.0 KiB"), (25_769_803_776, "24.0 GiB"), (2**40 * 300, "300 TiB")],
)
def test_size(number: int, words: str) -> None:
    assert size(number) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.42, "0.4 s"), (12.4, "12 s"), (185, "3 min 5 s"), (7440, "2 h 4 min"), (864000, "10 days")],
)
def test_duration(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_count_and_columns() -> None:
    assert [count(0, "change"), count(1, "host")] == ["0 changes", "1 host"]
    assert columns([("a", "bb", "c"), ("aaa", "b", "")]) == ["  a    bb  c", "  aaa  b"]
    assert columns([]) == []


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (None, ["    gpu1  +  make /etc/clusterctl, /etc/clusterctl/demo, /var/log/clusterctl"]),
        (
            50,
            [
                "    gpu1  +  make /etc/clusterctl,",
                "             /etc/clusterctl/demo,",
                "             /var/log/clusterctl",
            ],
        ),
        (20, ["    gpu1  +  make /etc/clusterctl, /etc/clusterctl/demo, /var/log/clusterctl"]),
    ],
)
def test_a_change_longer_than_the_terminal_goes_on_below_itself(
    width: int | None, lines: list[str]
) -> None:
    made = Change("make /etc/clusterctl, /etc/clusterctl/demo, /var/log/clusterctl")
    plan = Plan((PlannedChange("Node files", "gpu1", "directories", made),))
    assert plan_lines(plan, width=width)[2:] == lines


def test_an_error_names_host_cause_fix_and_log() -> None:
    error = Unreachable("no answer", host="gpu1", hint="ssh gpu1 true", detail="timed out\n")
    assert error_lines(error, Path("/tmp/x.log")) == [
        "error: gpu1: no answer",
        "    timed out",
        "  fix: ssh gpu1 true",
        "  log: /tmp/x.log",
    ]


def test_a_cause_goes_on_below_itself_and_what_is_to_be_pasted_stays_whole() -> None:
    error = Unreachable(
        "the port is closed there", host="gpu1", hint="ssh -p 2222 root@gpu1 true", detail="x" * 50
    )
    assert error_lines(error, width=32) == [
        "error: gpu1: the port is closed",
        "       there",
        f"    {'x' * 50}",
        "  fix: ssh -p 2222 root@gpu1 true",
    ]


def test_several_errors_come_together_and_a_shared_fix_once() -> None:
    def lacking(host: str) -> ClusterctlError:
        return RequirementsNotMet("no sudo", host=host, hint="add the user to sudoers")

    error = Problems([lacking("gpu1"), Problems([lacking("gpu2"), Unreachable("down", host="c")])])
    lines = error_lines(error)
    assert lines[0] == "3 problems:"
    assert [line for line in lines if "sudoers" in line] == ["  fix: add the user to sudoers"]
    assert error.exit_code == 4
    document = error_document(error)
    assert [problem["host"] for problem in document["problems"]] == ["gpu1", "gpu2", "c"]


def test_a_plan_says_what_is_known_and_what_disrupts() -> None:
    plan = Plan(
        (
            PlannedChange("Engine", "gpu1", "engine", Change("install docker.io")),
            PlannedChange("Image", "gpu1", "image", Unknown("the engine")),
            PlannedChange(
                "Ray", "gpu2", "container", Change("recreate", "old", "new", disruptive=True)
            ),
        )
    )
    text = "\n".join(plan_lines(plan))
    assert "3 changes on 2 hosts" in text
    assert "? " in text
    assert "image: not known yet: the engine" in text
    assert "!  recreate (old → new)" in text
    assert plan_lines(Plan(())) == ["Nothing to change: every host matches the inventory."]
    assert [c["known"] for c in plan_document(plan)["changes"]] == [True, False, True]
