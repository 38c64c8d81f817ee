"""`logs`: output of supervisors, Ray and services, from all hosts in one stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.reporting.error_view import error_lines

_Limit = Annotated[
    str | None,
    typer.Option(
        "--limit",
        "--host",
        metavar="HOSTS",
        help=options.LIMIT,
        autocompletion=options.complete_hosts,
    ),
]


@guarded
def logs(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="A service, or `ray`; default: the supervisors."),
    ] = None,
    inventory: options.Inventory = None,
    limit: _Limit = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing new lines until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", min=0, help="Lines per host.")
    ] = 40,
) -> None:
    """Print logs of all hosts, each line with its host's name."""
    from clusterctl.cli.session import session
    from clusterctl.commands.logs import read

    told: list[ClusterctlError] = []

    def tell(error: ClusterctlError) -> None:
        if follow:
            told.append(error)
            print("\n".join(error_lines(error)), file=sys.stderr, flush=True)

    try:
        with session("logs", inventory, limit=limit, quiet=True) as opened:
            found = read(
                opened.inventory,
                opened.hosts,
                opened.credentials,
                name,
                lines=lines,
                follow=follow,
                tell=tell,
            )
            _print(found, journal=name is None, follow=follow)
    except KeyboardInterrupt:
        if not follow:
            raise
        return  # Ctrl-C is the usual end of --follow
    except ClusterctlError as error:
        if not told or isinstance(error, UsageError):
            raise
        raise typer.Exit(error.exit_code) from None


def _print(found: Iterator[tuple[str, str]], *, journal: bool, follow: bool) -> None:
    from clusterctl.reporting.journal_view import journal_line

    for host, line in _by_time(found) if journal and not follow else found:
        print(journal_line(host, line) if journal else f"{host}  {line}", flush=follow)


def _by_time(found: Iterator[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Sort lines by time. Raises errors of hosts after the lines of the others."""
    from clusterctl.reporting.journal_view import by_time

    arrived: list[tuple[str, str]] = []
    failed = None
    try:
        for pair in found:
            arrived.append(pair)  # noqa: PERF402 - `extend` would lose them all on an error
    except ClusterctlError as error:
        failed = error
    yield from by_time(arrived)
    if failed:
        raise failed
