"""Breaking lab hosts and mending them, and what `check` must then say."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.network import NAMESPACES
from tests.lab.cluster import Operator, Ran
from tests.lab.conftest import OnHost

WITHIN = 30.0
"""Seconds in which a fault must be named."""


@dataclass(frozen=True)
class Bench:
    """The lab with what is needed to break it; everything is undone when the test ends."""

    inventory: Path
    operator: Operator
    on_host: OnHost
    undo: ExitStack
    scratch: Path

    def break_host(self, name: str, command: str, mend: str) -> None:
        """Run `command` on a host, `mend` at the end of the test."""
        self.undo.callback(self._ok, name, mend)
        self._ok(name, command)

    def _ok(self, name: str, command: str) -> None:
        done = self.on_host(name, command)
        assert done.returncode == 0, f"{name}: {command}: {done.stderr}"

    def break_network(self, name: str, command: Sequence[str], mend: Sequence[str]) -> None:
        """The same from this machine, in the host's network namespace: bare hosts have no
        iptables."""
        inside = ["nsenter", f"--net={NAMESPACES / host_by_name(name).namespace}", "--"]
        self.break_machine([*inside, *command], [*inside, *mend])

    def break_machine(self, command: Sequence[str], mend: Sequence[str]) -> None:
        """The same on this machine: the other end of a cable."""
        self.undo.callback(run, mend)
        run(command)

    def written(self, change: Callable[[dict[str, dict[str, object]]], None]) -> str:
        """The lab's inventory with its hosts changed."""
        document = yaml.safe_load(self.inventory.read_text())
        change(document["hosts"])
        file = self.scratch / "inventory.yaml"
        file.write_text(yaml.safe_dump(document))
        return str(file)

    def check(self, inventory: str | None = None) -> Ran:
        """What `check` says, in time."""
        return self.operator.within(WITHIN, "check", inventory or str(self.inventory))

    def told(self, host: str, *words: str, inventory: str | None = None) -> str:
        """The problem of `host` that has all of `words`, with its fix."""
        ran = self.check(inventory)
        assert ran.status == 5, ran.text
        assert "Traceback" not in ran.stderr
        problems = [text for text in ran.stderr.split("error: ") if text.startswith(f"{host}: ")]
        found = [text for text in problems if all(word in text for word in words)]
        assert found, f"{words} not said of {host}:\n{ran.text}"
        assert "fix: " in ran.stderr
        return found[0]


def run(argv: Sequence[str]) -> str:
    """Of this machine."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
    return done.stdout


@contextmanager
def bench(inventory: Path, on_host: OnHost, scratch: Path) -> Iterator[Bench]:
    with ExitStack() as undo:
        yield Bench(inventory, Operator(scratch / "state"), on_host, undo, scratch)
