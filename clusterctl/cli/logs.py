"""`logs`: output of supervisors, Ray and services, from all hosts in one stream."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.reporting.error_view import error_lines
from clusterctl.reporting.escaping import one_line

LONGEST = 64 * 1024  # Characters of a line that are printed

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
    """Print the logs of all hosts, each line prefixed with the host's name."""
    from clusterctl.cli.session import session
    from clusterctl.commands.logs import read

    reported: list[ClusterctlError] = []

    def report(error: ClusterctlError) -> None:
        if follow:
            reported.append(error)
            print("\n".join(error_lines(error)), file=sys.stderr, flush=True)

    try:
        with session("logs", inventory, limit=limit, quiet=True) as opened:
            found = read(opened, name, lines=lines, follow=follow, report=report)
            if name is None:
                for host, line in found if follow else by_time(found):
                    print(journal_line(host, line), flush=follow)
            else:
                for host, line in found:
                    print(f"{host}  {one_line(line, LONGEST)}", flush=follow)
    except KeyboardInterrupt:
        if not follow:
            raise
        return  # Ctrl-C is the usual end of --follow
    except ClusterctlError as error:
        if not reported or isinstance(error, UsageError):
            raise
        raise typer.Exit(error.exit_code) from None


def journal_line(host: str, line: str) -> str:
    """Format one journal entry of `host`; lines that are not entries are passed on unchanged."""
    entry = _entry(line)
    if entry is None:
        return f"{host}  {one_line(line, LONGEST)}"
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(_time(entry)))
    words = [str(entry.get(key, "")) for key in ("subject", "event", "text")]
    text = one_line(f"{words[0]}: {' '.join(filter(None, words[1:]))}", LONGEST)
    return f"{when}  {host}  {text}"


def by_time(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Sort journal entries of several hosts by time; lines that are not entries come first. Raises
    errors of hosts after the lines of all others."""
    arrived: list[tuple[str, str]] = []
    failed = None
    try:
        for pair in found:
            arrived.append(pair)  # noqa: PERF402 - `extend` would lose them all on an error
    except ClusterctlError as error:
        failed = error
    yield from sorted(arrived, key=lambda pair: _time(_entry(pair[1]) or {}))
    if failed:
        raise failed


def _time(entry: dict[str, Any]) -> float:
    """Return the time of the entry in Unix seconds; 0 if it is damaged."""
    try:
        seconds = float(entry.get("time", 0))
        time.localtime(seconds)
    except (TypeError, ValueError, OverflowError, OSError):
        return 0.0
    return seconds


def _entry(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
