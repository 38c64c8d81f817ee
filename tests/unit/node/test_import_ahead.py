"""A process that has imported vLLM and waits for the next start, under a real supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.node.children import is_alive, session_members
from clusterctl.node.import_ahead import IMPORT_AHEAD, OFF, ON, ImportAhead, StartCommand
from clusterctl.node.readings import process_state
from tests.fakes.node_bench import PROGRAMS, Bench, await_value

MODULE = "clusterctl.node.import_ahead"
USED = "which has imported vLLM"
IMPORTED = "vllm is imported"

PACKAGE = f"""
import os
print({IMPORTED!r}, flush=True)
open(os.path.join(os.path.dirname(__file__), str(os.getpid())), "w").close()
"""
"""Stands for vLLM's: a file tells that a process has imported it."""

PROGRAM = """#!{python}
import runpy, vllm
runpy.run_path({stands!r}, run_name="__main__")
"""


@pytest.fixture
def program(bench: Bench) -> str:
    """Stands for `vllm`, a program of Python."""
    package = bench.root / "lib" / "vllm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(PACKAGE)
    program = bench.root / "vllm"
    stands = str(PROGRAMS / "fake_vllm.py")
    program.write_text(PROGRAM.format(python=sys.executable, stands=stands))
    program.chmod(0o755)
    bench.timing = replace(bench.timing, import_ahead=0.05)
    return str(program)


def declare(bench: Bench, program: str, **changes: Any) -> None:
    env = {IMPORT_AHEAD: ON, "PYTHONPATH": str(bench.root / "lib"), **changes.pop("env", {})}
    bench.declare(argv=[program, str(bench.root), "--arg"], env=env, **changes)


