"""A declared service under a real supervisor: real processes, real HTTP, fake programs."""

from __future__ import annotations

import io
import os
import re
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.node.children import session_members
from clusterctl.node.files import Journal
from clusterctl.node.ray_watch import Snapshot
from clusterctl.node.service import RayConditions, SupervisedService
from tests.fakes.node_bench import Bench, await_value


def test_a_service_becomes_ready_by_a_real_completion(bench: Bench) -> None:
    bench.behaviour("vllm", {"never_listen": True})
    bench.declare()
    bench.start()
    bench.await_service("loading")

    bench.behaviour("vllm", {})

    ready = bench.await_service("ready")

    assert ready.ready_seconds > 0
    assert next(iter(ready.start)) == "imports"
    assert sum(ready.start.values()) == pytest.approx(ready.ready_seconds, abs=0.5)
    events = [event for event in bench.events("chat") if event != "waiting"]
    assert events == ["starting", "loading", "ready"]
    await_value(lambda: "KV cache size" in bench.log(), "the last line of its log")
    assert bench.log().count("KV cache size") == 1


def test_its_process_has_the_environment_of_node_and_service_and_the_key(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")

    env = bench.starts("vllm")[0]["env"]
    assert env["NODE_VARIABLE"] == "from-the-node"
    assert env["SERVICE_VARIABLE"] == "from-the-service"
    assert env["VLLM_API_KEY"] == "secret-key"
    assert env["PYTHONUNBUFFERED"] == "1"  # else lines of ranks arrive a minute late
    await_value(lambda: "KV cache size" in bench.log(), "the last line of its log")
    for file in (bench.paths.state, bench.paths.journal, bench.paths.log("chat")):
        assert "secret-key" not in file.read_text()


def test_it_waits_for_a_missing_node_and_says_which(bench: Bench) -> None:
    bench.in_ray(bench.node("a", "n1"))
    bench.declare()
    bench.start()
    bench.await_service("waiting", detail="b has not joined Ray")

    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2"))

    bench.await_service("ready")


def test_it_waits_for_free_gpus(bench: Bench) -> None:
    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2", gpus_used=1))
    bench.declare()
    bench.start()

    bench.await_service("waiting", detail="2 GPUs are needed, 1 are free")


def test_stage_and_metrics_are_shown(bench: Bench) -> None:
    bench.behaviour("vllm", {"never_listen": True})
    bench.declare()
    bench.start()
    bench.await_service("loading", stage="weights", detail="Starting to load model tiny...")

    bench.behaviour("vllm", {"running": 0})

    bench.await_service("ready", kv_cache_use=0.25, stage="")


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        (  # vLLM 0.33.0, kill -9 of the engine
            "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            "ended by itself, as its engine did (MPClient: engine core exited unexpectedly; "
            "starting cleanup)",
        ),
        (  # vLLM 0.33.0, kill of the API server
            "[shutdown] API server: shutdown triggered",
            "was told to end by a signal that is not clusterctl's",
        ),
        ("", "ended by itself, as it does when its engine is gone or a signal tells it to"),
    ],
)
def test_an_engine_that_died_is_started_again_and_its_end_is_named(
    bench: Bench, said: str, failure: str
) -> None:
    """The API server itself ends with status 0, as if all were well."""
    bench.declare()
    bench.start()
    first = bench.await_service("ready").pid

    told = bench.root / "vllm.die.new"
    told.write_text(said)
    told.rename(bench.root / "vllm.die")

    again = await_value(lambda: (s := bench.service()) and s.pid not in (0, first) and s, "a start")
    assert again
    ready = bench.await_service("ready")
    assert ready.restarts == 1
    assert ready.last_failure == failure
    assert not session_members(first)
    assert "backing-off" in bench.events("chat")


def test_a_killed_api_server_leaves_no_engine_behind(bench: Bench) -> None:
    bench.declare()
    bench.start()
    first = bench.await_service("ready").pid

    os.kill(first, signal.SIGKILL)

    bench.await_service("ready", restarts=1)
    assert not session_members(first)


