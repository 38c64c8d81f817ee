"""Evidence of a hang: stacks of real processes, taken before they are ended, on every host."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.node.documents import Rank
from clusterctl.node.evidence import (
    KEPT,
    LARGEST,
    HangEvidence,
    bounded,
    cores_wanted,
    log_ends,
    taken,
)
from clusterctl.node.files import Journal, NodePaths
from clusterctl.node.stacks import DIRECTORY, ask_for, call_of
from tests.fakes.node_bench import QUICK, Bench, await_value

HANGING = """\
import sys, time
from clusterctl.node.stacks import register
register()
def looping():
    print("in it", flush=True)
    while True: pass
def waiting():
    print("in it", flush=True)
    time.sleep(60)
{"loops": looping, "waits": waiting}[sys.argv[1]]()
"""


@contextmanager
def hanging(directory: Path, how: str) -> Iterator[subprocess.Popen[str]]:
    directory.mkdir(exist_ok=True)
    env = {**os.environ, DIRECTORY: str(directory)}
    argv = [sys.executable, "-c", HANGING, how]
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "in it\n"
            yield process
        finally:
            process.kill()


def test_each_process_tells_where_it_is_and_a_stopped_one_that_it_is_stopped(
    tmp_path: Path,
) -> None:
    stacks = tmp_path / "stacks"
    with (
        hanging(stacks, "loops") as loops,
        hanging(stacks, "waits") as waits,
        hanging(stacks, "waits") as stopped,
    ):
        stopped.send_signal(signal.SIGSTOP)
        found = {
            each["pid"]: each for each in taken(stacks, 1.0, {loops.pid, waits.pid, stopped.pid})
        }

        assert found[loops.pid]["call"] == "looping (<string>:6)"
        assert found[waits.pid]["call"] == "waiting (<string>:9)"
        assert found[loops.pid]["cpu"] > found[waits.pid]["cpu"] + 0.1  # type: ignore[operator]
        assert (found[stopped.pid]["state"], found[stopped.pid]["stacks"]) == ("T", "")
        assert loops.poll() is waits.poll() is None, "they went on"

    again = taken(stacks, 0.01, {loops.pid, waits.pid})
    assert not {loops.pid, waits.pid, stopped.pid} & {each["pid"] for each in again}
    assert not list(stacks.iterdir()), "files of ended processes are removed"


def test_a_thread_that_ended_takes_nothing_from_the_cores_of_others() -> None:
    before = {"1": 900 * 10**9, "2": 7 * 10**9}
    assert cores_wanted(before, {"2": 8 * 10**9, "3": 10**9}, 2.0) == 1.0


def test_processes_of_other_services_are_not_sent_the_signal(tmp_path: Path) -> None:
    with hanging(tmp_path / "stacks", "waits") as hung, hanging(tmp_path / "stacks", "waits") as ok:
        found = {each["pid"] for each in taken(tmp_path / "stacks", 0.5, {hung.pid})}
        assert hung.pid in found
        assert ok.pid not in found
        assert (tmp_path / "stacks" / str(ok.pid)).read_bytes() == b""


def test_a_process_that_was_forked_tells_where_it_is_itself(tmp_path: Path) -> None:
    program = FORKED.replace("DIRECTORY", repr(str(tmp_path)))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        try:
            found = {each["pid"]: each["call"] for each in taken(tmp_path, 0.5, {child})}
            assert found[child] == "engine (<string>:5)"
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


FORKED = """\
import os, time
os.environ["CLUSTERCTL_STACKS"] = DIRECTORY
from clusterctl.node.stacks import register
register()
def engine(): print(os.getpid(), flush=True) or time.sleep(60)
os.fork() or engine()
time.sleep(60)
"""


def test_large_evidence_loses_frames_and_stays_whole() -> None:
    processes = [{"pid": pid, "stacks": "\n" * 2**16 + "innermost"} for pid in range(64)]
    text = bounded({"id": "x", "processes": processes, "logs": {"a": "b"}, "nccl": ""})
    assert len(text) <= LARGEST
    kept = json.loads(text)
    assert kept["processes"][63]["stacks"].endswith("innermost")


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"prompt: '{'secret ' * 1000}'\nnext\n")
    assert dict(log_ends([tmp_path])) == {"a.log": "next\n"}


def test_a_process_that_does_not_know_the_signal_is_not_sent_it() -> None:
    with subprocess.Popen(["sleep", "60"]) as other:
        assert not ask_for(other.pid)
        time.sleep(0.1)
        assert other.poll() is None
        other.kill()


VLLM = """\
Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait
  File "/opt/vllm/usage/usage_lib.py", line 20 in report

