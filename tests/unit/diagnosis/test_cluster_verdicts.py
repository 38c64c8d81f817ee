"""The verdict over a cluster: what fails now comes first, and what is over is no present cause."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterctl.commands.diagnose import of_bundle
from clusterctl.diagnosis.bundle import write_bundle
from clusterctl.diagnosis.cluster import Asked, causes_of
from clusterctl.diagnosis.verdict import Cause
from clusterctl.errors import UsageError
from clusterctl.node.documents import (
    GatewayState,
    KeyUse,
    NodeState,
    ServiceState,
    is_standby,
    to_json,
)
from clusterctl.reporting.diagnosis_view import cause_lines
from clusterctl.transport.log_ends import ENGINE_LINES

NOW = 1795316400.0  # 2026-11-22T03:00:00Z
NAMES = {"10.0.0.1": "gpu1", "10.0.0.2": "gpu2"}

STARTED = "(APIServer pid=1) INFO 11-22 02:50:00 [utils.py:233] non-default args: {'model': 'm'}\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
DEAD = "(APIServer pid=1) ERROR 11-22 02:58:00 [a.py:1] vllm.v1.EngineDeadError: EngineCore died\n"


def entry(ago: float, subject: str, event: str, text: str = "") -> str:
    """Return a line of a journal, of so many seconds ago."""
    line = {"time": NOW - ago, "subject": subject, "event": event, "text": text}
    return json.dumps(line) + "\n"


def host(
    *services: tuple[str, str],
    journal: str = "",
    seen: float = 1,
    logs: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the files of a host whose supervisor was seen so many seconds ago; `services`: names
    and states."""
    states = [ServiceState(name, state, NOW - 60) for name, state in services]
    state = NodeState(
        "h", "worker", NOW - seen, "1", "up", NOW - 600, 0, vllm_version="0.25.1",
        services=[each for each in states if not is_standby(each.name)],
        standbys=[each for each in states if is_standby(each.name)],
        gateway=GatewayState(keys=[KeyUse("alice", 5, 70, 30, "2026-11-22", 100)]),
    )  # fmt: skip
    return {
        "state.json": to_json(state),
        "time.json": json.dumps(NOW),
        "journal.jsonl": journal,
        **{
            name if name == "kernel" else f"{name}.log": text for name, text in (logs or {}).items()
        },
    }


def ask(files: Mapping[str, Mapping[str, str]], service: str = "") -> list[Cause]:
    return causes_of(files, Asked(service, NOW, NAMES))


def present(files: Mapping[str, Mapping[str, str]], service: str = "") -> list[str]:
    return [each.id for each in ask(files, service) if not each.over and not each.follows_from]


def test_a_healthy_cluster_with_a_past_has_no_cause() -> None:
    journal = (
        entry(7200, "chat", "ready")
        + entry(1900, "chat", "stalled", "no token for 50 s (3 requests running, 0 waiting)")
        + entry(1880, "chat", "backing-off", "stalled; retrying in 2 s")
        + entry(1700, "chat", "ready")
    )
    log = STARTED + DEAD + STARTED + READY
    oom = "2026-11-21T20:00:00+0000 gpu2 kernel: Out of memory: Killed process 9 (python)\n"
    files = {
        "gpu1": host(("chat", "ready"), journal=journal, logs={"chat": log}),
        "gpu2": host(logs={"kernel": oom}),
    }

    told = ask(files)

    assert [(each.id, each.over) for each in told] == [
        ("host-oom-ray", True),
        ("engine-dead-stall", True),
    ]


@pytest.mark.parametrize("how", ["it was removed", ""])
def test_a_service_that_was_ended_on_purpose_died_of_nothing(how: str) -> None:
    journal = entry(900, "half", "ready") + (entry(300, "half", "stopped", how) if how else "")
    files = {
        "gpu1": host(("chat", "ready"), journal=journal, logs={"half": STARTED + READY + DEAD})
    }
    assert ask(files) == []


def test_the_last_start_of_a_service_that_fails_now_counts() -> None:
    early = "ERROR 11-22 02:30:00 OSError: [Errno 28] No space left on device: '/data/x'\n"
    late = "ERROR 11-22 02:59:00 ValueError: No available memory for the cache blocks.\n"
    files = {"gpu1": host(("chat", "backing-off"), logs={"chat": STARTED + early + STARTED + late})}

    told = ask(files, "chat")

    assert [(each.id, each.over) for each in told] == [("kv-no-blocks", False), ("disk-full", True)]