def waiting(bench: Bench) -> list[int]:
    """The processes that wait for a start of this bench's service."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if MODULE.encode() in words and str(bench.root).encode() in words:
            found.append(int(entry.parent.name))
    used = [start["pid"] for start in bench.starts("vllm")]
    return [pid for pid in found if is_alive(pid) and pid not in used]


def await_waiting(bench: Bench) -> int:
    """The process that waits for the next start, once it has imported vLLM."""
    pid = await_value(lambda: waiting(bench), "a process that waits")[0]
    told = bench.root / "lib" / "vllm" / str(pid)
    await_value(lambda: told.exists() and process_state(pid) == "S", "it to import vLLM")
    return pid


def await_start(bench: Bench, number: int) -> dict[str, Any]:
    """What the start of this number saw, once the service is ready after it."""
    await_value(lambda: len(bench.starts("vllm")) == number, f"start {number}")
    start = bench.starts("vllm")[-1]
    bench.await_service("ready", pid=start["pid"])
    return start


def serve(bench: Bench, program: str) -> int:
    """The process that waits for the second start."""
    declare(bench, program)
    bench.start()
    await_start(bench, 1)
    return await_waiting(bench)


def used(bench: Bench) -> list[bool]:
    """Of each start, whether its process had imported vLLM before."""
    told = zip(bench.events("chat"), bench.told("chat"), strict=True)
    return [USED in text for event, text in told if event == "starting"]


def kill(bench: Bench) -> None:
    os.kill(bench.starts("vllm")[-1]["pid"], signal.SIGKILL)


def test_a_restart_uses_the_process_that_waits_and_differs_in_nothing_else(
    bench: Bench, program: str
) -> None:
    pid = serve(bench, program)
    first = bench.starts("vllm")[0]
    assert pid not in session_members(first["pid"])
    assert "secret-key" not in Path("/proc", str(pid), "environ").read_text()

    kill(bench)
    second = await_start(bench, 2)

    assert second == {**first, "pid": pid}
    assert os.getsid(pid) == pid
    assert not session_members(first["pid"])
    assert used(bench) == [False, True]
    await_value(lambda: bench.log().count("KV cache size") == 2, "its lines in the log")
    assert bench.log().count(IMPORTED) == 2
    assert await_waiting(bench) != pid

    kill(bench)
    await_start(bench, 3)
    assert used(bench) == [False, True, True]


def test_the_same_command_is_started_again_by_a_new_fingerprint(bench: Bench, program: str) -> None:
    """As `clusterctl restart` asks for it."""
    pid = serve(bench, program)

    declare(bench, program, fingerprint="2")

    assert await_start(bench, 2)["pid"] == pid


def test_refused_arguments_are_noticed_by_its_exit_status(bench: Bench, program: str) -> None:
    serve(bench, program)

    bench.behaviour("vllm", {"exit": 2, "words": "vllm serve: error: unrecognized arguments"})
    kill(bench)

    assert "rejected its arguments (ended with status 2)" in bench.await_service("failed").detail
    assert used(bench) == [False, True]


@pytest.mark.parametrize("change", ["the document", "the key", "what is installed"])
def test_after_a_change_it_ends_unused(bench: Bench, program: str, change: str) -> None:
    pid = serve(bench, program)

    if change == "the document":
        declare(bench, program, fingerprint="2", env={"ANOTHER": "1"})
    else:
        if change == "the key":
            bench.paths.api_key.write_text("another-key\n")
        else:
            os.utime(bench.root / "lib" / "vllm" / "__init__.py")
        kill(bench)

    start = await_start(bench, 2)
    assert start["pid"] != pid
    assert not is_alive(pid)
    assert used(bench) == [False, False]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_without_an_answer_of_it_the_service_starts_as_usual(
    bench: Bench, program: str, number: signal.Signals
) -> None:
    pid = serve(bench, program)

    os.kill(pid, number)
    kill(bench)

    await_start(bench, 2)
    assert used(bench) == [False, False]
    assert not is_alive(pid)


def test_one_that_died_is_not_started_again_before_the_next_start(
    bench: Bench, program: str
) -> None:
    os.kill(serve(bench, program), signal.SIGKILL)
    kill(bench)
    await_start(bench, 2)
    await_waiting(bench)

    assert len(list((bench.root / "lib" / "vllm").glob("[0-9]*"))) == 4  # 2 starts, 2 that waited


def test_it_ends_with_its_supervisor(bench: Bench, program: str) -> None:
    pid = serve(bench, program)

    bench.end_supervisor()

    assert not is_alive(pid)


def test_it_ends_with_its_service(bench: Bench, program: str) -> None:
    pid = serve(bench, program)

    bench.remove()

    await_value(lambda: not is_alive(pid), "its end")


def command(bench: Bench, program: str, ahead: str = ON) -> StartCommand:
    path = os.pathsep.join([str(bench.root / "lib"), str(Path(__file__).parents[3])])
    env = {**os.environ, IMPORT_AHEAD: ahead, "PYTHONPATH": path}
    return StartCommand([program, str(bench.root)], env, "key", {})


def test_it_ends_if_its_supervisor_is_killed(bench: Bench, program: str) -> None:
    script = (
        "import json, sys, time\n"
        "from clusterctl.node.import_ahead import ImportAhead, StartCommand\n"
        "ahead = ImportAhead()\n"
        "ahead.begin(StartCommand(sys.argv[1:], json.load(sys.stdin), '', {}))\n"
        "time.sleep(600)\n"
    )
    asked = command(bench, program)
    argv = [sys.executable, "-c", script, *asked.argv]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=asked.env, text=True) as supervisor:
        assert supervisor.stdin
        supervisor.stdin.write(json.dumps(asked.env))
        supervisor.stdin.close()
        pid = await_waiting(bench)

        supervisor.kill()

        await_value(lambda: not is_alive(pid), "its end")


def test_nothing_waits_where_it_is_switched_off_or_vllm_is_no_program_of_python(
    bench: Bench, program: str
) -> None:
    for asked in (command(bench, program, OFF), command(bench, "/bin/true"), command(bench, "no")):
        ahead = ImportAhead()
        ahead.begin(asked)
        assert ahead.take(asked) is None
        assert not waiting(bench)


def test_nothing_waits_for_a_service_that_is_not_ready(bench: Bench, program: str) -> None:
    bench.behaviour("vllm", {"exit": 1, "words": "ValueError: no such model"})
    declare(bench, program)
    bench.start()

    bench.await_service("failed")

    imported = {int(each.name) for each in (bench.root / "lib" / "vllm").glob("[0-9]*")}
    assert imported == {each["pid"] for each in bench.starts("vllm")}


def test_nothing_waits_for_a_service_that_sleeps(bench: Bench, program: str) -> None:
    declare(bench, program, idle=0.5)
    bench.start()

    await_value(lambda: (one := bench.service()) and one.sleep.asleep, "it to sleep")

    assert not waiting(bench)
