"""Context of a command that reaches hosts: the inventory, progress on stderr, a log file, and the
user's consent to a plan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import typer

from clusterctl.cli.guard import pretty
from clusterctl.cli.streams import ask_unseen, signals
from clusterctl.engine.interrupt import keep_terminal
from clusterctl.engine.plan import Plan
from clusterctl.errors import CHANGES_PENDING, ClusterctlError, Problems, UsageError, raise_all
from clusterctl.inventory.current import current
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.select import select
from clusterctl.operations.session import Session
from clusterctl.reporting.console import Progress, headline
from clusterctl.reporting.error_view import error_document
from clusterctl.reporting.plan_view import NOTHING, plan_document, plan_lines
from clusterctl.reporting.run_log import run_log
from clusterctl.reporting.text import below_itself, line_width
from clusterctl.transport.credentials import Credentials

_logs: list[Path] = []


def current_log() -> Path | None:
    """Return the log file of this process's run; None before it has one."""
    return _logs[-1] if _logs else None


@dataclass(frozen=True)
class TerminalSession(Session):
    """A session that shows its progress on stderr."""

    progress: Progress


def load_inventory(path: Path | None, *, accept_new: bool = False) -> Inventory:
    """Load the inventory given by `path`, the environment, or the last bootstrap."""
    inventory = load(current(path))
    if not accept_new:
        return inventory
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
) -> Iterator[TerminalSession]:
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
            yield TerminalSession(inventory, hosts, progress, credentials(progress))


def credentials(progress: Progress | None = None) -> Credentials:
    """Return the user's secrets: from the environment, or from prompts on the terminal if there is
    one."""
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


def require_consent(
    question: str, declined: str, *, yes: bool, progress: Progress, hint: str = "add --yes"
) -> None:
    """Ask as `confirm` does. Raises UsageError if the answer is no; `declined`: what would have
    happened."""
    if not confirm(f"{question}. Continue?", yes=yes, progress=progress):
        raise UsageError(f"not confirmed: {declined}", hint=hint)


def show_changes(
    changes: Sequence[str],
    document: Mapping[str, object],
    *,
    same: str = "",
    dry_run: bool,
    as_json: bool,
) -> None:
    """Print the changes of a plan, to stdout for a dry run and else to stderr, or `same` if there
    are none. Ends a dry run; with `as_json`, it prints only `document`."""
    if dry_run and as_json:
        print(pretty(document))
    elif not as_json:
        lines = ["To do:", *(f"  {line}" for line in changes)] if changes else [same]
        print("\n".join(lines), file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        raise typer.Exit(CHANGES_PENDING if changes else 0)


def agreement(
    progress: Progress, *, yes: bool, as_json: bool, agreed: Callable[[], object] = lambda: None
) -> Callable[[Plan], None]:
    """Return the function that a command calls with its plan; it raises if the user declines. Only
    changes that stop a running service need consent, and with `as_json` the user cannot be
    prompted. `agreed` is called once consent is given or not needed."""

    def agree(plan: Plan) -> None:
        if not plan.empty and not as_json:
            print("\n".join(plan_lines(plan, width=line_width(sys.stderr))), file=sys.stderr)
        question = "Changes marked ! stop running services. Continue?"
        if plan.disruptive and not (
            yes if as_json else confirm(question, yes=yes, progress=progress)
        ):
            raise UsageError(
                "not confirmed: some changes stop running services",
                hint="add --yes to continue, or --dry-run to only show the changes",
            )
        agreed()

    return agree


def show_plan(
    plan: Plan,
    *,
    as_json: bool,
    nothing: str = NOTHING,
    errors: Collection[ClusterctlError] = (),
) -> typer.Exit:
    """Print the plan; return the exit of a dry run.

    `nothing` is printed for an empty plan. Raises the `errors` of hosts without a plan after
    printing the plan of the others; with JSON they are part of the document, as after a failed run.
    """
    if as_json:
        error = {"error": error_document(Problems(errors), current_log())} if errors else {}
        print(pretty({**plan_document(plan), **error}))
        if errors:
            return typer.Exit(min(each.exit_code for each in errors))
    elif plan.changes or not errors:
        print("\n".join(plan_lines(plan, nothing, width=line_width(sys.stdout))))
    raise_all(errors)
    return typer.Exit(0 if plan.empty else CHANGES_PENDING)
