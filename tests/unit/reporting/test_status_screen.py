"""The status screen shows what hosts and inventories say, to the letter."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from clusterctl.node.documents import (
    GatewayMember,
    GatewayState,
    Member,
    Rank,
    ServiceState,
    SleepState,
)
from clusterctl.reporting.status_view import screen, status_screen
from clusterctl.serving.service import build_service
from clusterctl.survey.status import ClusterStatus, HostRow, ServiceLoad, ServiceRow
from tests.unit.serving.launches import launch

ADDRESSES = ("fd00:100:1::5", "[fd00::1]")


def test_what_looks_like_markup_or_emoji_is_shown_as_it_is_and_not_cut() -> None:
    stream = io.StringIO()
    screen(stream).print(status_screen(_status("[bold]" + "n" * 100)), crop=False)
    shown = stream.getvalue()
    for text in (*ADDRESSES, "[bold]" + "n" * 100, "2 x [H200]"):
        assert text in shown
    assert len([line for line in shown.splitlines() if "worker" in line]) == len(ADDRESSES)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, "HOST ROLE CONTAINER RAY GPUS USED"),
        (30, "HOST ROLE CONTAINER RAY"),
        (20, "HOST ROLE RAY"),
        (12, "HOST RAY"),
        (4, "HOST"),
    ],
)
def test_columns_go_by_their_worth_where_there_is_no_room(width: int, shown: str) -> None:
    stream = io.StringIO()
    Console(file=stream, width=width).print(status_screen(_status("gpu")))
    lines = stream.getvalue().splitlines()
    headings = next(line for line in lines if line.startswith("HOST"))
    assert " ".join(headings.split()) == shown


def test_replicas_keep_no_character_that_a_terminal_obeys() -> None:
    document = replace(build_service(launch()), name="tiny\x1b[2J@2", model="m\x1b[2J")
    member = Member(2, "gpu1", "10.0.0.1", 8100)
    row = ServiceRow(document, "gpu1", None, member, service_url="http://10.0.0.1:8000")
    stream = io.StringIO()
    screen(stream).print(status_screen(replace(_status("gpu"), services=(row,))), crop=False)
    assert stream.getvalue().count("\\x1b[2J") >= 3
    assert "\x1b[2J" not in stream.getvalue()


@pytest.mark.parametrize(
    ("width", "name", "running", "rate", "end"),
    [
        (80, "qwen2.5-1.5b@2", 3, 412, "3 running, 0 waiting · 412 tok/s · KV 50%"),
        (100, "qwen2.5-1.5b@12", 128, 16_973, "128 running, 0 waiting · 16,973 tok/s · KV 50%"),
    ],
)
def test_a_replica_is_one_line(width: int, name: str, running: int, rate: int, end: str) -> None:
    document = replace(build_service(launch()), name=name)
    state = ServiceState(
        name, "ready", 0.0, running=running, tokens_per_second=rate, kv_cache_use=0.5
    )
    row = ServiceRow(document, "gpu12", state, Member(12, "gpu12", "10.0.0.1", 8100))
    first = replace(row, document=replace(document, name=document.service))
    status = replace(_status("gpu"), services=(first, row))
    stream = io.StringIO()
    Console(file=stream, width=width).print(status_screen(status))
    (line,) = [each for each in stream.getvalue().splitlines() if each.startswith(f"  {name} on")]
    assert line.rstrip().endswith(end)


def test_services_that_nobody_could_name_are_not_none() -> None:
    rows = tuple(replace(row, reachable=False) for row in _status("gpu").hosts)
    stream = io.StringIO()
    screen(stream).print(status_screen(replace(_status("gpu"), hosts=rows)))
    assert "Services are unknown: no answer from gpu0, gpu1." in stream.getvalue()
    assert "No services." not in stream.getvalue()


def _status(name: str) -> ClusterStatus:
    rows = tuple(_row(f"{name}{index}", address) for index, address in enumerate(ADDRESSES))
    return ClusterStatus("c", rows, (), "2.60.0", "0.25.1")


def _row(name: str, address: str) -> HostRow:
    return HostRow(
        name=name,
        role="worker",
        node_ip=address,
        reachable=True,
        engine="[docker] 29",
        container="running",
        ray="up",
        gpus=("[H200]", "[H200]"),
        gpus_expected=2,
        gpus_in_ray=2.0,
        gpus_used=0.0,
        problems=(),
        drift=(),
        hint=None,
    )


def test_the_load_of_a_service_comes_with_where_its_start_went() -> None:
    document = build_service(launch())
    spent = {"imports": 17.0, "ray": 13.2, "kv-cache": 25.0}
    state = ServiceState(
        "tiny", "ready", 0.0, document.fingerprint, ready_seconds=55.4, start=spent
    )
    row = ServiceRow(document, "gpu1", state, None)
    for load, expected in ((None, False), (ServiceLoad(None, 1.0, 0, 0, None, None), True)):
        stream = io.StringIO()
        services = (replace(row, load=load),)
        screen(stream).print(status_screen(replace(_status("gpu"), services=services)), crop=False)
        line = "  start      55 s: imports 17, ray 13, kv-cache 25"
        assert (line in stream.getvalue().splitlines()) is expected


def test_a_service_that_sleeps_says_where_and_how_long_it_takes_to_wake() -> None:
    sleep = SleepState(asleep=True, host_gib=15.91, wakes_in=0.58, waiting=1)
    rank = Rank(0, 0, 0, "gpu2", "10.0.0.2", 7)
    state = ServiceState("tiny", "ready", 1.0, ranks=[rank], sleep=sleep)
    row = ServiceRow(build_service(launch()), "gpu1", state)
    stream = io.StringIO()
    screen(stream).print(status_screen(replace(_status("gpu"), services=(row,))), crop=False)
    assert " · asleep · " in stream.getvalue()
    assert (
        "  asleep     on gpu2 (15.9 GiB of weights in host memory), wakes in 0.6 s, "
        "1 request waiting\n" in stream.getvalue()
    )


def test_a_replica_that_sleeps_says_how_long_it_takes_to_wake() -> None:
    document = build_service(launch())
    awake = ServiceState("tiny", "ready", 1.0)
    asleep = replace(awake, sleep=SleepState(asleep=True, host_gib=15.91, wakes_in=0.58))
    rows = [ServiceRow(document, "gpu1", awake)]
    name = f"{document.name}@2"
    rows.append(ServiceRow(replace(document, name=name, replica=2), "gpu2", asleep))
    stream = io.StringIO()
    screen(stream).print(status_screen(replace(_status("gpu"), services=tuple(rows))), crop=False)
    assert " · 2 of 2 replicas ready, 1 asleep · " in stream.getvalue()
    assert f"  {name} on gpu2 · asleep · wakes in 0.6 s\n" in stream.getvalue()


@pytest.mark.parametrize(
    ("first", "standby", "shown"),
    [
        (
            ServiceState("tiny", "ready", 1.0),
            ServiceState(
                "tiny@standby",
                "ready",
                1.0,
                ranks=[Rank(0, 0, 0, "gpu2", "10.0.0.2", 7)],
                sleep=SleepState(asleep=True, host_gib=61.0, wakes_in=2.1),
            ),
            "asleep on gpu2 (61.0 GiB of weights in host memory), wakes in 2.1 s",
        ),
        (
            ServiceState("tiny", "waiting", 1.0, detail="for its turn: its standby serves"),
            ServiceState("tiny@standby", "ready", 1.0, running=2),
            "serves · 2 running, 0 waiting · 0.0 tokens/s",
        ),
        (
            ServiceState("tiny", "ready", 1.0),
            ServiceState("tiny@standby", "waiting", 1.0, detail="for its turn"),
            "none now, waiting for its turn",
        ),
    ],
)
def test_a_standby_has_a_line(first: ServiceState, standby: ServiceState, shown: str) -> None:
    row = ServiceRow(build_service(launch()), "gpu1", first, standby=standby)
    stream = io.StringIO()
    status = replace(_status("gpu"), services=(row,))
    screen(stream).print(status_screen(status), crop=False)
    assert f"  standby    {shown}\n" in stream.getvalue()
    assert ("  requests " in stream.getvalue()) == (first.state == "ready")
    assert row.serves
    assert status.healthy == (first.state == "ready")


def test_a_standby_that_fails_is_a_problem_with_the_command_that_shows_its_log() -> None:
    standby = ServiceState("tiny@standby", "backing-off", 1.0, detail="ended with status 1")
    first = ServiceState("tiny", "ready", 1.0)
    row = ServiceRow(build_service(launch()), "gpu1", first, standby=standby)
    status = replace(_status("gpu"), services=(row,))
    told = "service m: its standby is backing-off (ended with status 1)"
    assert (status.problems, status.hints) == ((told,), ("clusterctl logs tiny@standby",))


def test_a_standby_that_has_not_started_is_no_member_that_lacks_requests() -> None:
    members = [
        GatewayMember("tiny", 1, "gpu1", False, why, standby=standby)
        for standby, why in ((False, "it is backing-off"), (True, "it is waiting"))
    ]
    stream = io.StringIO()
    status = replace(_status("gpu"), gateway=GatewayState("up", members=members))
    screen(stream).print(status_screen(status), crop=False)
    assert "gets none  tiny replica 1 on gpu1: it is backing-off" in stream.getvalue()
    assert "it is waiting" not in stream.getvalue()
