"""`bootstrap`, and its two read-only parts: `check` (the hosts) and `plan` (pending changes)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.commands.bootstrap import Bootstrapped

AcceptNew = Annotated[
    bool,
    typer.Option(
        "--accept-new", help="Accept and save unknown host keys; a changed key still fails."
    ),
]


@guarded
def bootstrap(
    context: typer.Context,
    file: options.InventoryFile = None,
    inventory: options.Inventory = None,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    limit: options.Limit = None,
    as_json: options.Json = False,
    accept_new: AcceptNew = False,
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
    from clusterctl.inventory.current import current

    path = current(options.named_inventory(context, file, inventory))
    if install_driver:
        _driver(install_driver, path, _DriverFlags(limit, dry_run, yes, as_json, accept_new))
    if dry_run:
        _plan("bootstrap", path, limit=limit, as_json=as_json, accept_new=accept_new)
    from clusterctl.cli.agreement import agreement
    from clusterctl.cli.session import session
    from clusterctl.commands.bootstrap import run

    with session("bootstrap", path, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        # Only after agreement: `down` must not default to a file whose hosts never answered.
        agree = agreement(opened.progress, yes=yes, as_json=as_json, agreed=lambda: _remember(path))
        done = run(
            opened.inventory, opened.hosts, opened.credentials, agree=agree, sink=opened.progress
        )
    print(json.dumps(_document(done), indent=2) if as_json else _sentence(done))


def _remember(path: Path) -> None:
    """Make `path` the current inventory. If it cannot be recorded, print a note and continue."""
    from clusterctl.inventory.current import remember

    try:
        remember(path)
    except UsageError as error:
        print(f"note: {error.summary}; {error.hint}", file=sys.stderr)


@dataclass(frozen=True)
class _DriverFlags:
    """The flags that a driver's installation shares with the rest of bootstrap."""

    limit: str | None
    dry_run: bool
    yes: bool
    as_json: bool
    accept_new: bool


def _driver(wanted: str, file: Path, flags: _DriverFlags) -> None:
    """Install the driver first. A dry run that would install it prints that plan and exits."""
    from clusterctl.cli.agreement import agreement, show_plan
    from clusterctl.cli.session import session
    from clusterctl.commands.install_driver import make_plan, run
    from clusterctl.steps.nvidia_driver import driver_source

    source, as_json = driver_source(wanted), flags.as_json
    with session(
        "bootstrap", file, limit=flags.limit, quiet=as_json, accept_new=flags.accept_new
    ) as opened:
        of = (opened.inventory, opened.hosts, opened.credentials, source)
        if not flags.dry_run:
            agree = agreement(opened.progress, yes=flags.yes, as_json=as_json)
            run(*of, agree=agree, sink=opened.progress)
            return
        found = make_plan(*of)
    if not found.empty:
        raise show_plan(found, as_json=as_json)


def _sentence(done: Bootstrapped) -> str:
    from clusterctl.reporting.text import count

    formed = done.formed
    size = f"{count(formed.nodes, 'node')}, {count(round(formed.gpus), 'GPU')}"
    versions = f"Ray {formed.ray_version}, vLLM {formed.vllm_version}"
    return f"the cluster is up: {size}, {versions}; {count(done.changed, 'change')} made"


def _document(done: Bootstrapped) -> dict[str, object]:
    formed = done.formed
    return {
        "changed": done.changed,
        "nodes": formed.nodes,
        "gpus": formed.gpus,
        "ray_version": formed.ray_version,
        "vllm_version": formed.vllm_version,
        "fabric": done.fabric.lines,
    }


@guarded
def plan(
    context: typer.Context,
    file: options.InventoryFile = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
    accept_new: AcceptNew = False,
) -> None:
    """Show what bootstrap would change, per host. Changes nothing; exit 10 when it would."""
    path = options.named_inventory(context, file, inventory)
    _plan("plan", path, limit=limit, as_json=as_json, accept_new=accept_new)


def _plan(
    command: str, file: Path | None, *, limit: str | None, as_json: bool, accept_new: bool
) -> None:
    from clusterctl.cli.agreement import show_plan
    from clusterctl.cli.session import session
    from clusterctl.commands.bootstrap import make_plan

    with session(command, file, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        found = make_plan(opened.inventory, opened.hosts, opened.credentials, sink=opened.progress)
    raise show_plan(found, as_json=as_json)


@guarded
def check(
    context: typer.Context,
    file: options.InventoryFile = None,
    inventory: options.Inventory = None,
    limit: options.Limit = None,
    as_json: options.Json = False,
    accept_new: AcceptNew = False,
    fabric: Annotated[
        bool,
        typer.Option(
            "--fabric", help="Also run all-reduces through the cluster, which must be up."
        ),
    ] = False,
) -> None:
    """Validate the inventory, then every host. Changes nothing; lists all problems at once."""
    from clusterctl.cli.check_view import check_document, check_lines
    from clusterctl.cli.session import session
    from clusterctl.commands.bootstrap import plan_for
    from clusterctl.commands.check import run, with_fabric
    from clusterctl.errors import raise_all
    from clusterctl.reporting.text import line_width

    path = options.named_inventory(context, file, inventory)
    with session("check", path, limit=limit, quiet=as_json, accept_new=accept_new) as opened:
        report = run(opened.inventory, opened.hosts, opened.credentials, plan_for=plan_for)
        if fabric:
            report = with_fabric(
                report, opened.inventory, opened.hosts, opened.credentials, opened.progress
            )
        if as_json:
            print(json.dumps(check_document(report), indent=2))
            if report.errors:
                raise typer.Exit(min(error.exit_code for error in report.errors))
            return
        print("\n".join(check_lines(report, width=line_width(sys.stdout))))
        raise_all(report.errors)