@pytest.mark.parametrize("service", ["", "chat"])
@pytest.mark.parametrize(("state", "over"), [("backing-off", False), ("ready", True)])
def test_a_standby_fails_as_a_service_does(state: str, over: bool, service: str) -> None:
    log = STARTED + "ERROR 11-22 02:59:00 ValueError: No available memory for the cache blocks.\n"
    files = {
        "gpu1": host(("chat", "ready"), ("chat@standby", state), logs={"chat@standby": log}),
    }
    assert [(each.id, each.over) for each in ask(files, service)] == [("kv-no-blocks", over)]


def test_of_a_failure_that_no_rule_knows_the_next_command_is_named() -> None:
    log = STARTED + "(EngineCore pid=7) ERROR 11-22 02:59:00 [core.py:1] OddError: odd\n"
    (cause,) = ask({"gpu1": host(("chat@1", "failed"), logs={"chat@1": log})})
    assert cause.certainty == "unknown"
    assert "clusterctl diagnose chat --bundle report.tar.gz" in cause.fix


def test_rays_list_of_possible_reasons_accuses_nobody() -> None:
    ray = (
        "[2026-11-22 02:59:00,1 E 7 7] (raylet) A worker died or was killed while executing a "
        "task. There are some potential root causes. (1) The process is killed by SIGKILL by "
        "OOM killer. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due "
        "to SIGSEGV or SIGBUS or other unexpected errors.\n"
    )
    files = {"gpu1": host(("chat", "starting"), logs={"chat": STARTED + ray})}
    assert present(files) == ["rank-died"]


RANKS = "0 on gpu1 (process 70), 1 on gpu2 (process 80)"


def test_a_host_without_power_is_named_before_the_connections_that_it_broke() -> None:
    journal = (
        entry(600, "big", "ranks", RANKS)
        + entry(590, "big", "ready")
        + entry(20, "big", "waiting", "gpu2 left Ray: health check failed")
    )
    log = (
        STARTED
        + READY
        + "(EngineCore pid=7) ERROR 11-22 02:59:31 [w.py:1] RuntimeError: [/g/gloo/transport/tcp/"
        "pair.cc:553] Connection closed by peer [10.0.0.2]:4711\n"
        + "(EngineCore pid=7) ERROR 11-22 02:59:31 [w.py:2] OddError: no answer\n"
    )
    ray = "[2026-11-22 02:59:33,1 E 7 7] Failed to connect to GCS at 10.0.0.1:6379\n"
    files = {"gpu1": host(("big", "waiting"), journal=journal, logs={"big": log, "ray": ray})}

    for service in ("", "big"):
        first = ask(files, service)[0]
        assert (first.id, first.certainty) == ("node-lost", "certain")
        assert "gpu2" in first.cause


def test_a_killed_rank_is_not_blamed_on_another_services_host() -> None:
    """`small` on gpu3 had a stopped rank an hour ago, which was replaced."""
    small = (
        entry(4000, "small", "ranks", "0 on gpu3 (process 90)")
        + entry(3600, "small", "stalled", "no token for 50 s (1 requests running, 0 waiting)")
        + entry(3500, "small", "ready")
        + entry(3499, "small", "ranks", "0 on gpu3 (process 91)")
    )
    stopped = entry(3650, "host", "stopped", "ray::Worker (process 90) is stopped by a signal")
    big = (
        entry(600, "big", "ranks", RANKS)
        + entry(590, "big", "ready")
        + entry(10, "big", "backing-off", "ended with status 1; retrying in 2 s")
    )
    log = STARTED + READY + "(EngineCore pid=7) ERROR 11-22 02:59:49 [r.py:1] RayWorkerProc rank=1 "
    log += "died unexpectedly, shutting down\n"
    files = {
        "gpu1": host(("big", "backing-off"), journal=big, logs={"big": log}),
        "gpu2": host(),
        "gpu3": host(("small", "ready"), journal=small + stopped, logs={"small": STARTED + READY}),
    }

    for service in ("", "big"):
        assert present(files, service) == ["rank-died"]


