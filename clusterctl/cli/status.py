"""`status`: the state of the cluster on one screen."""

from __future__ import annotations

import json
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import DEGRADED, Interrupted

if TYPE_CHECKING:
    from clusterctl.survey.status import ClusterStatus

WATCH_EVERY = 2.0  # Seconds between two reads with --watch


@guarded
def status(
    inventory: options.Inventory = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="A live screen, read every 2 s, until Ctrl-C.")
    ] = False,
    wide: Annotated[
        bool, typer.Option("--wide", help="Load of GPUs and CPUs; latencies, rates and errors.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show hosts, GPUs, Ray and services on one screen. Exit 0 healthy, 8 degraded."""
    from clusterctl.cli.session import credentials, load_inventory
    from clusterctl.commands.status import read
    from clusterctl.reporting.status_view import screen, status_document, status_screen

    def show(found: ClusterStatus) -> None:
        if as_json:
            print(json.dumps(status_document(found), indent=None if watch else 2), flush=True)
        else:
            screen(sys.stdout).print(status_screen(found), crop=False)
            sys.stdout.flush()

    loaded = load_inventory(inventory)
    if not watch:
        with read(loaded, credentials(), wide=wide) as look:
            found = look()
        show(found)
        raise typer.Exit(0 if found.healthy else DEGRADED)
    from rich.live import Live

    from clusterctl.reporting.live_view import LiveStatus

    try:
        with read(loaded, credentials(), wide=wide) as look:  # the same connections for every look
            past = LiveStatus()
            on_terminal = not as_json and sys.stdout.isatty()
            drawn = Live(
                past,
                console=screen(sys.stdout),
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            with drawn if on_terminal else nullcontext():
                while True:
                    found = look()
                    changes = past.look(found, time.time())
                    if on_terminal:
                        drawn.refresh()
                    else:
                        show(found)
                        if not as_json:
                            print(*changes, "", sep="\n", flush=True)
                    time.sleep(WATCH_EVERY)
    except (KeyboardInterrupt, Interrupted):
        return
