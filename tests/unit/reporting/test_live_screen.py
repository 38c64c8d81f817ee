"""The live screen: looks in, lines of their past and sentences of what changed out."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console
from rich.screen import Screen

from clusterctl.facts.model import HostFacts
from clusterctl.node.documents import GatewayState
from clusterctl.reporting.live_view import LiveStatus, changes_between, sparkline
from clusterctl.survey.status import ClusterStatus, assess
from tests.fakes.surveys import survey_of
from tests.unit.survey.test_cluster_status import INVENTORY, facts, healthy, with_service

__all__ = ["facts"]


def status_of(facts: HostFacts, **service: object) -> ClusterStatus:
    return assess(survey_of(INVENTORY, with_service(healthy(facts), **service)))


def drawn(live: LiveStatus, width: int = 100) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width).print(live)
    return stream.getvalue().splitlines()


def test_a_line_shows_the_looks_by_their_share_of_the_largest() -> None:
    assert sparkline([0.0, 10.0, 20.0]) == "▁▅█"
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([]) == ""


def test_the_past_of_a_service_and_of_the_gateway(facts: HostFacts) -> None:
    live = LiveStatus()
    for second, (tokens, served) in enumerate([(0.0, 0), (50.5, 10), (100.5, 40)]):
        found = status_of(facts, tokens_per_second=tokens, running=second)
        assert live.look(replace(found, gateway=GatewayState("up", served=served)), second) == []
    lines = drawn(live)
    (tokens_line,) = [line for line in lines if "tiny  tokens/s" in line]
    assert tokens_line.split()[2:] == ["100.5", "▁▅█", "most", "100.5"]
    (answers,) = [line for line in lines if "gateway  answers/s" in line]
    assert answers.split()[2:] == ["30", "▃█", "most", "30"]
    assert any("service tiny · ready" in line for line in lines)
    assert max(map(len, drawn(live, width=60))) <= 60


def test_what_changed_is_told_once_with_its_reason(facts: HostFacts) -> None:
    ready = status_of(facts)
    loading = status_of(facts, state="loading", restarts=1, last_failure="the engine ended")
    assert changes_between(ready, ready) == []
    assert changes_between(ready, loading) == [
        "tiny: ready → loading",
        "tiny was restarted: the engine ended",
    ]
    lost = replace(ready, lost=("gpu2: the supervisor last wrote 41 s ago",))
    longer = replace(ready, lost=("gpu2: the supervisor last wrote 43 s ago",))
    assert changes_between(ready, lost) == list(lost.lost)
    assert changes_between(lost, longer) == []
    assert changes_between(longer, ready) == [f"no longer: {longer.lost[0]}"]
    up, failed = (replace(ready, gateway=GatewayState("up", failed=n)) for n in (1, 4))
    assert changes_between(up, failed) == ["gateway: 3 requests failed"]
    back = replace(failed, other_gateways={"gpu2": GatewayState("up", failed=3)})
    assert changes_between(up, back) == [], "its host was not counted before"
    assert changes_between(ready, replace(ready, services=())) == ["tiny is no longer declared"]


def test_drift_that_nobody_could_see_neither_came_nor_went(facts: HostFacts) -> None:
    ready = status_of(facts)
    head, worker = ready.hosts
    assert head.engine
    assert worker.engine
    differs = replace(ready, hosts=(head, replace(worker, drift=("old",), problems=("old",))))
    silent = "the container engine is not running"
    hung = replace(ready, hosts=(replace(head, engine="", problems=(silent,)), worker))
    assert changes_between(ready, differs) == ["gpu2: old"]
    assert changes_between(differs, hung) == [f"gpu1: {silent}"]
    assert changes_between(hung, differs) == [f"no longer: gpu1: {silent}"]
    assert changes_between(differs, ready) == ["no longer: gpu2: old"]


def test_what_does_not_fit_the_screen_is_counted(facts: HostFacts) -> None:
    live = LiveStatus()
    live.look(status_of(facts), 0.0)
    whole = drawn(live)
    stream = io.StringIO()
    small = Console(file=stream, width=100, height=6)
    small.print(Screen(live))
    cut = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert cut[:5] == [line.rstrip() for line in whole[:5]]
    assert cut[5:] == [f"{len(whole) - 5} more lines than this screen has: clusterctl status"]


def test_a_host_cannot_drive_the_terminal(facts: HostFacts) -> None:
    live = LiveStatus()
    live.look(status_of(facts), 0.0)
    live.look(status_of(facts, restarts=1, last_failure="\x1b[2Jgone"), 2.0)
    assert "\x1b" not in "".join(drawn(live))
    assert "\\x1b[2Jgone" in "".join(drawn(live))