def test_a_race_for_a_port_is_told_from_a_taken_port() -> None:
    harmless = "(APIServer pid=1) INFO 11-22 02:50:03 [n.py:1] Port 100 is already in use, trying "
    harmless += "port 101\n"
    race = (
        "(EngineCore pid=7) ERROR 11-22 02:50:20 [core.py:1] torch.distributed.DistNetworkError: "
        "The server socket has failed to listen on any local network address. port: 100, useIpv6: "
        "false, code: -98, name: EADDRINUSE, message: address already in use\n"
    )
    assert present({"gpu1": host(("a@1", "loading"), logs={"a@1": STARTED + harmless})}) == []

    (cause,) = ask({"gpu1": host(("a@1", "backing-off"), logs={"a@1": STARTED + harmless + race})})
    assert cause.id == "rank-port-taken"
    assert "clusterctl restart a" in cause.fix


def test_a_container_that_docker_could_not_restore_is_named() -> None:
    said = (
        '2026-11-22T02:55:00+0000 gpu2 dockerd[9]: level=error msg="failed to start container" '
        'error="could not select device driver \\"cdi\\" with capabilities: []"\n'
    )
    stale = {**host(seen=400), "engine": said}
    assert present({"gpu1": host(), "gpu2": stale}) == ["docker-cdi-at-start"]

    again = {**host(), "engine": said}
    assert present({"gpu1": host(), "gpu2": again}) == [], "its supervisor runs again"


@pytest.mark.parametrize(
    "why",
    [
        "CDI device injection failed: failed to inject devices: failed to stat CDI host device "
        '\\"/dev/nvidia99\\": no such file or directory',
        "error during container init: error mounting "
        '\\"/usr/local/nvidia/lib64/libcuda.so.570.86.15\\" to rootfs at '
        '\\"/usr/lib/libcuda.so.570.86.15\\": create mount destination for '
        "/usr/lib/libcuda.so.570.86.15 mount: bind mount source stat: stat "
        "/usr/local/nvidia/lib64/libcuda.so.570.86.15: no such file or directory: unknown",
    ],
)
def test_a_stale_cdi_specification_is_named(why: str) -> None:
    """Docker 26.1.5 and runc 1.1.15, after the file listed another GPU or another driver."""
    said = (
        '2026-11-22T02:55:00+0000 gpu2 dockerd[9]: level=error msg="Handler for POST '
        "/v1.45/containers/clusterctl-lab/restart returned error: Cannot restart container "
        f'clusterctl-lab: {why}"\n'
    )
    assert re.search(ENGINE_LINES, said)
    stale = {**host(seen=400), "engine": said}
    assert present({"gpu1": host(), "gpu2": stale}) == ["cdi-stale"]


def test_a_compiled_model_of_another_gpu_is_named() -> None:
    log = STARTED + (
        "(EngineCore pid=7) INFO 11-22 02:50:30 [d.py:1] Directly load AOT compilation from /c\n"
        "(EngineCore pid=7) ERROR 11-22 02:50:31 [core.py:1] RuntimeError: CUDA driver error: "
        "invalid argument\n"
    )
    assert present({"gpu1": host(("a@1", "backing-off"), logs={"a@1": log})}) == [
        "compile-cache-device"
    ]


def test_memory_that_another_process_holds_is_named() -> None:
    log = STARTED + (
        "(EngineCore pid=7) ERROR 11-22 02:50:31 [core.py:1] ValueError: Free memory on device "
        "cuda:0 (78.9/139.81 GiB) on startup is less than desired GPU memory utilization (0.9, "
        "125.83 GiB).\n"
    )
    assert present({"gpu1": host(("chat", "backing-off"), logs={"chat": log})}) == [
        "gpu-already-used"
    ]


def test_a_stopped_rank_is_named_while_it_is_stopped() -> None:
    journal = entry(600, "chat", "ranks", RANKS) + entry(590, "chat", "ready")
    stopped = entry(4, "host", "stopped", "ray::Worker (process 80) is stopped by a signal")
    files = {
        "gpu1": host(("chat", "ready"), journal=journal, logs={"chat": STARTED + READY}),
        "gpu2": host(journal=stopped),
    }

    (cause,) = ask(files)

    assert cause.cause.startswith("rank 1 of chat (process 80) on gpu2 was stopped by a signal")


def test_a_clock_that_differs_from_the_operators_hides_no_state() -> None:
    behind = {**host(("chat", "ready"), seen=900, logs={"chat": STARTED + READY + DEAD})}
    behind["time.json"] = json.dumps(NOW - 899)
    assert present({"gpu1": behind}) == []


