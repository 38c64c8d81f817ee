"""Commands in the node container, run by real processes here; `docker` is a script for them."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clusterctl.inventory.model import Host, Ssh
from clusterctl.serving import job as serving_job
from clusterctl.serving.job import Job, JobOutput, JobResult, run_job
from clusterctl.transport.command import RunningCommand
from clusterctl.transport.local import LocalTransport

SCRIPT = f"script-{os.getpid()}.py"

WAITS = f"import time; print('started', flush=True); time.sleep(60)  # {os.getpid()}"


@dataclass
class Seen:
    """What one run wrote, and its result."""

    stdout: bytes = b""
    stderr: bytes = b""
    notes: list[str] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def add(self, stream: str) -> Callable[[bytes], None]:
        return lambda data: setattr(self, stream, getattr(self, stream) + data)

    @property
    def output(self) -> JobOutput:
        return JobOutput(self.add("stdout"), self.add("stderr"), self.notes.append)

    def run(self, head: LocalTransport, text: str, *arguments: str, **job: object) -> JobResult:
        made = Job(["python3", f"./{SCRIPT}", *arguments], {SCRIPT: text}, **job)  # type: ignore[arg-type]
        return run_job(head, "lab", made, self.output, self.cancelled)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTransport]:
    (tmp_path / "bin").mkdir()
    docker = tmp_path / "bin" / "docker"
    # Like the engine's client, it does not take the command along when it is killed.
    docker.write_text('#!/bin/sh\nshift 3\nexec setsid --wait "$@"\n')
    sudo = tmp_path / "bin" / "sudo"
    sudo.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    for program in (docker, sudo):
        program.chmod(0o755)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    transport = LocalTransport(Host(name="here", address="localhost", ssh=Ssh()))
    yield transport
    transport.close()
    # Whatever happened to the runs
    until(lambda: not list((tmp_path / "tmp").iterdir()))


def gone(command: str) -> bool:
    return subprocess.run(["pgrep", "-f", command], capture_output=True).returncode == 1


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_output_and_exit_status_arrive_as_they_are(head: LocalTransport) -> None:
    seen = Seen()
    text = (
        "import os, sys\n"
        "sys.stdout.buffer.write(b'\\x00\\xff' * 100_000)\n"
        "print(sys.argv[1:], os.environ['SECRET'], file=sys.stderr)\n"
        "open('result.json', 'w').write('{}')\n"
        "sys.exit(7)"
    )
    result = seen.run(head, text, "-x", "a b", env={"SECRET": "s3"}, result="result.json")

    assert result == JobResult(7, b"{}")
    assert seen.stdout == b"\x00\xff" * 100_000
    assert seen.stderr.decode() == "['-x', 'a b'] s3\n"


def test_a_signal_and_a_missing_program_are_statuses_as_a_shell_has_them(
    head: LocalTransport,
) -> None:
    assert Seen().run(head, "import os; os.kill(os.getpid(), 9)").status == 137
    missing = Seen()
    assert run_job(head, "lab", Job(["nothing"]), missing.output, missing.cancelled).status == 127
    assert missing.stderr == b"nothing: No such file or directory\n"


def test_what_the_command_leaves_running_ends_with_it(head: LocalTransport) -> None:
    text = "import subprocess; subprocess.Popen(['setsid', 'sleep', '61.25'])"
    assert Seen().run(head, text).status == 0
    assert gone("sleep 61.25")


def test_ctrl_c_interrupts_the_command_and_waits_for_its_last_words(head: LocalTransport) -> None:
    seen = Seen()
    text = f"try:\n {WAITS}\nexcept KeyboardInterrupt:\n print('put away')"

    def press() -> None:
        until(lambda: b"started" in seen.stdout)
        seen.cancelled.set()

    threading.Thread(target=press).start()

    assert seen.run(head, text).status == 0
    assert seen.stdout == b"started\nput away\n"


def test_a_caller_that_goes_away_ends_the_command(head: LocalTransport) -> None:
    def reader_left(data: bytes) -> None:
        raise BrokenPipeError

    output = JobOutput(reader_left, reader_left, print)
    with pytest.raises(BrokenPipeError):
        run_job(head, "lab", Job(["python3", "-c", WAITS]), output, threading.Event())
    until(lambda: gone(WAITS))


def test_the_next_run_ends_what_a_killed_one_left(head: LocalTransport, tmp_path: Path) -> None:
    first = Seen()

    def kill() -> None:
        until(lambda: b"started" in first.stdout)
        (child,) = (
            int(each.name)
            for each in Path("/proc").iterdir()
            if each.name.isdigit() and is_script(each)
        )
        os.kill(parent_of(child), signal.SIGKILL)

    threading.Thread(target=kill).start()
    with pytest.raises(Exception, match="running the command failed"):
        first.run(head, f"import signal; signal.signal(2, signal.SIG_IGN); {WAITS}")
    assert not gone(SCRIPT)

    second = Seen()
    assert second.run(head, "pass").status == 0
    assert second.notes == ["ended 1 processes of an earlier run that was killed"]
    assert gone(SCRIPT)


def is_script(process: Path) -> bool:
    try:
        return SCRIPT.encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_output_that_nobody_reads_for_long_does_not_end_the_command(
    head: LocalTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends when no byte arrives; a pager may keep this side from going on."""
    monkeypatch.setattr(serving_job, "_BEAT", 0.02)
    beats: list[bytes] = []
    send = RunningCommand.send

    def counted(channel: RunningCommand, data: bytes) -> None:
        beats.append(data)
        send(channel, data)

    monkeypatch.setattr(RunningCommand, "send", counted)
    seen = Seen()

    def paused(_: bytes) -> None:
        before = beats.count(b".")
        until(lambda: beats.count(b".") > before + 2)

    output = JobOutput(paused, seen.add("stderr"), seen.notes.append)
    job = Job(["python3", "-c", "print(1)"])
    assert run_job(head, "lab", job, output, seen.cancelled).status == 0
