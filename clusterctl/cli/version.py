"""`version`: clusterctl's own version, or the version record of the cluster."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from clusterctl import __version__
from clusterctl.cli import options
from clusterctl.cli.commit import commit
from clusterctl.cli.guard import guarded, pretty


def version_line() -> str:
    """Return the program's version, with its commit if that is known."""
    made_from = commit()
    return f"clusterctl {__version__}" + (f" ({made_from})" if made_from else "")


@guarded
def version(
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Show the versions on every host, and what changed.")
    ] = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Show the version of clusterctl, or of everything on the hosts."""
    if not cluster:
        document = {"clusterctl": __version__, "commit": commit()}
        print(json.dumps(document) if as_json else version_line())
        return
    from clusterctl.cli.session import session
    from clusterctl.commands.version import run
    from clusterctl.errors import ConnectionFailed
    from clusterctl.reporting.text import line_width
    from clusterctl.reporting.version_view import version_lines

    with session("version", inventory, quiet=True) as opened:
        record = run(opened).to_json()
    if as_json:
        print(pretty(record))
    else:
        print("\n".join(version_lines(record, width=line_width(sys.stdout))))
    if record["silent"]:
        raise typer.Exit(ConnectionFailed.exit_code)