def bundled(path: Path, files: Mapping[str, Mapping[str, str]], asked: Asked) -> Path:
    """Write a bundle as `diagnose --bundle` does."""
    packed = {
        f"{of}/{name if '.' in name else f'{name}.log'}": text
        for of, texts in files.items()
        for name, text in texts.items()
    }
    packed["clusterctl.json"] = json.dumps({"version": "1", **dataclasses.asdict(asked)})
    write_bundle(path, packed)
    return path


GRAPHS_FULL = "ERROR 11-22 02:59:00 max_num_seqs (9) exceeds available Mamba cache blocks (8).\n"


@pytest.mark.parametrize(
    ("release", "lacks"), [("0.10.0", "vLLM 0.10.0 has no --mamba-cache-mode"), ("0.33.0", "")]
)
def test_a_fix_says_what_this_release_does_not_have(
    release: str, lacks: str, tmp_path: Path
) -> None:
    log = STARTED + "ERROR 11-22 02:59:00 ValueError: MambaSpec with mamba_cache_mode='none'\n"
    there = host(("chat", "backing-off"), logs={"chat": log})
    there["state.json"] = there["state.json"].replace("0.25.1", release)
    (cause,) = of_bundle(bundled(tmp_path / "a.tar.gz", {"gpu1": there}, Asked("", NOW, NAMES)))
    assert "--mamba-cache-mode align" in cause.fix
    assert (lacks in cause.fix) if lacks else ("has no" not in cause.fix)


@pytest.mark.parametrize(("hosts", "everywhere"), [(NAMES, True), ({"10.0.0.1": "gpu1"}, False)])
def test_a_fix_for_one_host_speaks_of_no_other(
    hosts: Mapping[str, str], everywhere: bool, tmp_path: Path
) -> None:
    log = STARTED + "ERROR 11-22 02:59:00 RuntimeError: Cannot find any model weights with `/m`\n"
    there = {"gpu1": host(("chat", "backing-off"), logs={"chat": log})}
    (cause,) = of_bundle(bundled(tmp_path / "a.tar.gz", there, Asked("", NOW, hosts)))
    assert cause.id == "weights-missing-on-node"
    assert ("every host" in cause.fix) == everywhere


def test_steps_between_hosts_are_left_out_on_one(tmp_path: Path) -> None:
    log = STARTED + "ERROR 11-22 02:59:00 torch.distributed.DistStoreError: Timed out after 9 s\n"
    there = {"gpu1": host(("chat", "backing-off"), logs={"chat": log})}
    asked = Asked("", NOW, {"10.0.0.1": "gpu1"})
    (cause,) = of_bundle(bundled(tmp_path / "a.tar.gz", there, asked))
    assert cause.fix == "look for a rank that failed: clusterctl logs"


def test_what_a_fix_costs_is_told() -> None:
    files = {"gpu1": host(("chat", "backing-off"), logs={"chat": STARTED + GRAPHS_FULL})}
    lines = list(cause_lines(causes_of(files, Asked("", NOW, NAMES))))
    assert "  costs: fewer requests run at once" in lines


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00"])
def test_what_is_no_bundle_is_refused_without_a_traceback(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "report.tar.gz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"report\.tar\.gz"):
        of_bundle(path)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst"])
def test_a_bundle_gives_the_verdict_of_the_cluster(suffix: str, tmp_path: Path) -> None:
    log = STARTED + "ERROR 11-22 02:59:00 ValueError: No available memory for the cache blocks.\n"
    ray = "[2026-11-22 02:59:33,1 E 7 7] Failed to connect to GCS at 10.0.0.1:6379\n"
    journal = entry(600, "chat", "ranks", RANKS) + entry(20, "chat", "failed", "ended; retrying")
    files = {
        "gpu1": host(("chat", "backing-off"), journal=journal, logs={"chat": log, "ray": ray}),
        "gpu2": {
            **host(),
            "kernel": "2026-11-22T02:59:00+0000 gpu2 kernel: NVRM: Xid (P): 79, x\n",
        },
    }
    question = Asked("", NOW, NAMES)
    told = of_bundle(bundled(tmp_path / f"report{suffix}", files, question))

    assert told == causes_of(files, question)
    assert {each.id for each in told} == {"xid-79", "kv-no-blocks", "gcs-unreachable"}
