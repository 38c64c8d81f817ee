"""`bootstrap`, and `plan`, which shows its pending changes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.errors import ClusterctlError, UsageError

if TYPE_CHECKING:
    from clusterctl.engine.saved_plan import SavedPlan
    from clusterctl.steps.nvidia_driver import DriverSource


@guarded
def bootstrap(
    context: typer.Context,
    file: options.InventoryFile = None,
    inventory: options.Inventory = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    limit: options.Limit = None,
    as_json: options.Json = False,
    accept_new: options.AcceptNew = False,
    plan: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="Apply only the changes saved by `plan -o FILE`; refuse any others.",
        ),
    ] = None,
    install_driver: Annotated[
        str | None,
        typer.Option(
            "--install-driver",
            metavar="DRIVER",
            help="NVIDIA driver to install first: a .run file or a package name.",
        ),
    ] = None,
) -> None:
    """Turn the inventory's hosts into a Ray cluster. A second run changes nothing."""
    from clusterctl.accelerators.registry import accelerator_named
    from clusterctl.cli.session import agreement, session
    from clusterctl.commands import install_driver as driver
    from clusterctl.commands.bootstrap import run
    from clusterctl.engine import saved_plan
    from clusterctl.engine.plan import Plan
    from clusterctl.inventory.current import current
    from clusterctl.reporting.text import count
    from clusterctl.steps.nvidia_driver import driver_source
    from clusterctl.survey.status import ray_status

    path = current(options.named_inventory(context, file, inventory))
    source = driver_source(install_driver) if install_driver else None
    saved = saved_plan.read(plan) if plan else None
    if saved and source:
        raise UsageError(
            "--plan cannot include --install-driver", hint="install the driver first, then plan"
        )
    if dry_run:
        raise _show_plan(
            "bootstrap", path, limit, source, as_json=as_json, accept_new=accept_new, saved=saved
        )

    with session("bootstrap", path, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        progress = opened.progress
        if source:
            driver.run(opened, source, agree=agreement(progress, yes=yes, as_json=as_json))
        # Only after agreement: `down` must not default to a file whose hosts never answered.
        agreed = agreement(progress, yes=yes, as_json=as_json, agreed=lambda: _remember(path))

        def agree(found: Plan) -> None:
            if saved:
                saved_plan.require_same(saved, found, opened.inventory, path)
            agreed(found)

        done = run(opened, agree=agree)
    formed = done.formed
    if as_json:
        document = {
            "changed": done.changed,
            "nodes": formed.nodes,
            "gpus": formed.gpus,
            "ray_version": formed.ray_version,
            "vllm_version": formed.vllm_version,
            "fabric": done.fabric.lines,
        }
        print(pretty(document))
        return
    device = accelerator_named(opened.inventory.accelerator).device
    size = f"{count(formed.nodes, 'node')}, {count(round(formed.gpus), device)}"
    versions = f"Ray {formed.ray_version}, vLLM {formed.vllm_version}"
    print(f"the cluster is up: {size}, {versions}; {count(done.changed, 'change')} made")
    print(f"In Ray's own words: {ray_status(opened.inventory.head.name)}")


def _remember(path: Path) -> None:
    """Make `path` the current inventory. If it cannot be recorded, print a note and continue."""
    from clusterctl.inventory.current import remember

    try:
        remember(path)
    except UsageError as error:
        print(f"note: {error.summary}; {error.hint}", file=sys.stderr)


@guarded
def plan(
    context: typer.Context,
    file: options.InventoryFile = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
    accept_new: options.AcceptNew = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Also write the plan, for bootstrap --plan FILE."
        ),
    ] = None,
) -> None:
    """Show what bootstrap would change, per host. Changes nothing; exit 10 when it would.

    If requirements fail, shows the changes of the other hosts first, then the problems.
    """
    path = options.named_inventory(context, file, inventory)
    raise _show_plan("plan", path, limit, as_json=as_json, accept_new=accept_new, output=output)


def _show_plan(
    command: str,
    file: Path | None,
    limit: str | None,
    source: DriverSource | None = None,
    *,
    as_json: bool,
    accept_new: bool,
    output: Path | None = None,
    saved: SavedPlan | None = None,
) -> typer.Exit:
    """Show the pending changes and return the exit of a dry run. If the driver of `source` must be
    installed first, show only that change: all others depend on it. Raises RequirementsNotMet,
    after the changes, if they differ from `saved`."""
    from clusterctl.cli.session import session, show_plan
    from clusterctl.commands import install_driver as driver
    from clusterctl.commands.bootstrap import make_plan
    from clusterctl.engine.saved_plan import require_same, save
    from clusterctl.inventory.current import current
    from clusterctl.serving.vulnerabilities import vulnerability_notes

    path = current(file)
    errors: tuple[ClusterctlError, ...] = ()
    with session(command, path, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        found = driver.make_plan(opened, source) if source else None
        if not found or found.empty:
            found, errors = make_plan(opened)
    for note in vulnerability_notes({"vllm": opened.inventory.image}):
        print(f"note: {note}", file=sys.stderr)
    if output and errors:
        print(f"note: {output} was not written, since this is not the whole plan", file=sys.stderr)
    elif output:
        save(found, opened.inventory, path, output)
    if saved and not errors:
        try:
            require_same(saved, found, opened.inventory, path)
        except ClusterctlError as out_of_date:
            errors = (out_of_date,)
    return show_plan(found, as_json=as_json, errors=errors)
