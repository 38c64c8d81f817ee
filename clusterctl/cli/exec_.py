"""`exec`: one command on many hosts."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded


@guarded
def exec_(
    command: Annotated[list[str], typer.Argument(help="Command and its arguments; no shell.")],
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    sudo: Annotated[bool, typer.Option("--sudo", help="As root.")] = False,
    node: Annotated[bool, typer.Option("--node", help="Inside the node container.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds.")] = 60.0,
    as_json: options.Json = False,
) -> None:
    """Run COMMAND on every host at once. Exit 6 when it failed on one of them."""
    from clusterctl.cli.session import session
    from clusterctl.errors import StepFailed
    from clusterctl.workflows.exec_ import run

    with session("exec", inventory, limit=limit, quiet=True) as opened:
        results = run(
            opened.inventory,
            opened.hosts,
            opened.credentials,
            command,
            sudo=sudo,
            node=node,
            timeout=timeout,
        )
    if as_json:
        print(json.dumps({host: asdict(result) for host, result in results.items()}, indent=2))
    else:
        for host, result in results.items():
            for line in result.stdout.splitlines():
                print(f"{host}  {line}")
            for line in result.stderr.splitlines():
                print(f"{host}  {line}", file=sys.stderr)
    failed = {host: result.status for host, result in results.items() if not result.ok}
    if failed:
        if not as_json:
            words = ", ".join(f"{host} ({status})" for host, status in failed.items())
            print(f"failed on {words}", file=sys.stderr)
        raise typer.Exit(StepFailed.exit_code)
