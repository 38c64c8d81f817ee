"""`remove`: take a worker out of a running cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.commands.remove import Removal


@guarded
def remove(
    host: Annotated[
        str,
        typer.Argument(metavar="HOST", autocompletion=options.complete_hosts, help="A worker."),
    ],
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove what bootstrap installed on it.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Remove a worker, even a dead one, from a running cluster."""
    from clusterctl.cli.session import require_consent, session
    from clusterctl.commands.remove import run
    from clusterctl.errors import CHANGES_PENDING
    from clusterctl.reporting.plan_view import plan_document, plan_lines
    from clusterctl.reporting.text import line_width

    with session("remove", inventory, quiet=as_json) as opened:

        def agree(removal: Removal) -> None:
            moves = removal.lines
            if not as_json and removal.shown:
                plan = plan_lines(removal.plan, width=line_width(sys.stderr))
                print(
                    "\n".join(["To do:", *(f"  {line}" for line in moves), *plan]), file=sys.stderr
                )
            if dry_run:
                if as_json:
                    print(pretty({"moves": moves, **plan_document(removal.plan)}))
                raise typer.Exit(CHANGES_PENDING if removal.shown else 0)
            ended = ", ".join(each.service for each in removal.moves if each.ends)
            if ended:
                question = f"This stops the last replica of {ended}"
                declined = f"removing {host} stops the last replica of {ended}"
                require_consent(question, declined, yes=yes, progress=opened.progress)

        changed, line = run(opened, host, purge=purge, agree=agree)
        source = opened.inventory.source
    if as_json:
        document = {"host": host, "changed": changed, "file": str(source), "line": line}
        print(pretty(document))
        return
    print(f"{host} is removed" if changed else f"{host} was already removed: nothing to change")
    print(f"  now delete hosts.{host}, {source}:{line}: until then `serve` and `apply` miss it,")
    print("  and `bootstrap` adds it again")
