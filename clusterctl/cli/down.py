"""`down`: take the cluster down."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded


@guarded
def down(
    inventory: options.Inventory = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also remove what bootstrap installed: engine, image, caches, logs."
        ),
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    limit: options.Limit = None,
    as_json: options.Json = False,
) -> None:
    """Stop all services and Ray, remove containers and files: hosts are left as found."""
    from clusterctl.cli.agreement import agreement
    from clusterctl.cli.session import session
    from clusterctl.reporting.text import count
    from clusterctl.workflows.down import run

    with session("down", inventory, limit=limit, quiet=as_json) as opened:
        agree = agreement(opened.progress, yes=yes, dry_run=dry_run, as_json=as_json)
        taken = run(
            opened.inventory,
            opened.hosts,
            opened.credentials,
            purge=purge,
            agree=agree,
            sink=opened.progress,
        )
    done = f"the cluster is down; {count(taken.changed, 'change')} made"
    print(json.dumps({"changed": taken.changed}) if as_json else done)
