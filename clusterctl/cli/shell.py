"""`ssh`: a shell on one host, by the machine's own ssh and the inventory's settings."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded


@guarded
def ssh(
    host: Annotated[str, typer.Argument(help="Name of a host in the inventory.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="Run this instead of a shell.")
    ] = None,
    inventory: options.Inventory = None,
) -> None:
    """Open a shell on HOST."""
    from clusterctl.cli.session import load_inventory
    from clusterctl.errors import RequirementsNotMet
    from clusterctl.inventory.select import select
    from clusterctl.transport.target import target_of

    (target, *_) = select(load_inventory(inventory), host)
    argv = target_of(target).argv(*(command or []))
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell
    except FileNotFoundError:
        raise RequirementsNotMet(
            "there is no ssh on this machine", hint="install your system's OpenSSH client"
        ) from None
