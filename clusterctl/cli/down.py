"""`down`: take the cluster down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

NOTHING = "Nothing to take down: no container or file of the cluster is there."


@guarded
def down(
    inventory: options.Inventory = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also remove what bootstrap installed: engine, images, caches, logs."
        ),
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """Stop services and Ray, remove containers and node files. The rest needs --purge."""
    from clusterctl.cli.agreement import agreement
    from clusterctl.cli.session import session
    from clusterctl.commands.down import run
    from clusterctl.reporting.text import count

    if dry_run:
        _plan(inventory, purge=purge, limit=limit, as_json=as_json)
    with session("down", inventory, limit=limit, quiet=as_json) as opened:
        taken = run(
            opened.inventory,
            opened.hosts,
            opened.credentials,
            purge=purge,
            agree=agreement(opened.progress, yes=yes, as_json=as_json),
            sink=opened.progress,
        )
    done = f"the cluster is down; {count(taken.changed, 'change')} made"
    print(json.dumps({"changed": taken.changed}, indent=2) if as_json else done)


def _plan(inventory: Path | None, *, purge: bool, limit: str | None, as_json: bool) -> NoReturn:
    """Show the plan of `down`. Takes no lock, so it works while another run holds it."""
    from clusterctl.cli.agreement import show_plan
    from clusterctl.cli.session import session
    from clusterctl.commands.down import make_plan

    with session("down", inventory, limit=limit, quiet=as_json) as opened:
        planned = make_plan(opened.inventory, opened.hosts, opened.credentials, purge=purge)
    errors = tuple(planned.set_aside.values())
    raise show_plan(planned.plan, as_json=as_json, nothing=NOTHING, errors=errors)
