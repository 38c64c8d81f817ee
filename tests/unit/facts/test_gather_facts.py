"""Asking a host: sudo and its refusals, timeouts, answers that are none. The fake host runs the
real script in a real shell."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from clusterctl.errors import (
    AuthenticationRejected,
    CommandFailed,
    CommandTimedOut,
    RequirementsNotMet,
    Unreachable,
)
from clusterctl.facts.gather import probe
from clusterctl.inventory.model import Host
from clusterctl.transport.base import CommandResult
from clusterctl.transport.local import LocalTransport
from tests.fakes.transport import Call, FakeTransport, starts


def run_here(call: Call) -> CommandResult:
    done = subprocess.run(call.argv, input=call.stdin, capture_output=True, timeout=120)
    text = done.stdout.decode(), done.stderr.decode()
    return CommandResult(call.argv, done.returncode, *text)


def test_one_round_trip_brings_it_all() -> None:
    host, asked = FakeTransport().on(starts("sh"), answer=run_here), time.time()
    found = probe(host, disks=("/data",), files=("/etc/hostname", "/nope"))
    assert len(host.calls) == 1
    assert host.calls[0].sudo
    assert found.facts.memory > 0
    assert abs(found.facts.clock_offset) <= time.time() - asked + 1
    assert {"/data", "/var/lib/docker"} <= {disk.path for disk in found.facts.disks}
    assert found.files["/nope"] is None


def test_over_a_real_transport() -> None:
    """Framing, the time limit on the host, decoding: all as over SSH."""
    here = LocalTransport(Host(name="here", address="localhost"))
    asked = time.time()
    found = probe(here, files=("/etc/passwd",), sudo=False)
    assert found.facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.files["/etc/passwd"] == Path("/etc/passwd").read_bytes()
    assert abs(found.facts.clock_offset) <= time.time() - asked + 1


def test_markers_differ_from_probe_to_probe() -> None:
    """So that no file on a host can forge a section."""
    host = FakeTransport().on(starts("sh"), answer=run_here)
    probe(host)
    probe(host)
    assert host.calls[0].argv[2] != host.calls[1].argv[2]


def test_chatter_before_the_answer_is_dropped() -> None:
    def noisy(call: Call) -> CommandResult:
        result = run_here(call)
        return CommandResult(result.argv, 0, "Welcome to gpu1!\nMARK x\n" + result.stdout, "")

    host = FakeTransport().on(starts("sh"), answer=noisy)
    assert probe(host).facts.unknown == ()


@pytest.mark.parametrize("refusal", ["raised", "said"])
def test_a_host_without_sudo_is_asked_again_as_the_user(refusal: str) -> None:
    def answer(call: Call) -> CommandResult:
        if not call.sudo:
            return run_here(call)
        if refusal == "raised":
            raise RequirementsNotMet("ops may not use sudo", host="gpu1")
        return CommandResult(call.argv, 127, "", "bash: sudo: command not found\n")

    host = FakeTransport().on(starts("sh"), answer=answer)
    facts = probe(host).facts
    assert [call.sudo for call in host.calls] == [True, False]
    expected = {"raised": "ops may not use sudo", "said": "bash: sudo: command not found"}
    assert facts.sudo_error == expected[refusal]


def test_a_wrong_password_is_not_passed_over() -> None:
    """Nor tried again: some hosts lock an account after a few."""
    wrong = AuthenticationRejected("sudo did not accept the password of ops", host="gpu1")
    host = FakeTransport().on(starts("sh"), raises=wrong)
    with pytest.raises(AuthenticationRejected):
        probe(host)
    assert len(host.calls) == 1


def test_without_sudo_the_host_is_asked_whether_it_would_work() -> None:
    host = FakeTransport().on(starts("sh"), answer=run_here)
    probe(host, sudo=False)
    assert host.calls[0].argv[-1] == "sudo=test"
    assert not host.calls[0].sudo


def test_a_command_that_hangs_in_the_kernel_is_left_out_the_second_time() -> None:
    def answer(call: Call) -> CommandResult:
        if "skip=gpus" in call.argv:
            return run_here(call)
        raise CommandTimedOut("sh ran longer than 30 s", host="gpu1")

    host = FakeTransport().on(starts("sh"), answer=answer)
    facts = probe(host, timeout=30).facts
    assert facts.gpus.error == "nvidia-smi does not answer (waited 30 s)"
    assert facts.memory > 0


def test_a_host_that_hangs_altogether_is_a_timeout() -> None:
    late = CommandTimedOut("sh ran longer than 30 s", host="gpu1")
    host = FakeTransport().on(starts("sh"), raises=late)
    with pytest.raises(CommandTimedOut):
        probe(host)
    assert len(host.calls) == 2


def test_a_host_that_is_down_is_not_asked_twice() -> None:
    host = FakeTransport().on(starts("sh"), raises=Unreachable("no route", host="gpu1"))
    with pytest.raises(Unreachable):
        probe(host)
    assert len(host.calls) == 1


def test_an_answer_without_sections_names_the_host_and_what_it_said() -> None:
    host = FakeTransport().on(
        starts("sh"), stdout="This account is currently not available.", status=1
    )
    with pytest.raises(CommandFailed) as caught:
        probe(host)
    assert str(caught.value) == "gpu1: the probe did not run: sh ended with 1"
    assert caught.value.detail == "This account is currently not available."


def test_an_answer_cut_short_is_no_answer() -> None:
    def cut(call: Call) -> CommandResult:
        result = run_here(call)
        return CommandResult(call.argv, -1, result.stdout[: len(result.stdout) // 2], "")

    host = FakeTransport().on(starts("sh"), answer=cut)
    with pytest.raises(CommandFailed, match="cut short"):
        probe(host)


@pytest.mark.parametrize("path", ["/a\nMARK end", "/a\0b"])
def test_control_characters_in_a_path_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="control character"):
        probe(FakeTransport(), files=(path,))
