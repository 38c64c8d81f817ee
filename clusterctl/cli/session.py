"""Context of a command that reaches hosts: the inventory, progress on stderr, a log file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from clusterctl.cli.streams import ask_unseen, signals
from clusterctl.engine.interrupt import keep_terminal
from clusterctl.inventory.current import current
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.select import select
from clusterctl.reporting.console import Progress, headline
from clusterctl.reporting.run_log import run_log
from clusterctl.reporting.text import below_itself, line_width
from clusterctl.transport.credentials import Credentials

_logs: list[Path] = []


def current_log() -> Path | None:
    """Return the log file of this process's run; None before it has one."""
    return _logs[-1] if _logs else None


@dataclass(frozen=True)
class Session:
    inventory: Inventory
    hosts: tuple[Host, ...]  # The hosts selected by --limit; without it, all
    progress: Progress
    credentials: Credentials


def load_inventory(path: Path | None, *, accept_new: bool = False) -> Inventory:
    """Load the inventory given by `path`, the environment, or the last bootstrap."""
    inventory = load(current(path))
    return _accepting(inventory) if accept_new else inventory


def _accepting(inventory: Inventory) -> Inventory:
    hosts = tuple(
        host.model_copy(update={"ssh": host.ssh.model_copy(update={"accept_new": True})})
        for host in inventory.hosts
    )
    return inventory.model_copy(update={"hosts": hosts})


@contextmanager
def logged(cluster: str, command: str) -> Iterator[Path | None]:
    """Open a log file for this run, which errors mention; yield None if it cannot be written."""
    with run_log(cluster, command) as log:
        if log:
            _logs.append(log)
        yield log


@contextmanager
def session(
    command: str,
    path: Path | None,
    *,
    limit: str | None = None,
    quiet: bool = False,
    accept_new: bool = False,
) -> Iterator[Session]:
    """Open a session for `command`; `quiet` shows no progress (for --json and short output)."""
    inventory = load_inventory(path, accept_new=accept_new)
    hosts = select(inventory, limit) if limit else inventory.hosts
    with logged(inventory.cluster, command) as log:
        if not quiet:
            line = headline(inventory.cluster, len(hosts), log)
            print("\n".join(below_itself("", line, line_width(sys.stderr))), file=sys.stderr)
        elif log is None:
            print("note: no log file is written: its directory is not writable", file=sys.stderr)
        with Progress(sys.stderr, quiet=quiet) as progress:
            yield Session(inventory, hosts, progress, credentials(progress))


def credentials(progress: Progress | None = None) -> Credentials:
    """Return secrets from the environment; others are asked for if there is a terminal."""
    if not sys.stdin.isatty():
        return Credentials()

    signals()  # must run in the main thread; questions are asked in others

    def ask(question: str) -> str | None:
        keep_terminal()
        with progress.paused() if progress else nullcontext():
            return ask_unseen(question)

    return Credentials(ask=ask)


def confirm(question: str, *, yes: bool, progress: Progress) -> bool:
    """Ask on the terminal; without one, return `yes`. The end of input means no."""
    if yes or not sys.stdin.isatty():
        return yes
    with progress.paused():
        # `input` would write the question to stdout, which is for the command's result.
        print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            print(file=sys.stderr)
        return answer.strip().lower() in {"y", "yes"}