def test_a_node_that_left_ends_the_whole_group_at_once(bench: Bench) -> None:
    bench.declare()
    bench.start()
    first = bench.await_service("ready").pid

    bench.in_ray(
        bench.node("a", "n1"), bench.node("b", "n2", alive=False, death_reason="no heartbeats")
    )
    bench.await_service("waiting", detail="b left Ray: no heartbeats")
    assert not session_members(first)

    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n3"))
    bench.await_service("ready", restarts=1)
    assert "backing-off" not in bench.events("chat")


def test_a_node_that_came_back_under_another_id_counts_as_lost(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")

    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2", alive=False), bench.node("b", "n3"))

    bench.await_service("ready", restarts=1)


def test_a_node_that_came_back_is_given_time_to_be_reached(bench: Bench) -> None:
    bench.timing = replace(bench.timing, rejoin=60.0)
    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2", alive=False), bench.node("b", "n3"))
    bench.declare()
    bench.start()

    bench.await_service("waiting", detail="for the head's Ray to reach b again")


def test_refused_arguments_are_not_tried_again_until_the_document_changes(bench: Bench) -> None:
    words = "usage: vllm serve\nvllm serve: error: unrecognized arguments: --frobnicate"
    bench.behaviour("vllm", {"exit": 2, "words": words})
    bench.declare()
    bench.start()
    failed = bench.await_service("failed")
    assert "rejected its arguments" in failed.detail
    assert "--frobnicate" in failed.last_error[-1]

    bench.behaviour("vllm", {})
    bench.declare(fingerprint="2")

    bench.await_service("ready", fingerprint="2", last_error=[])
    assert len(bench.starts("vllm")) == 2


def test_after_five_failures_it_is_failed_and_still_tried(bench: Bench) -> None:
    bench.behaviour("vllm", {"exit": 1, "words": "ValueError: no such model"})
    bench.declare()
    bench.start()

    failed = bench.await_service("failed", last_error=["ValueError: no such model"])
    assert failed.attempts >= 5

    bench.behaviour("vllm", {})
    bench.await_service("ready")


def test_a_program_that_is_not_there_is_said(bench: Bench) -> None:
    bench.declare(argv=["/nowhere/vllm", "serve"])
    bench.start()

    assert "/nowhere/vllm cannot be started" in bench.await_service("failed").detail


def test_a_changed_document_stops_and_starts(bench: Bench) -> None:
    document = bench.declare()
    bench.start()
    first = bench.await_service("ready").pid

    bench.declare(fingerprint="2", argv=[*document.argv, "--other"])

    bench.await_service("ready", fingerprint="2")
    assert not session_members(first)
    assert "--other" in bench.starts("vllm")[1]["argv"]
    assert "stopping" in bench.events("chat")


def test_a_removed_document_is_stopped_and_forgotten(bench: Bench) -> None:
    bench.declare()
    bench.start()
    first = bench.await_service("ready").pid

    bench.remove()

    await_value(lambda: bench.service() is None, "the service to be forgotten")
    assert not session_members(first)


def test_a_service_that_still_loads_is_not_waited_for(bench: Bench) -> None:
    """vLLM heeds SIGTERM only once it has loaded."""
    bench.timing = replace(bench.timing, stop_limit=60.0, stop_loading=0.2)
    bench.behaviour("vllm", {"ignore_term": True, "never_listen": True})
    document = bench.declare(shutdown_timeout=60)
    bench.start()
    first = bench.await_service("loading", stage="weights").pid

    bench.behaviour("vllm", {})
    bench.declare(fingerprint="2", argv=[*document.argv, "--other"])

    bench.await_service("ready", fingerprint="2")
    assert not session_members(first)


def test_a_service_that_ignores_sigterm_is_killed(bench: Bench) -> None:
    bench.behaviour("vllm", {"ignore_term": True})
    bench.declare(shutdown_timeout=-4.5)
    bench.start()
    first = bench.await_service("ready").pid

    bench.remove()

    await_value(lambda: bench.service() is None, "the service to be forgotten")
    assert not session_members(first)


@pytest.mark.parametrize(
    ("behaviour", "told"),
    [
        ({"completion": "hang"}, "POST /v1/completions: timed out"),
        ({"completion": "error"}, "POST /v1/completions: HTTP 500 EngineDeadError"),
        ({"models": ["another"]}, "/v1/models lists ['another'], not tiny"),
    ],
)
def test_what_is_never_right_is_not_ready_in_time(
    bench: Bench, behaviour: dict[str, object], told: str
) -> None:
    bench.behaviour("vllm", behaviour)
    document = bench.declare(gpus=0)
    journal = Journal(bench.paths.journal, "a", io.StringIO())
    service = SupervisedService(document, bench.paths, bench.timing, journal)
    ground = RayConditions([], Snapshot(time.time()), ray_up=True, env={})
    service.tick(time.monotonic(), document, ground)
    attempt = await_value(lambda: service._attempt, "a start")
    await_value(lambda: attempt.reading.error == told, told)

    service.tick(time.monotonic() + document.ready_timeout, document, ground)

    assert service.state().state == "backing-off"
    assert f"not ready within 60 s ({told})" in service.state().detail


def test_a_clock_that_is_set_back_keeps_no_service_from_starting_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour ahead, then set right while the service is down: neither its restart nor the
    supervisor's report waits until that hour has passed."""
    right = time.time
    monkeypatch.setattr(time, "time", lambda: right() + 3600)
    (bench.root / "clock").write_text("3600")
    bench.declare()
    bench.start()
    bench.await_service("ready")
    bench.behaviour("vllm", {"never_listen": True})
    os.kill(bench.starts("vllm")[0]["pid"], signal.SIGKILL)
    bench.await_service("backing-off")

    monkeypatch.setattr(time, "time", right)
    (bench.root / "clock").write_text("0")
    bench.behaviour("vllm", {})

    bench.await_service("ready", restarts=1)
    state = await_value(bench.state, "a report")
    await_value(lambda: abs((bench.state() or state).time - right()) < 60, "a report of now")


def _killed(bench: Bench, backoff: float = 3.0, **timing: Any) -> None:
    """Start a service, kill its vLLM, and wait until the supervisor has noticed. It starts again
    after `backoff` seconds."""
    bench.timing = replace(bench.timing, service_backoff_first=backoff, **timing)
    bench.declare()
    bench.start()
    bench.await_service("ready")
    os.kill(bench.starts("vllm")[0]["pid"], signal.SIGKILL)
    bench.await_service("backing-off", last_failure="was ended by signal 9")


def test_a_vllm_that_ends_before_its_lost_host_is_known_names_the_host_as_the_cause(
    bench: Bench,
) -> None:
    _killed(bench)

    lost = bench.node("b", "n2", alive=False, death_reason="no heartbeat")
    bench.in_ray(bench.node("a", "n1"), lost, bench.node("b", "n3"))

    cause = "b left Ray: no heartbeat (vLLM was ended by signal 9)"
    bench.await_service("ready", restarts=1, last_failure=cause)


def test_a_host_that_leaves_long_after_vllm_ended_is_not_its_cause(bench: Bench) -> None:
    _killed(bench, blame_limit=0.0)

    lost = bench.node("b", "n2", alive=False, death_reason="no heartbeat")
    bench.in_ray(bench.node("a", "n1"), lost, bench.node("b", "n3"))

    bench.await_service("ready", restarts=1, last_failure="was ended by signal 9")


def test_a_vllm_that_ends_before_ray_is_seen_to_be_gone_names_ray_as_the_cause(
    bench: Bench,
) -> None:
    _killed(bench, backoff=30.0)

    bench.behaviour("ray", {"silent": True})
    os.kill(bench.starts("ray")[0]["pid"], signal.SIGKILL)

    cause = "Ray is not running on this host (vLLM was ended by signal 9)"
    bench.await_service("waiting", last_failure=cause)


def test_vllm_starts_neither_again_nor_at_first_without_its_key(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready")
    key = bench.paths.api_key
    key.unlink()

    os.kill(bench.starts("vllm")[0]["pid"], signal.SIGKILL)

    fix = "clusterctl bootstrap repairs that"
    bench.await_service("waiting", detail=f"for its key: {key} is missing; {fix}")
    key.touch(0o600)
    bench.await_service("waiting", detail=f"for its key: {key} is empty; {fix}")
    key.write_text("another-key")
    key.chmod(0o640)
    bench.await_service(
        "waiting", detail=f"for its key: {key} is open to other users (mode 640); {fix}"
    )
    assert len(bench.starts("vllm")) == 1
    key.chmod(0o600)
    bench.await_service("ready", restarts=1)
    assert bench.starts("vllm")[1]["env"]["VLLM_API_KEY"] == "another-key"


def test_an_idle_engine_that_answers_no_canary_is_restarted(bench: Bench) -> None:
    bench.timing = replace(bench.timing, canary_timeout=0.5)
    bench.declare(stall_timeout=1.5)
    bench.start()
    bench.await_service("ready")

    bench.behaviour("vllm", {"completion": "hang"})

    await_value(lambda: "stalled" in bench.events("chat"), "the stall to be noticed")
    bench.behaviour("vllm", {})
    ready = bench.await_service("ready", restarts=1)
    assert re.match(r"stalled: no answer for \d+ s \(POST /v1/comp", ready.last_failure)


def test_requests_without_tokens_are_told_at_once_and_restarted_in_time(bench: Bench) -> None:
    bench.timing = replace(bench.timing, silence_shown=0.3)
    bench.declare(stall_timeout=600)
    bench.start()
    bench.await_service("ready", silence="")

    bench.behaviour("vllm", {"running": 3})

    def told() -> str:
        service = bench.service()
        return service.silence if service and service.state == "ready" else ""

    assert re.match(
        r"no token for \d+ s \(3 requests running, 0 waiting\)", await_value(told, "it")
    )

    # What counts as too long is looked up in the document as it is now, without a restart for it.
    bench.declare(stall_timeout=0.5)
    await_value(lambda: "stalled" in bench.events("chat"), "the stall to be noticed")
    bench.behaviour("vllm", {})
    ready = bench.await_service("ready", restarts=1, silence="")
    assert re.match(r"stalled: no token for \d+ s \(3 requests running", ready.last_failure)
    assert time.time() - 60 < ready.last_failure_time <= time.time()


def test_the_last_failure_is_known_until_the_service_is_changed(bench: Bench) -> None:
    bench.declare()
    bench.start()
    bench.await_service("ready", last_failure="")

    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n2", alive=False, death_reason="gone"))
    bench.await_service("waiting", last_failure="b left Ray: gone")
    bench.in_ray(bench.node("a", "n1"), bench.node("b", "n3"))
    bench.await_service("ready", last_failure="b left Ray: gone")

    bench.declare(fingerprint="2")
    bench.await_service("ready", fingerprint="2", last_failure="", last_failure_time=0.0)


def test_ranks_are_those_of_its_own_driver(bench: Bench) -> None:
    bench.declare()
    bench.start()
    pid = bench.await_service("ready").pid
    bench.actors(
        {"name": "vllm_Worker_ab_c_TP1", "node_id": "n2", "node_ip": "10.0.0.2", "pid": 8,
         "driver_pid": pid},
        {"name": "vllm_Worker_ab_c_TP0", "node_id": "n1", "node_ip": "10.0.0.1", "pid": 7,
         "driver_pid": pid},
        {"name": "vllm_Worker_other_TP0", "node_id": "n1", "node_ip": "10.0.0.1", "pid": 6,
         "driver_pid": os.getpid()},
    )  # fmt: skip

    def ranks() -> list[tuple[int, int, str, int]]:
        service = bench.service()
        return [(r.rank, r.tp, r.host, r.pid) for r in service.ranks] if service else []

    assert await_value(ranks, "ranks") == [(0, 0, "a", 7), (1, 1, "b", 8)]
    await_value(lambda: "ranks" in bench.events("chat"), "the ranks in the journal")
    assert bench.told("chat")[-1] == "0 on a (process 7), 1 on b (process 8)"


def test_ranks_that_ray_does_not_list_are_told_while_it_answers(bench: Bench) -> None:
    """As those of a GCS that was killed before it had written them."""
    bench.timing = replace(bench.timing, ranks_listed=0.3)
    bench.declare()
    bench.start()
    told = "Ray lists 0 of its 2 ranks: if one ends, only vLLM can notice"
    pid = bench.await_service("ready", unwatched=told).pid

    here = {"node_id": "n1", "node_ip": "10.0.0.1", "driver_pid": pid}
    ranks = [{**here, "name": f"vllm_Worker_x_TP{rank}", "pid": 7 + rank} for rank in range(2)]
    bench.actors(ranks[0])
    bench.await_service("ready", unwatched=told.replace("0 of", "1 of"))
    bench.actors(*ranks)
    bench.await_service("ready", unwatched="")


def test_the_end_of_the_supervisor_stops_services_then_ray(bench: Bench) -> None:
    bench.declare()
    bench.start()
    pid = bench.await_service("ready").pid

    bench.stop()

    assert not session_members(pid)
    assert bench.events("chat")[-2:] == ["stopping", "waiting"]

    state = bench.state()
    assert state
    assert state.ray == "down"
    assert bench.events("supervisor")[-1] == "stopped"


@pytest.mark.parametrize(
    ("left", "failure"), [(1, "a rank ended on b (process 8)"), (0, "ranks ended on a, b")]
)
def test_a_rank_that_ended_while_vllm_goes_on_ends_the_whole_group(
    bench: Bench, left: int, failure: str
) -> None:
    """Requests would hang in a collective that it never joins. Of ranks that are found to have
    ended together, none is named as the cause."""
    bench.declare()
    bench.start()
    ready = bench.await_service("ready")
    ranks = [
        {
            "name": f"vllm_Worker_x_TP{rank}",
            "node_id": node,
            "node_ip": ip,
            "pid": 7 + rank,
            "driver_pid": ready.pid,
        }
        for rank, (node, ip) in enumerate([("n1", "10.0.0.1"), ("n2", "10.0.0.2")])
    ]
    bench.actors(*ranks)
    await_value(lambda: (found := bench.service()) and len(found.ranks) == 2, "both ranks")

    bench.actors(*ranks[:left])

    again = bench.await_service("ready", restarts=1)
    assert again.last_failure == failure


def test_a_killed_rank_is_named_when_vllm_ends_because_of_it(bench: Bench) -> None:
    """vLLM itself ends with status 0 then, as if somebody had stopped it."""
    bench.declare()
    bench.start()
    ready = bench.await_service("ready")
    ranks = [
        {"name": f"vllm_Worker_x_TP{rank}", "node_id": node, "node_ip": ip, "pid": 7 + rank,
         "driver_pid": ready.pid}
        for rank, (node, ip) in enumerate([("n1", "10.0.0.1"), ("n2", "10.0.0.2")])
    ]  # fmt: skip
    bench.timing = replace(bench.timing, rank_patience=60.0)
    bench.actors(*ranks)
    await_value(lambda: (found := bench.service()) and len(found.ranks) == 2, "both ranks")
    bench.actors(ranks[0])
    await_value(lambda: (found := bench.service()) and len(found.ranks) == 1, "one rank")
    os.kill(ready.pid, signal.SIGTERM)

    again = bench.await_service("ready", restarts=1)
    assert again.last_failure.startswith("a rank ended on b (process 8), and then vLLM ")


def test_a_restarted_supervisor_keeps_restarts_and_the_last_failure(bench: Bench) -> None:
    """The state file is on the host, so it outlives the container."""
    bench.declare()
    bench.start()
    first = bench.await_service("ready")
    os.kill(first.pid, signal.SIGKILL)
    again = bench.await_service("ready", restarts=1)
    assert again.last_failure == "was ended by signal 9"
    bench.end_supervisor()

    bench.start()

    ready = bench.await_service("ready", restarts=2)
    assert ready.last_failure == again.last_failure
    assert ready.last_failure_time == again.last_failure_time


def test_failures_of_another_document_are_not_kept_over_a_restart(bench: Bench) -> None:
    bench.declare()
    bench.start()
    os.kill(bench.await_service("ready").pid, signal.SIGKILL)
    bench.await_service("ready", restarts=1)
    bench.end_supervisor()

    bench.declare(fingerprint="2")
    bench.start()

    assert not bench.await_service("ready", restarts=0, fingerprint="2").last_failure
