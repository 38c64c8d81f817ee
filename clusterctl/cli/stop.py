"""`stop`: stop one service; the cluster stays."""

from __future__ import annotations

from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty


@guarded
def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Service, as `status` shows it.")],
    inventory: options.Inventory = None,
    dry_run: options.DryRun = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accepted for consistency: stop never asks.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Stop one service: running requests get 60 s to finish. The cluster stays."""
    del yes
    from clusterctl.cli.session import session, show_plan
    from clusterctl.commands.stop import make_plan, run

    with session("stop", inventory, quiet=as_json) as opened:
        if dry_run:
            plan, errors = make_plan(opened, name)
            raise show_plan(plan, as_json=as_json, errors=errors)
        run(opened, name)
    print(pretty({"stopped": name}) if as_json else f"{name} is stopped")
