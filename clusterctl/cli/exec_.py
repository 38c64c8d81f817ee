"""`exec`: run one command on many hosts."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from clusterctl import deadlines
from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.errors import StepFailed, UsageError, raise_all

# A line for a shell, given as one word
_FOR_A_SHELL = re.compile(r"[\s|&;<>]")


@guarded
def exec_(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND", help="Command and its arguments; not run in a shell."),
    ],
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    sudo: Annotated[bool, typer.Option("--sudo", help="Run it as root.")] = False,
    node: Annotated[bool, typer.Option("--node", help="Run it inside the node container.")] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="Time limit on each host."),
    ] = deadlines.COMMAND,
    as_json: options.Json = False,
) -> None:
    """Run COMMAND on every host at once. Exit 6 when it failed on one of them."""
    from clusterctl.cli.session import session
    from clusterctl.commands.exec_ import run
    from clusterctl.transport.fanout import Done, failures, values

    if len(command) == 1 and _FOR_A_SHELL.search(command[0]):
        raise UsageError(
            f"no program is called {command[0]!r}: commands are not run in a shell",
            hint=f"clusterctl exec -- sh -c {shlex.quote(command[0])}",
        )
    with session("exec", inventory, limit=limit, quiet=True) as opened:
        outcomes = run(opened, command, sudo=sudo, node=node, timeout=timeout)
    if as_json:
        document: dict[str, object] = {}
        codes = []
        for host, outcome in outcomes.items():
            if isinstance(outcome, Done):
                document[host] = asdict(outcome.value)
                codes += [] if outcome.value.ok else [StepFailed.exit_code]
            else:
                document[host] = {"error": outcome.error.summary, "hint": outcome.error.hint}
                codes.append(outcome.error.exit_code)
        print(pretty(document))
        if codes:
            raise typer.Exit(min(codes))
        return
    results = values(outcomes)
    for host, result in results.items():
        for line in result.stdout.splitlines():
            print(f"{host}  {line}")
        for line in result.stderr.splitlines():
            print(f"{host}  {line}", file=sys.stderr)
    failed = [f"{host} ({result.status})" for host, result in results.items() if not result.ok]
    if failed:
        print(f"failed on {', '.join(failed)}", file=sys.stderr)
    raise_all(failures(outcomes))
    if failed:
        raise typer.Exit(StepFailed.exit_code)
