"""`bootstrap`, and `plan`, which shows its pending changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import UsageError

if TYPE_CHECKING:
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
    install_driver: Annotated[
        str | None,
        typer.Option(
            "--install-driver",
            metavar="DRIVER",
            help="NVIDIA driver to install first: a .run file or a package name.",
        ),
    ] = None,
) -> None:
    """Make the hosts a Ray cluster, as the inventory says. A second run changes nothing."""
    from clusterctl.cli.session import agreement, session
    from clusterctl.commands import install_driver as driver
    from clusterctl.commands.bootstrap import run
    from clusterctl.inventory.current import current
    from clusterctl.reporting.text import count
    from clusterctl.steps.nvidia_driver import driver_source

    path = current(options.named_inventory(context, file, inventory))
    source = driver_source(install_driver) if install_driver else None
    if dry_run:
        raise _show_plan("bootstrap", path, limit, source, as_json=as_json, accept_new=accept_new)

    with session("bootstrap", path, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        of, sink = (opened.inventory, opened.hosts, opened.credentials), opened.progress
        if source:
            driver.run(*of, source, agree=agreement(sink, yes=yes, as_json=as_json), sink=sink)
        # Only after agreement: `down` must not default to a file whose hosts never answered.
        agree = agreement(sink, yes=yes, as_json=as_json, agreed=lambda: _remember(path))
        done = run(*of, agree=agree, sink=sink)
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
        print(json.dumps(document, indent=2))
        return
    size = f"{count(formed.nodes, 'node')}, {count(round(formed.gpus), 'GPU')}"
    versions = f"Ray {formed.ray_version}, vLLM {formed.vllm_version}"
    print(f"the cluster is up: {size}, {versions}; {count(done.changed, 'change')} made")


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
) -> None:
    """Show what bootstrap would change, per host. Changes nothing; exit 10 when it would."""
    path = options.named_inventory(context, file, inventory)
    raise _show_plan("plan", path, limit, as_json=as_json, accept_new=accept_new)


def _show_plan(
    command: str,
    file: Path | None,
    limit: str | None,
    source: DriverSource | None = None,
    *,
    as_json: bool,
    accept_new: bool,
) -> typer.Exit:
    """Show the pending changes and return the exit of a dry run. If the driver of `source` must be
    installed first, show only that change: all others depend on it."""
    from clusterctl.cli.session import session, show_plan
    from clusterctl.commands import install_driver as driver
    from clusterctl.commands.bootstrap import make_plan

    with session(command, file, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        of = (opened.inventory, opened.hosts, opened.credentials)
        found = driver.make_plan(*of, source) if source else None
        if not found or found.empty:
            found = make_plan(*of, sink=opened.progress)
    return show_plan(found, as_json=as_json)
