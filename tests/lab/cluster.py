"""clusterctl as a user runs it: a process, its output, its exit status."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from tests.outputs import require_valid


@dataclass(frozen=True)
class Ran:
    """What one run of clusterctl did."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    words: tuple[str, ...] = ()

    @property
    def json(self) -> Any:
        """The document that it printed, which has to be what docs/json.md says."""
        document = json.loads(self.stdout)
        if "--json" in self.words:
            require_valid(self.words, document)
        return document

    @property
    def text(self) -> str:
        """Everything a user saw; for messages of failing tests too."""
        return f"exit {self.status} after {self.seconds:.1f} s\n{self.stdout}\n{self.stderr}"


@dataclass(frozen=True)
class Operator:
    """Someone at a machine of their own: a state directory, and an environment."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.home), "NO_COLOR": "1"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start clusterctl and leave it running."""
        return subprocess.Popen(
            [sys.executable, "-m", "clusterctl", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )

    def run(self, *words: str, timeout: float = 600) -> Ran:
        """Run clusterctl to its end."""
        started = time.monotonic()
        process = self.start(*words)
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            stderr += f"\n(killed by the test after {timeout} s)"
        return Ran(process.returncode, stdout, stderr, time.monotonic() - started, words)

    def within(self, limit: float, *words: str) -> Ran:
        """Run clusterctl, which is to take less than `limit` seconds: once in three times, as the
        machine may be busy with what came before."""
        for _ in range(3):
            ran = self.run(*words)
            if ran.seconds < limit:
                return ran
        raise AssertionError(f"three times not within {limit:g} s: {ran.text}")

    def cut_short(self, *words: str, stage: str, fault: signal.Signals) -> Ran:
        """Start clusterctl, and send it `fault` once it is at work in `stage`, which it must
        reach. `stderr` is what came from there on."""
        started = time.monotonic()
        process = self.start(*words)
        assert process.stderr is not None
        before = list(takewhile(lambda line: not line.startswith(stage), process.stderr))
        first = process.stderr.readline()
        assert first.startswith("  "), f"{stage} was not reached:\n{''.join(before)}{first}"
        process.send_signal(fault)
        stdout, stderr = process.communicate(timeout=600)
        return Ran(process.returncode, stdout, first + stderr, time.monotonic() - started)

    def ok(self, *words: str, timeout: float = 600) -> Ran:
        """Run clusterctl, which must end well."""
        ran = self.run(*words, timeout=timeout)
        assert ran.status == 0, ran.text
        return ran


def until(
    condition: Callable[[], object], *, within: float, what: str, pause: float = 0.5
) -> float:
    """Wait for a condition; the seconds it took. Fails, saying what did not come about."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < within, f"not within {within:g} s: {what}"
        time.sleep(pause)
    return time.monotonic() - started


def prefix_cache_tokens(server: str) -> dict[str, float]:
    """The tokens that vLLM at HOST:PORT was asked for (`queries`) and found in its prefix cache
    (`hits`), as it counts them."""
    with urlopen(f"http://{server}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    pattern = r"^vllm:prefix_cache_(queries|hits)_total\{.*\} (\S+)$"
    return {name: float(value) for name, value in re.findall(pattern, text, re.MULTILINE)}


def quiet(_: str) -> None:
    """Progress nobody watches."""
