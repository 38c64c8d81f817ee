"""`apply`: all services of a fleet file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty

if TYPE_CHECKING:
    from clusterctl.operations.serving import Changes


@guarded
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Fleet file: all services.")],
    prune: Annotated[
        bool, typer.Option("--prune", help="Stop services that are not in the file.")
    ] = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Make the services match FILE. A second run changes nothing."""
    from clusterctl.cli.session import require_consent, session, show_changes
    from clusterctl.commands.apply import run
    from clusterctl.reporting.text import each_below_itself, line_width
    from clusterctl.serving.fleet_file import read_fleet

    requests = read_fleet(file)  # Edited while this runs, it is applied as it was read
    with session("apply", inventory, quiet=as_json) as opened:

        def agree(changes: Changes) -> None:
            if changes.notes and not as_json:
                notes = each_below_itself("note: ", changes.notes, line_width(sys.stderr))
                print("\n".join(notes), file=sys.stderr)
            document = {"changes": list(changes.lines), "notes": list(changes.notes)}
            same = "0 changes: all services already match."
            show_changes(changes.lines, document, same=same, dry_run=dry_run, as_json=as_json)
            if changes.restarts:
                question = "This stops running services, or restarts a service's only replica"
                declined = "services would stop or restart"
                hint = "add --yes, or --dry-run to only show the changes"
                require_consent(question, declined, yes=yes, progress=opened.progress, hint=hint)

        applied = run(opened, requests, file.absolute().parent, prune=prune, agree=agree)
    decision = applied.decision
    services = [
        {
            "service": name,
            "endpoint": f"{one.plan.endpoint.url}/v1",
            "replicas": {each.name: each.host for each in one.plan.replicas},
            "changed": decision.changed(name),
        }
        for name, one in decision.services.items()
    ]
    if as_json:
        document = {
            "changes": list(decision.changes.lines),
            "services": services,
            "stopped": list(decision.pruned),
            "notes": list(decision.changes.notes),
        }
        print(pretty(document))
        return
    for name, one in decision.services.items():
        state = "changed" if decision.changed(name) else "unchanged"
        hosts = ", ".join(each.host for each in one.plan.replicas)
        print(f"{name}  {one.plan.endpoint.url}/v1  on {hosts}  {state}")
    for name in decision.pruned:
        print(f"{name} is stopped")
