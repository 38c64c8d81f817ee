"""`status`: the state of the cluster on one screen."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import DEGRADED, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from clusterctl.inventory.model import Inventory
    from clusterctl.survey.status import ClusterStatus

WATCH_EVERY = 2.0  # Seconds between two reads with --watch


@guarded
def status(
    inventory: options.Inventory = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Look again every 2 s, until Ctrl-C.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show hosts, GPUs, Ray and services on one screen. Exit 0 healthy, 8 degraded."""
    from clusterctl.cli.session import credentials, load_inventory

    loaded = load_inventory(inventory)
    if watch:
        _watch(loaded, as_json=as_json)
        return
    from clusterctl.commands.status import read

    with read(loaded, credentials()) as look:
        found = look()
    _print(found, as_json=as_json, indent=2)
    if not found.healthy:
        raise typer.Exit(DEGRADED)


def _print(found: ClusterStatus, *, as_json: bool, indent: int | None) -> None:
    from clusterctl.reporting.status_view import screen, status_document, status_screen

    if as_json:
        print(json.dumps(status_document(found), indent=indent), flush=True)
    else:
        screen(sys.stdout).print(status_screen(found), crop=False)
        sys.stdout.flush()


def _watch(loaded: Inventory, *, as_json: bool) -> None:
    """Show the status repeatedly over the same connections, until Ctrl-C."""
    from clusterctl.cli.session import credentials
    from clusterctl.commands.status import read

    try:
        with read(loaded, credentials()) as look:
            if as_json or not sys.stdout.isatty():
                _print_each(look, as_json=as_json)
            else:
                _redraw(look)
    except (KeyboardInterrupt, Interrupted):
        return


def _print_each(look: Callable[[], ClusterStatus], *, as_json: bool) -> None:
    """Print a screen or a line of JSON for each read, for programs and files."""
    while True:
        _print(look(), as_json=as_json, indent=None)
        if not as_json:
            print(flush=True)
        time.sleep(WATCH_EVERY)


def _redraw(look: Callable[[], ClusterStatus]) -> None:
    from rich.live import Live

    from clusterctl.reporting.status_view import screen, status_screen

    with Live(console=screen(sys.stdout), auto_refresh=False) as live:
        while True:
            live.update(status_screen(look()), refresh=True)
            time.sleep(WATCH_EVERY)
