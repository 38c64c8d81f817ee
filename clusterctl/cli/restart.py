"""`restart`: restart one service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.operations.restarting import RestartPlan


@guarded
def restart(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Service or replica, as `status` shows it.")
    ],
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Restart a service with the same settings, one replica at a time."""
    from clusterctl.cli.session import require_consent, session, show_changes
    from clusterctl.operations.restarting import run

    with session("restart", inventory, quiet=as_json) as opened:

        def agree(plan: RestartPlan) -> None:
            document = {"service": name, "changes": plan.lines}
            show_changes(plan.lines, document, dry_run=dry_run, as_json=as_json)
            if plan.interrupts:
                declined = f"{name} would be unavailable"
                question = f"This interrupts {name}"
                require_consent(question, declined, yes=yes, progress=opened.progress)

        proofs = run(opened, name, agree=agree)
    ready = {replica: round(proof.ready_seconds, 1) for replica, proof in proofs.items()}
    if as_json:
        print(pretty({"service": name, "ready_seconds": ready}))
        return
    for replica, seconds in ready.items():
        print(f"{replica} answers again, {seconds:.0f} s after vLLM started")
