"""What hosts recorded joins in: a hang gets the host, the device and the moment of its cause."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.diagnosis.logs import search
from clusterctl.diagnosis.record import HostRecord, failures_of, record_of, recorded_lines
from clusterctl.diagnosis.verdict import Cause, verdict

NIGHT = 1795316400.0  # 2026-11-22T03:00:00Z


def entry(minutes: float, subject: str, event: str, text: str = "") -> dict[str, object]:
    return {"time": NIGHT + minutes * 60, "subject": subject, "event": event, "text": text}


def files(
    *journal: dict[str, object],
    ledger: Sequence[dict[str, object]] = (),
    evidence: dict[str, object] | None = None,
) -> HostRecord:
    shown = {
        "journal.jsonl": "".join(json.dumps(each) + "\n" for each in journal),
        "ledger.jsonl": "".join(json.dumps(each) + "\n" for each in ledger),
    }
    if evidence:
        shown["evidence-x.json"] = json.dumps(evidence)
    return record_of(shown)


def causes(
    records: dict[str, HostRecord], service: str | None = None, hours: float = 1.0
) -> list[Cause]:
    now = NIGHT + hours * 3600
    told = recorded_lines(records, failures_of(records, service, now), now)
    return verdict(
        finding
        for host, by_file in told.items()
        for name, lines in by_file.items()
        for finding in search(lines, name, host)
    )


STALLED = (
    entry(0, "chat", "ready"),
    entry(13, "chat", "stalled", "no token for 50 s (3 requests running, 0 waiting)"),
    entry(13.1, "chat", "backing-off", "stalled: no token for 50 s; retrying in 2 s"),
)


def test_a_stall_follows_from_the_link_that_was_lost_before_it() -> None:
    lost = entry(12, "host", "link-lost", "eth1 lost its link")
    first, report = causes({"gpu1": files(*STALLED), "gpu2": files(lost)})

    assert (first.id, first.cause) == ("link-lost", "eth1 of gpu2 lost its link at 03:12:00")
    assert first.evidence[0].host == "gpu2"
    assert (report.id, report.follows_from) == ("engine-dead-stall", "link-lost")


def test_what_was_over_long_before_is_no_cause() -> None:
    lost = entry(1, "host", "link-lost", "eth1 lost its link")
    back = entry(2, "host", "over", "link-lost eth1")
    (only,) = causes({"gpu1": files(*STALLED), "gpu2": files(lost, back)})
    assert only.id == "engine-dead-stall"

    first, _ = causes({"gpu1": files(*STALLED), "gpu2": files(lost)})
    assert first.id == "link-lost", "it still has none"


def test_a_service_that_is_ready_again_keeps_its_story_for_a_day() -> None:
    again = {"gpu1": files(*STALLED, entry(15, "chat", "ready"))}
    assert [one.id for one in causes(again)] == ["engine-dead-stall"]
    assert causes(again, hours=30) == []
    assert [one.id for one in causes(again, service="chat", hours=30)] == ["engine-dead-stall"]
    assert causes(again, service="other") == []


def test_what_was_over_when_a_service_went_silent_is_no_cause() -> None:
    lost = entry(11.5, "host", "link-lost", "eth1 lost its link")
    stopped = entry(12.5, "host", "stopped", "raylet (process 8) is stopped by a signal")
    for back, first in ((12.1, "process-stopped"), (12.3, "link-lost")):  # silent since 12:10
        over = entry(back, "host", "over", "link-lost eth1")
        told = causes({"gpu1": files(*STALLED), "gpu2": files(lost, over, stopped)})
        assert told[0].id == first


def test_ray_that_is_up_again_has_no_failure_any_more() -> None:
    down = {**entry(0, "ray", "backing-off", "its processes ended; retrying in 1 s"), "host": "b"}
    again = {**entry(0.5, "ray", "up"), "host": "b"}
    other = {**entry(1, "ray", "up"), "host": "a"}
    set_back = entry(20, "host", "clock-step", "the clock was set by -210.0 s")
    assert "clock-set" not in [one.id for one in causes({"b": files(down, again, set_back)})]
    still = causes({"a": files(other), "b": files(down, set_back)})
    assert "clock-set" in [one.id for one in still]


def test_a_failure_of_ray_that_services_worked_after_is_no_cause_of_their_next_one() -> None:
    stopped = entry(0, "host", "stopped", "raylet (process 8) is stopped by a signal")
    over = entry(0.4, "host", "over", "stopped 8")
    dead = "the GCS considers this node dead: health check failed; retrying in 1 s"
    down, up = entry(0.3, "ray", "backing-off", dead), entry(0.5, "ray", "up")
    ray = [{**each, "host": "gpu2"} for each in (stopped, down, over, up)]
    first = [one.id for one in causes({"gpu1": files(), "gpu2": files(*ray)})]
    assert first[0] == "process-stopped"

    ready, *failed = STALLED
    later = files({**ready, "time": NIGHT + 120}, *failed)
    told = [one.id for one in causes({"gpu1": later, "gpu2": files(*ray)})]
    assert told == ["engine-dead-stall"]


@pytest.mark.parametrize(
    "first", [(), (entry(12.9, "chat", "backing-off", "ended with status 1"),)]
)
def test_what_is_sent_again_to_a_node_that_is_lost_is_no_cause_of_its_loss(
    first: tuple[dict[str, object], ...],
) -> None:
    left = entry(13, "chat", "waiting", "gpu2 left Ray: health check failed")
    resent = "7 % of TCP segments were sent again (77)"
    for minutes, ids in (
        (12.9, ["node-lost", "packet-loss"]),
        (12.2, ["packet-loss", "node-lost"]),  # The node was there still
    ):
        told = causes({"gpu1": files(*first, left, entry(minutes, "host", "tcp-resent", resent))})
        assert [one.id for one in told] == ids


def test_a_service_that_was_removed_keeps_its_story_for_a_day() -> None:
    removed = {"gpu1": files(*STALLED, entry(15, "chat", "stopped", "it was removed"))}
    assert [one.id for one in causes(removed)] == ["engine-dead-stall"]
    assert causes(removed, hours=30) == []


def test_what_a_service_worked_in_spite_of_is_no_cause() -> None:
    lost = entry(12, "host", "link-lost", "eth1 lost its link")
    back = entry(12.3, "host", "over", "link-lost eth1")
    again = (*STALLED, entry(12.5, "chat", "ready"), entry(13.3, "chat", "failed", "again"))
    assert "link-lost" in [one.id for one in causes({"gpu1": files(*STALLED, lost, back)})]
    assert "link-lost" not in [one.id for one in causes({"gpu1": files(*again, lost, back)})]


@pytest.mark.parametrize(
    ("pid", "name"), [(8, "rank 1 of chat"), (9, "ray::RayWorkerProc.run"), (7, "rank 0 of chat")]
)
def test_a_stopped_process_is_named_by_the_rank_that_it_was(pid: int, name: str) -> None:
    placed = entry(0, "chat", "ranks", "0 on gpu2 (process 7), 1 on gpu2 (process 8)")
    later = entry(9, "chat", "ranks", "0 on gpu1 (process 7), 1 on gpu2 (process 8)")
    text = f"ray::RayWorkerProc.run (process {pid}) is stopped by a signal"
    stopped = entry(5, "host", "stopped", text)
    (only,) = causes({"gpu1": files(placed, later), "gpu2": files(stopped)})
    assert only.cause == (
        f"{name} (process {pid}) on gpu2 was stopped by a signal (SIGSTOP) at 03:05:00"
    )
    assert f"--limit gpu2 --node -- sh -c 'kill -CONT {pid}'" in only.fix


def test_a_stopped_process_that_was_replaced_is_no_cause_any_more() -> None:
    placed = entry(0, "chat", "ranks", "0 on gpu1 (process 7), 1 on gpu2 (process 8)")
    stopped = entry(5, "host", "stopped", "ray::RayWorkerProc (process 8) is stopped by a signal")
    again = entry(9, "chat", "ranks", "0 on gpu1 (process 9), 1 on gpu2 (process 10)")
    assert causes({"gpu1": files(placed, again), "gpu2": files(stopped)}) == []


def test_what_a_host_that_the_service_is_not_on_recorded_is_no_cause() -> None:
    placed = entry(0, "chat", "ranks", "0 on gpu1 (process 7), 1 on gpu2 (process 8)")
    lost = files(entry(12, "host", "link-lost", "eth1 lost its link"),
                 entry(13.5, "host", "over", "link-lost eth1"))  # fmt: skip
    failed = files(placed, *STALLED)
    assert causes({"gpu1": failed, "gpu2": lost})[0].id == "link-lost"
    assert [one.id for one in causes({"gpu1": failed, "gpu3": lost})] == ["engine-dead-stall"]


def test_text_of_a_record_that_is_no_unicode_is_searched() -> None:
    stopped = entry(5, "host", "stopped", "\ud800 (process 8) is stopped by a signal")
    (only,) = causes({"gpu1": files(stopped)})
    assert only.cause.startswith("? (process 8) on gpu1 was stopped")


def test_a_disk_that_is_full_now_is_told_although_nothing_could_be_recorded() -> None:
    disks = {"/": [9000, 10_000], "/var/log/clusterctl/demo": [0, 64]}
    (only,) = causes({"gpu2": record_of({"disks.json": json.dumps(disks)}), "gpu1": files()})
    assert (only.id, only.cause) == (
        "disk-full", "/var/log/clusterctl/demo of gpu2 is full: 0 of 64 MiB are free"
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["x", "[]", '{"/": 1}', '{"/": [1, "x"]}', '{"/": [Infinity, 1]}', "null"]
)
def test_disks_of_another_shape_are_left_out(text: str) -> None:
    assert record_of({"disks.json": text}).disks == {}


def test_without_a_failure_only_what_is_wrong_now_is_told() -> None:
    full = entry(5, "host", "disk-full", "/ has 3 of 10000 MiB free")
    set_back = entry(5, "host", "clock-step", "the clock was set by -210.0 s")
    assert [one.id for one in causes({"gpu1": files(full, set_back)})] == ["disk-full"]
    over = entry(6, "host", "over", "disk-full /")
    assert causes({"gpu1": files(full, over)}) == []
    restarted = entry(6, "supervisor", "started", "version 0.1.0")
    assert causes({"gpu1": files(full, restarted)}) == [], "it would have told again"


def test_what_changed_since_it_worked_is_named() -> None:
    def versions(minutes: float, nccl: str) -> dict[str, object]:
        both = {"nccl": nccl, "torch": "2.13.0"}
        return {"time": NIGHT + 60 * minutes, "subject": "node", "versions": both}

    ledger = [versions(-60, "2.25.1"), versions(-30, "2.27.3"), versions(5, "2.26.2")]
    first, _ = causes({"gpu1": files(*STALLED), "gpu2": files(ledger=ledger)})

    assert (first.id, first.certainty) == ("version-changed", "likely")
    assert first.cause == (
        "nccl of node changed on gpu2 at 03:05:00, after it last worked: 2.27.3 before, 2.26.2 now"
    )
    assert len(first.evidence) == 1, "what changed while it worked is left out"


def process(pid: int, state: str, cpu: float, call: str) -> dict[str, object]:
    return {"pid": pid, "name": "ray::RayWorker", "state": state, "cpu": cpu, "call": call}


RANKS = [{"rank": 0, "host": "gpu1", "pid": 7}, {"rank": 1, "host": "gpu2", "pid": 8}]
ASKED = {"id": "x", "time": NIGHT + 13 * 60, "service": "chat"}
HERE = {**ASKED, "ranks": RANKS, "processes": [process(7, "S", 0.1, "recv (a.py:1)")]}


def hung(*processes: dict[str, object]) -> list[Cause]:
    there = {**ASKED, "ranks": [], "processes": list(processes)}
    return causes({"gpu1": files(*STALLED, evidence=HERE), "gpu2": files(evidence=there)})


@pytest.mark.parametrize(
    ("process_of_rank_1", "id_", "cause"),
    [
        (process(8, "T", 0, ""), "process-stopped",
         "rank 1 of chat (process 8) on gpu2 was stopped by a signal (SIGSTOP) at 03:13:00"),
        (process(8, "R", 0.99, "spin (b.py:2)"), "rank-hung",
         "rank 1 of chat (process 8) on gpu2 computes in spin (b.py:2), while the others wait for "
         "it"),
        (process(8, "D", 0, "load (b:2)"), "rank-hung",
         "rank 1 of chat (process 8) on gpu2 waits in the kernel, for a disk or a driver, in "
         "load (b:2)"),
        (process(8, "S", 0.1, "recv (a.py:1)"), "ranks-wait",
         "rank 0 of chat (process 7) on gpu1 waits in recv (a.py:1)"),
    ],
)  # fmt: skip
def test_the_rank_that_the_others_wait_for_is_named(
    process_of_rank_1: dict[str, object], id_: str, cause: str
) -> None:
    first, *_ = hung(process_of_rank_1)
    assert (first.id, first.cause) == (id_, cause)


@given(st.text(max_size=200))
def test_damaged_records_are_left_out(text: str) -> None:
    shown = dict.fromkeys(("journal.jsonl", "ledger.jsonl", "evidence-x.json"), text)
    assert causes({"gpu1": record_of(shown)}) is not None


@pytest.mark.parametrize(
    "wrong", ["x", None, [1], [{}], {"pid": 1}, [process(7, "R", 10**400, "")], [{"pid": math.inf}]]
)
def test_evidence_of_another_shape_is_left_out(wrong: object) -> None:
    made = files(evidence={**HERE, "processes": wrong})
    assert made.evidence == []


@pytest.mark.parametrize("time", ["NaN", "1e400", "1" + "0" * 400, "-1e300", "1e18", '"x"', "[]"])
def test_a_time_that_is_none_is_left_out(time: str) -> None:
    line = f'{{"event": "failed", "subject": "chat", "text": "x", "time": {time}}}'
    records = {"gpu1": record_of({"journal.jsonl": line})}
    failures = failures_of(records, "chat", 1e9)
    assert recorded_lines(records, failures, 1e9)["gpu1"]["journal"] == []


@pytest.mark.parametrize(
    ("event", "text", "over", "lasts"),
    [
        ("gpu-slowed", "GPU 0 is slowed: by heat (91 C)", "gpu-slowed 0 by heat", False),
        ("gpu-slowed", "GPU 0 is slowed: by heat (91 C)", "gpu-slowed 1 by heat", True),
        ("link-lost", "eth10 lost its link", "link-lost eth10", False),
        ("link-lost", "eth10 lost its link", "link-lost eth1", True),
        ("disk-full", "/ has 5 of 10000 MiB free", "disk-full /", False),
        ("tcp-resent", "7 % of TCP segments were sent again (77)", "tcp-resent", False),
        ("tcp-resent", "7 % of TCP segments were sent again (77)", "stopped 7", True),
        ("nic-drops", "eth1 counted 400 drops, 1000 packets", "nic-drops eth1", False),
        ("nic-broken", "eth1 of gloo is down", "nic-broken", False),
    ],
)
def test_what_is_over_for_its_own_device_is_not_told(
    event: str, text: str, over: str, *, lasts: bool
) -> None:
    lines = [entry(0, "host", event, text), entry(1, "host", "over", over)]
    records = {"gpu1": record_of({"journal.jsonl": "\n".join(map(json.dumps, lines))})}
    assert bool(recorded_lines(records, [], NIGHT + 999)["gpu1"]["journal"]) == lasts
