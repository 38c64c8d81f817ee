"""The pull that a relay serves: its script on this machine, and what is made of its failures."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from clusterctl.errors import ClusterctlError, StepFailed
from clusterctl.transfer.chain_link import LinkProgress
from clusterctl.transfer.image_receiver import PULL, TRIES, is_relay_name, pull
from tests.fakes.chain import RELAY
from tests.fakes.container_engine import FakeDriver, FakeEngine, image

NAME = f"{RELAY}/image:1"


def start(directory: Path, docker: str) -> subprocess.Popen[bytes]:
    """The script with this for a `docker`."""
    program = directory / "docker"
    program.write_text(f"#!/bin/sh\n{docker}\n")
    program.chmod(0o755)
    return subprocess.Popen(
        ["sh", "-c", PULL, "pull", "docker", "pull", "--quiet", NAME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PATH": f"{directory}:{os.environ['PATH']}"},
    )


def test_the_engines_words_and_status_come_through(tmp_path: Path) -> None:
    with start(tmp_path, 'echo "$@"; echo why >&2; exit 7') as process:
        assert process.wait(10) == 7
        assert process.stdout
        assert process.stderr
        assert process.stdout.read() == f"pull --quiet {NAME}\n".encode()
        assert process.stderr.read() == b"why\n"


def test_a_pull_ends_with_the_connection(tmp_path: Path) -> None:
    with start(tmp_path, "echo begun; exec sleep 60") as process:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == b"begun\n"
        process.stdin.close()
        assert process.wait(10) != 0


class Line:
    """A chain with nothing behind its relay, which brings a byte each time it is asked."""

    def __init__(self, *, bytes_a_time: int = 0, broken: ClusterctlError | None = None) -> None:
        self._step, self._broken = bytes_a_time, broken
        self.asked = 0
        self.received = 0

    def pull_reference(self, host: str) -> str:
        self.asked += 1
        return NAME

    def problem(self, host: str) -> ClusterctlError | None:
        return self._broken

    def progress(self) -> Mapping[str, LinkProgress]:
        self.received += self._step
        return {"gpu1": LinkProgress("gpu1", 0, 0, self.received, 0.0)}


def driver(engine: FakeEngine) -> FakeDriver:
    return FakeDriver("gpu1", engine, lambda: None)


def at_once(_: float) -> None:
    return None


def test_a_pull_that_fails_without_a_byte_is_given_up() -> None:
    line, said = Line(), list[str]()
    with pytest.raises(StepFailed, match="could not pull from the relay") as raised:
        pull(driver(FakeEngine()), line, said.append, pause=at_once)
    assert line.asked == TRIES
    assert len(said) == TRIES - 1
    assert "run the same command again" in str(raised.value.hint)


def test_a_pull_that_got_further_goes_on() -> None:
    line, engine = Line(bytes_a_time=1), FakeEngine()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3 * TRIES:
            engine.registry[NAME] = image("arrived", NAME)

    assert pull(driver(engine), line, say, pause=at_once) == NAME


def test_what_the_chain_knows_is_the_cause() -> None:
    broken = StepFailed("the archive was changed meanwhile", host="gpu1")
    with pytest.raises(StepFailed, match="changed meanwhile"):
        pull(driver(FakeEngine()), Line(broken=broken), lambda _: None)


def test_only_names_of_relays_are_taken_for_such() -> None:
    assert is_relay_name(NAME)
    for other in ("127.0.0.1:5000/vllm/vllm-openai:1", "vllm:1", f"x/{NAME}"):
        assert not is_relay_name(other)
