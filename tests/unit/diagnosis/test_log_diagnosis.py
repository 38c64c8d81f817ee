"""Lines of real logs, and the cause that is read from them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.diagnosis.logs import MOST, lines_of, search, search_now
from clusterctl.diagnosis.rules import LEVELS, Pattern, Rule, rules
from clusterctl.diagnosis.verdict import diagnose, explain, verdict
from clusterctl.serving.release_flags import FLAGS
from scripts.causes import page

ROOT = Path(__file__).parents[3]

NO_KV_MEMORY_LOG = """\
(VllmWorker rank=1 pid=3244) INFO 05-16 23:09:33 [gpu_model_runner.py:1347] Model loading took 1.2216 GiB and 5.555432 seconds
ERROR 05-16 23:09:36 [core.py:396] EngineCore failed to start.
ERROR 05-16 23:09:36 [core.py:396] Traceback (most recent call last):
ERROR 05-16 23:09:36 [core.py:396] raise ValueError("No available memory for the cache blocks. "
ERROR 05-16 23:09:36 [core.py:396] ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
ERROR 05-16 23:09:37 [multiproc_executor.py:123] Worker proc VllmWorker-0 died unexpectedly, shutting down executor.
"""  # noqa: E501

HEALTHY_LOG = """\
INFO 02-23 21:55:07 config.py:1401] Defaulting to use mp for distributed inference
(VllmWorker rank=0 pid=2874) WARNING 05-16 23:06:29 [custom_all_reduce.py:146] Custom allreduce is disabled because your platform lacks GPU P2P capability or P2P test failed.
WARNING 02-06 [utils.py:2522] Methods determine_num_available_blocks,device_config not implemented in <vllm.v1.worker.gpu_worker.Worker>
INFO 04-18 20:24:40 [kv_cache_utils.py:1319] GPU KV cache size: 798,624 tokens
[rank0]:[W323 19:18:59.141406155 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL.
INFO: Application startup complete.
"""  # noqa: E501


PATTERNS = [
    pytest.param(rule, pattern, id=f"{rule.id}-{number}")
    for rule in rules()
    for number, pattern in enumerate(rule.seen)
]

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
STARTED = "INFO 11-22 03:00:00 [api_server.py:1] vLLM API server version 0.25.1"
READY = "INFO:     Application startup complete."


def ids(*lines: str, last_start: bool = False) -> list[str]:
    found = search((f"{line}\n".encode() for line in lines), "log", last_start=last_start)
    return [one.id for one in verdict(found)]


@pytest.mark.parametrize(("rule", "pattern"), PATTERNS)
def test_an_example_is_recognised_by_its_own_pattern(rule: Rule, pattern: Pattern) -> None:
    before = [pattern.after[0].encode()] if pattern.after else []

    found = search([*before, pattern.example.encode()], "log")[-1]

    assert (found.id, found.pattern) == (rule.id, pattern)
    assert "unknown" not in found.cause + found.fix
    assert "{" not in found.cause + found.fix


def test_ids_are_unique_and_levels_and_times_are_known() -> None:
    names = [rule.id for rule in rules()]

    assert len(set(names)) == len(names)
    assert {rule.at for rule in rules()} == {"start", "any"}
    assert {pattern.level for rule in rules() for pattern in rule.seen} <= set(LEVELS)


def test_the_cause_is_named_and_not_the_reports_around_it() -> None:
    first, *others = diagnose(NO_KV_MEMORY_LOG.splitlines())

    assert (first.id, first.evidence[0].line) == ("kv-no-blocks", 4)
    for flag in ("--max-num-batched-tokens", "--max-model-len", "--enforce-eager"):
        assert flag in first.fix
    assert [each.id for each in others] == ["engine-not-started", "rank-died"]
    assert {each.follows_from for each in others} == {"kv-no-blocks"}


def test_the_earliest_of_several_causes_counts() -> None:
    assert ids("No space left on device", "Gloo connectFullMesh failed") == [
        "disk-full",
        "gloo-ifname",
    ]


def test_what_stands_before_the_first_clock_of_a_log_is_earlier_than_what_follows() -> None:
    died = "(raylet) A worker died or was killed while executing a task by an unexpected error"
    ended = "ERROR 11-22 03:12:09 [core.py:1099] EngineCore failed to start."
    assert ids(died, ended) == ["rank-died", "engine-not-started"]


def test_a_message_that_goes_on_in_the_next_line_is_read_as_a_whole() -> None:
    asked = "[autoscaler] Error: No available node types can fulfill resource request"
    assert ids(asked, f"{' ' * 12}{{'GPU': 1.0, 'node:10.0.0.7': 0.001}}.") == [
        "pg-host-ip-mismatch"
    ]
    assert ids(asked, f"{' ' * 12}{{'GPU': 1.0}}.") == ["pg-not-enough-gpus"]


def test_a_healthy_log_has_no_cause_of_failure() -> None:
    assert diagnose(HEALTHY_LOG.splitlines()) == []


def test_vllms_warning_of_a_low_limit_is_not_the_error_that_it_quotes() -> None:
    warning = (
        "Found ulimit of 20000 and failed to automatically increase with error current limit "
        "exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many "
        "open files`. Consider increasing with ulimit -n"
    )
    assert ids(STARTED, warning) == []
    assert ids(STARTED, "OSError: [Errno 24] Too many open files") == ["ulimit-nofile"]
    assert ids(STARTED, "OSError: [Errno 24] Too many open files: '/x'") == ["ulimit-nofile"]


def test_what_a_start_overcame_is_silent_and_what_ended_a_service_is_not() -> None:
    warning = "Failed to connect to GCS at address 10.0.0.1:6379 within 5 seconds."

    assert ids(STARTED, warning) == ["gcs-unreachable"]
    assert ids(STARTED, warning, READY) == []
    assert ids(STARTED, READY, OOM, DEAD) == ["oom-gpu", "engine-dead-stall"]
    assert ids(STARTED, OOM, STARTED, READY) == ["oom-gpu"]
    assert ids(STARTED, OOM, STARTED, READY, last_start=True) == []


def test_what_failed_in_two_starts_is_found_in_both() -> None:
    first, second = search([f"{x}\n".encode() for x in (STARTED, OOM, STARTED, OOM)], "log")

    assert (first.evidence.line, second.evidence.line) == (2, 4)


def test_all_marks_of_one_start_are_of_one_start() -> None:
    arguments, engine = "non-default args: {}", "Initializing a V1 LLM engine (v0.25.1) with config"

    assert ids(STARTED, arguments, OOM, engine, last_start=True) == ["oom-gpu"]
    assert ids(STARTED, OOM, arguments, engine, last_start=True) == ["oom-gpu"]
    assert ids(arguments, OOM, engine, last_start=True) == ["oom-gpu"]
    for first in (STARTED, arguments, engine):  # A log may be cut within a start
        assert ids(first, OOM, STARTED, engine, last_start=True) == []
        assert ids(first, engine, OOM, first, last_start=True) == []


@pytest.mark.parametrize("pid", ["7';reboot;'", "$(reboot)", "`reboot`", "7&reboot", "7|reboot"])
def test_a_fix_has_nothing_of_a_log_that_a_shell_would_run(pid: str) -> None:
    line = f"2026-11-22T03:12:07Z host stopped raylet (process {pid}) is stopped by a signal"

    (found,) = search([line.encode()], "journal", "gpu2")

    assert pid in found.cause
    assert "--limit gpu2 --node -- sh -c 'kill -CONT unknown'" in found.fix


@pytest.mark.parametrize(
    ("last", "line"),
    [
        ("INFO 11-22 03:59:00 [loggers.py:1] Engine 000", 3),
        ("INFO 11-22 04:30:00 [loggers.py:1] Engine 000", 5),
        ("INFO 01-01 00:30:00 [loggers.py:1] Engine 000", None),
        ("no time", 3),
        ("INFO 02-30 00:00:00 [loggers.py:1] no such day", 3),
    ],
)
def test_a_clients_mistake_is_told_for_an_hour(last: str, line: int | None) -> None:
    refused = 'INFO:     10.0.0.9:512 - "POST /v1/completions HTTP/1.1" 401 Unauthorized'
    later = ("INFO 11-22 03:20:00 [loggers.py:1] x", "INFO 11-22 03:40:00 [loggers.py:1] x")
    texts = (STARTED, READY, refused, later[0], refused, later[1], DEAD, last)
    lines = [f"{text}\n".encode() for text in texts]

    found = search_now(lines, "chat.log")

    told = {one.id: one.evidence.line for one in found}
    assert told == {"engine-dead-stall": 7, **({"api-401": line} if line else {})}
    assert [one.id for one in search(lines, "chat.log")].count("api-401") == 1


def test_the_first_cause_by_time_counts_across_hosts() -> None:
    head = search([b"ERROR 11-22 03:12:09 x.py] No space left on device"], "a", "gpu1")
    worker = search([b"[2026-11-22 03:12:07,1 E] NVRM: Xid (PCI:0000:41:00): 79, GPU"], "b", "gpu2")

    first, second = verdict([*head, *worker])

    assert (first.id, first.evidence[0].host) == ("xid-79", "gpu2")
    assert second.id == "disk-full"
    assert second.follows_from is None


def test_a_failure_between_ranks_follows_from_the_cause_of_one() -> None:
    watchdog = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=13"

    causes = verdict(search([watchdog.encode(), b"No space left on device"], "log"))

    assert [(one.id, one.follows_from) for one in causes] == [
        ("disk-full", None),
        ("nccl-collective-timeout", "disk-full"),
    ]


def test_colours_prefixes_and_cut_lines_are_read() -> None:
    line = (
        b"\x1b[36m(RayWorkerWrapper pid=812, ip=10.0.0.2)\x1b[0m No available "
        b"\x1b[1mmemory for\x1b[0m the cache blocks\xff\xfe"
    )

    (found,) = search([line], "log")

    assert found.id == "kv-no-blocks"
    assert found.evidence.host == "10.0.0.2"
    assert "\x1b" not in found.evidence.text


def test_an_endless_line_is_not_searched_to_its_end() -> None:
    assert list(lines_of(io.BytesIO(b"x" * 100_000 + b"EngineDeadError\nlast\n")))[1] == b"last\n"
    assert diagnose(["x" * 10_000 + "EngineDeadError"]) == []


def test_repeated_lines_are_one_finding() -> None:
    (found,) = search((b"ERROR %d: EngineDeadError" % number for number in range(10_000)), "log")

    assert found.evidence.line == 1


def test_lines_that_differ_in_digits_only_are_told_apart_by_them() -> None:
    """The first line of this form matches nothing."""
    assert ids("exited with exit code: -1", "exited with exit code: -9") == ["host-oom-ray"]
    assert ids("worker exit code: -15", *["worker exit code: -9"] * 3) == ["host-oom-ray"]
    code = "openai.AuthenticationError: Error code: {} - {{'error': 'no'}}"
    assert ids(code.format(500), code.format(401)) == ["unknown-cause", "api-401"]


def test_what_must_stand_before_is_looked_for_at_each_line() -> None:
    rule, pattern = next(
        (rule, one) for rule in rules() for one in rule.seen if one.after and not one.without
    )
    assert rule.id in ids(pattern.example, *["x"] * 200, pattern.after[0], pattern.example)


def test_text_of_two_bytes_a_character_is_read() -> None:
    text = f"{NO_KV_MEMORY_LOG}{'x' * 50}\n"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        stream = io.BytesIO(text.encode(encoding))
        assert [one.id for one in verdict(search(lines_of(stream), "log"))][:1] == ["kv-no-blocks"]


def test_the_kernels_corrected_bus_errors_are_no_cause() -> None:
    line = "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer"
    assert ids(line) == []
    assert ids(line, "run.sh: line 1: 3151 Bus error   (core dumped) vllm serve") == ["shm-sigbus"]


def many_starts(count: int) -> Iterator[bytes]:
    """Yield a log of starts that all fail differently, and say much."""
    for number in range(count):
        word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
        yield f"{STARTED}\n".encode()
        yield f"{word} {'x' * 3000}\n".encode()
        yield f"OSError: No space left on device: /{word}/{'y' * 3000}\n".encode()
        yield f"Error: Too many open files: /{word}\n".encode()
        yield b"RuntimeError: Engine core initialization failed. See root cause above.\n"


def test_findings_of_many_different_starts_are_few_and_have_the_first_and_the_last() -> None:
    found = search(many_starts(1000), "log")

    lines = [one.evidence.line for one in found if one.id == "disk-full"]
    assert lines == [*range(3, 5 * (MOST - 1), 5), 4998]
    assert len(found) == 3 * MOST
    assert [one.evidence.line for one in found] == sorted(one.evidence.line for one in found)
    assert verdict(found)[0].evidence[0].line == 3


def test_findings_of_one_start_are_few_too() -> None:
    lines = [f"error: unrecognized arguments: {'a' * n}\n".encode() for n in range(1, 300)]

    found = search([b"Too many open files\n", *lines], "log")

    assert [one.evidence.line for one in found] == [*range(1, MOST + 1), 300]


def test_what_decides_is_kept_among_many_findings_that_do_not() -> None:
    likely = [f"{STARTED}\n{'a' * n} exit code: -9\n" for n in range(2 * MOST)]
    certain = f"{STARTED}\nut of memory: Killed process 12 (python)\n"
    text = "".join([*likely, certain, *likely])

    (cause,) = verdict(search(lines_of(io.BytesIO(text.encode())), "log"))

    assert (cause.id, cause.certainty) == ("host-oom-ray", "certain")
    assert len(cause.evidence) == MOST
    assert cause.evidence[0].line == 4 * MOST + 2


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_no_bytes_are_too_strange(lines: list[bytes]) -> None:
    verdict(search(lines, "log"))


def test_an_error_carries_cause_fix_and_the_end_of_the_log() -> None:
    error = explain("chat", NO_KV_MEMORY_LOG.splitlines(), host="gpu1")

    assert str(error).startswith("gpu1: chat did not start: nothing of --gpu-memory-utilization")
    assert "--gpu-memory-utilization" in (error.hint or "")
    assert "No available memory for the cache blocks" in (error.detail or "")


def test_an_unknown_failure_shows_the_log() -> None:
    error = explain("chat", ["what?"])

    assert error.hint == "clusterctl logs chat"
    assert error.detail == "what?"


def test_the_page_of_causes_is_made_from_the_rules() -> None:
    assert (ROOT / "docs/causes.md").read_text() == page()


def test_memory_of_a_gpu_is_told_by_what_it_was_wanted_for() -> None:
    wanted = f"{OOM} capacity of 6.00 GiB of which 9.00 MiB is free."

    assert "weights do not fit" in diagnose(["  in create_weights", wanted])[0].cause
    assert "before there was a KV cache" in diagnose(["  in profile_run", wanted])[0].cause
    assert (
        diagnose([wanted])[0].cause
        == "GPU 0 of 6.00 GiB ran out of memory: it wanted 1.00 GiB more"
    )
    sampler = (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 8 dummy requests"
    )
    assert ids(OOM, sampler) == ["oom-sampler-warmup"]
    assert ids(STARTED, OOM, STARTED, sampler) == ["oom-gpu", "oom-sampler-warmup"]
    assert ids(STARTED, OOM, READY, sampler) == ["oom-sampler-warmup"]


def test_the_assertion_of_a_kernel_is_named_before_the_error_that_follows() -> None:
    assertion = (
        "/x/Indexing.cu:1500: select: block: [0,0,0], thread: [1,0,0] Assertion `i < n` failed."
    )
    triggered = "torch.AcceleratorError: CUDA error: device-side assert triggered"

    (cause,) = diagnose([assertion, triggered])

    assert "Assertion `i < n` failed" in cause.cause
    assert [one.line for one in cause.evidence] == [1, 2]


OF_OTHERS = frozenset({
    "cluster", "fabric", "install-driver", "json", "limit", "node", "pp", "tp",  # clusterctl
    "pids-limit", "shm-size", "ulimit", "node-ip-address", "since", "sort",  # docker, ray, the host
})  # fmt: skip


def test_every_flag_in_a_fix_exists() -> None:
    named = {
        flag.removeprefix("--")
        for rule in rules()
        for pattern in rule.seen
        for flag in re.findall(r"--[a-z][a-z0-9-]+", pattern.fix)
    }
    assert len(named) > 40
    assert named <= {*FLAGS, *OF_OTHERS}