Current thread 0x00007f02 (most recent call first):
  File "/opt/torch/c10d.py", line 2829 in all_reduce
  File "/opt/vllm/distributed/parallel_state.py", line 501 in all_reduce
  File "/opt/vllm/v1/worker/gpu_worker.py", line 9 in execute_model
"""


def test_the_call_is_that_of_the_main_thread_and_of_vllm() -> None:
    assert call_of(VLLM) == (
        "all_reduce (c10d.py:2829) called by all_reduce (vllm/distributed/parallel_state.py:501)"
    )
    assert call_of("") == ""
    assert call_of("Thread 0x1 (most recent call first):\n  no frames\n") == ""


RANKS = [Rank(0, 0, 0, "a", "10.0.0.1", 1), Rank(1, 1, 0, "b", "10.0.0.2", 2)]


def evidence(root: Path, host: str) -> tuple[HangEvidence, NodePaths]:
    paths = NodePaths("demo", root / host)
    paths.logs.mkdir(parents=True, exist_ok=True)
    timing = replace(QUICK, evidence_pause=0.01)
    return HangEvidence(paths, host, timing, Journal(paths.journal, host, io.StringIO())), paths


def test_one_host_asks_and_the_other_takes_it_once(tmp_path: Path) -> None:
    asking, here = evidence(tmp_path, "a")
    heard, there = evidence(tmp_path, "b")
    assert asking.ask("chat", "stalled: no token", RANKS, []) == QUICK.evidence_everywhere
    word = here.asked.read_text()

    for _ in range(3):
        heard.heard(word)
        asking.heard(word)
        await_value(lambda: list(there.logs.glob("evidence-*.json")), "evidence on b")
    await_value(lambda: list(here.logs.glob("evidence-*.json")), "evidence on a")

    first, second = (
        json.loads(file.read_text())
        for paths in (here, there)
        for file in paths.logs.glob("evidence-*.json")
    )
    assert (first["id"], first["host"], second["host"]) == (second["id"], "a", "b")
    assert [rank["host"] for rank in first["ranks"]] == ["a", "b"]
    assert (next(there.logs.glob("evidence-*.json")).stat().st_mode & 0o777) == 0o600
    assert there.journal.read_text().count("stalled: no token") == 1


@pytest.mark.parametrize(
    "word",
    [
        "",
        "[]",
        "{",
        '{"id": "../../x", "time": NOW, "service": "s", "why": "w"}',
        '{"id": "x", "time": 5, "service": "s", "why": "w"}',
        f'{{"id": "x", "time": 1{"0" * 400}, "service": "s", "why": "w"}}',
        '{"id": "x", "time": NOW, "service": 1, "why": 1, "ranks": [{"pid": 1e999, "host": "a"}]}',
    ],
)
def test_a_word_that_is_none_is_not_followed(tmp_path: Path, word: str) -> None:
    made, paths = evidence(tmp_path, "a")
    made.heard(word.replace("NOW", str(time.time())))
    assert not list(paths.logs.glob("evidence-*"))


def test_the_newest_are_kept(tmp_path: Path) -> None:
    made, paths = evidence(tmp_path, "a")
    for number in range(20):
        (paths.logs / f"evidence-2020-{number:02}.json").write_text("{}")
    made.ask("chat", "stalled", [], [])
    await_value(lambda: list(paths.logs.glob("evidence-*-chat.json")), "evidence")
    kept = sorted(path.name for path in paths.logs.glob("evidence-*.json"))
    assert len(kept) == KEPT
    assert kept[0] == "evidence-2020-13.json"


def test_a_stalled_service_is_ended_after_its_evidence_was_taken(bench: Bench) -> None:
    bench.timing = replace(bench.timing, canary_timeout=0.5, evidence_here=6.0)
    bench.declare(stall_timeout=1.5)
    bench.start()
    first = bench.await_service("ready").pid
    bench.behaviour("vllm", {"completion": "hang"})

    bench.await_service("stalled")
    file = await_value(lambda: list(bench.paths.logs.glob("evidence-*-chat.json")), "evidence")[0]

    assert Path("/proc", str(first)).exists(), "it was not ended yet"
    assert json.loads(file.read_text())["why"].startswith("stalled: ")
    bench.behaviour("vllm", {})
    again = bench.await_service("ready", restarts=1)
    assert again.pid != first
