"""`down`: take the cluster down."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

NOTHING = "Nothing to take down: no container or file of the cluster exists."


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
    from clusterctl.cli.session import agreement, session, show_plan
    from clusterctl.commands.down import make_plan, run
    from clusterctl.reporting.text import count

    with session("down", inventory, limit=limit, quiet=as_json) as opened:
        if dry_run:  # takes no lock, so it works while another run holds it
            planned = make_plan(opened, purge=purge)
        else:
            agree = agreement(opened.progress, yes=yes, as_json=as_json)
            changed = run(opened, purge=purge, agree=agree)
    if dry_run:
        errors = tuple(planned.set_aside.values())
        raise show_plan(planned.plan, as_json=as_json, nothing=NOTHING, errors=errors)
    done = f"the cluster is down; {count(changed, 'change')} made"
    print(pretty({"changed": changed}) if as_json else done)
