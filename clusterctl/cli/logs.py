"""`logs`: what supervisors, Ray and services wrote, from all hosts in one stream."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded


@guarded
def logs(
    name: Annotated[
        str | None, typer.Argument(help="A service, `ray`, or nothing for the supervisors.")
    ] = None,
    inventory: options.Inventory = None,
    limit: Annotated[
        str | None, typer.Option("--host", "--limit", help="Only these hosts.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines per host.")] = 40,
) -> None:
    """Print logs, each line with its host's name."""
    from clusterctl.cli.session import session
    from clusterctl.reporting.journal_view import by_time, journal_line
    from clusterctl.workflows.logs import read

    with session("logs", inventory, limit=limit, quiet=True) as opened:
        found = read(
            opened.inventory, opened.hosts, opened.credentials, name, lines=lines, follow=follow
        )
        for host, line in by_time(found) if name is None and not follow else found:
            print(f"{host}  {line}" if name else journal_line(host, line), flush=follow)
