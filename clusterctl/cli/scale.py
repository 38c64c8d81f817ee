"""`scale`: more or fewer replicas of a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

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
    from clusterctl.cli.session import session, show_changes
    from clusterctl.commands.scale import run
    from clusterctl.reporting.text import count

    with session("scale", inventory, quiet=as_json) as opened:

        def agree(plan: ScalePlan) -> None:
            document = {"service": name, "changes": plan.lines}
            same = f"Nothing to change: {name} has {count(replicas, 'replica')}."
            show_changes(plan.lines, document, same=same, dry_run=dry_run, as_json=as_json)

        plan = run(opened, name, replicas, agree=agree)
    hosts = {each.name: each.host for each in (*plan.moves.staying, *plan.moves.new)}
    if as_json:
        document = {"service": name, "changes": plan.lines, "replicas": hosts}
        print(pretty(document))
        return
    where = ", ".join(f"{each} on {host}" for each, host in hosts.items())
    print(f"{name} has {count(replicas, 'replica')}: {where}")
