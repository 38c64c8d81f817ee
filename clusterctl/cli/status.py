"""`status`: one screen."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import ClusterDegraded

if TYPE_CHECKING:
    from clusterctl.inventory.model import Inventory

WATCH_EVERY = 2.0
"""Seconds between two looks with --watch."""


@guarded
def status(
    inventory: options.Inventory = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every 2 s.")] = False,
    as_json: options.Json = False,
) -> None:
    """Hosts, GPUs, Ray and services on one screen. Exit 0 healthy, 8 degraded."""
    from clusterctl.cli.session import credentials, load_inventory

    loaded = load_inventory(inventory)
    if watch:
        _watch(loaded)
    from clusterctl.workflows.status import read

    with read(loaded, credentials()) as look:
        found = look()
    if as_json:
        from clusterctl.reporting.status_view import status_document

        print(json.dumps(status_document(found), indent=2))
    else:
        from rich.console import Console

        from clusterctl.reporting.status_view import status_screen

        Console(file=sys.stdout, highlight=False).print(status_screen(found), crop=False)
    if not found.healthy:
        raise typer.Exit(ClusterDegraded.exit_code)


def _watch(loaded: Inventory) -> NoReturn:
    """Look again and again over the same connections, until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    from clusterctl.cli.session import credentials
    from clusterctl.reporting.status_view import status_screen
    from clusterctl.workflows.status import read

    with read(loaded, credentials()) as look, Live(console=Console(), auto_refresh=False) as live:
        while True:
            live.update(status_screen(look()), refresh=True)
            time.sleep(WATCH_EVERY)
