"""`drain` and `undrain`: move a host's replicas away, and allow them again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.commands.drain import DrainPlan

_Host = Annotated[
    str,
    typer.Argument(metavar="HOST", autocompletion=options.complete_hosts, help="A host's name."),
]


@guarded
def drain(
    host: _Host,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Move a host's replicas away while the others serve."""
    from clusterctl.cli.session import require_consent, session, show_changes
    from clusterctl.commands.drain import drain as run

    with session("drain", inventory, quiet=as_json) as opened:

        def agree(plan: DrainPlan) -> None:
            document = {"host": host, "changes": plan.lines}
            same = f"Nothing to change: {host} is drained."
            show_changes(plan.lines, document, same=same, dry_run=dry_run, as_json=as_json)
            ended = ", ".join(each.service for each in plan.moves if each.ends)
            if ended:
                question = f"This stops the last replica of {ended}"
                declined = f"{host} has the last replica of {ended}"
                require_consent(question, declined, yes=yes, progress=opened.progress)

        changed = run(opened, host, agree=agree)
    if as_json:
        print(pretty({"host": host, "drained": True, "changed": changed}))
        return
    print(f"{host} is drained" if changed else f"{host} was already drained: nothing to change")
    print(f"  it keeps its place in Ray; to use it again: clusterctl undrain {host}")


@guarded
def undrain(
    host: _Host,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Allow replicas on HOST again."""
    from clusterctl.cli.session import session
    from clusterctl.commands.drain import undrain as run

    with session("undrain", inventory, quiet=as_json) as opened:
        changed = run(opened, host)
    if as_json:
        print(pretty({"host": host, "drained": False, "changed": changed}))
        return
    was = "can have replicas again" if changed else "was not drained: nothing to change"
    print(f"{host} {was}")
    if changed:
        print("  to start some on it: clusterctl serve MODEL --replicas N")
