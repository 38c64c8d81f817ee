"""`scale`: more or fewer replicas of a service."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from clusterctl.commands.scale import ScalePlan


@guarded
def scale(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Service, as `status` shows it.")],
    replicas: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of replicas.")],
    dry_run: options.DryRun = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Start or stop replicas of a service. The others keep their flags and keep serving."""
    from clusterctl.cli.session import session
    from clusterctl.commands.scale import run
    from clusterctl.errors import CHANGES_PENDING
    from clusterctl.reporting.text import count

    with session("scale", inventory, quiet=as_json) as opened:

        def agree(plan: ScalePlan) -> None:
            if dry_run and as_json:
                print(json.dumps({"service": name, "changes": plan.lines}, indent=2))
            elif not as_json:
                lines = ["To do:", *(f"  {line}" for line in plan.lines)]
                same = [f"Nothing to change: {name} has {count(replicas, 'replica')}."]
                out = sys.stdout if dry_run else sys.stderr
                print("\n".join(lines if plan.lines else same), file=out)
            if dry_run:
                raise typer.Exit(CHANGES_PENDING if plan.lines else 0)

        plan = run(
            opened.inventory,
            name,
            replicas,
            opened.credentials,
            agree=agree,
            sink=opened.progress,
        )
    hosts = {each.name: each.host for each in (*plan.moves.staying, *plan.moves.new)}
    if as_json:
        document = {"service": name, "changes": plan.lines, "replicas": hosts}
        print(json.dumps(document, indent=2))
        return
    where = ", ".join(f"{each} on {host}" for each, host in hosts.items())
    print(f"{name} has {count(replicas, 'replica')}: {where}")
