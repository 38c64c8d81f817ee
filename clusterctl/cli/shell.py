"""`ssh`: a shell on one host, by the machine's own ssh and the inventory's settings."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded


@guarded
def ssh(
    host: Annotated[
        str,
        typer.Argument(
            metavar="HOST",
            help="Name of a host in the inventory.",
            autocompletion=options.complete_hosts,
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Run this instead of a shell."),
    ] = None,
    inventory: options.Inventory = None,
) -> None:
    """Open a shell on one host, or run a command there."""
    from clusterctl.cli.session import load_inventory
    from clusterctl.errors import RequirementsNotMet, UsageError
    from clusterctl.inventory.values import did_you_mean
    from clusterctl.transport.connect import LOCAL_ADDRESSES
    from clusterctl.transport.target import target_of

    hosts = {each.name: each for each in load_inventory(inventory).hosts}
    if host not in hosts:  # patterns are not accepted
        known = tuple(hosts)
        raise UsageError(
            f"no host is named {host}{did_you_mean(host, known)}",
            hint=f"clusterctl ssh {known[0]}   (hosts: {', '.join(known[:20])})",
        )
    if hosts[host].address in LOCAL_ADDRESSES:
        shell = os.environ.get("SHELL") or "sh"
        # Like sshd, join the words after the host into one line for the user's shell.
        argv = [shell, "-c", " ".join(command)] if command else [shell]
    else:
        argv = target_of(hosts[host]).argv(*(command or []))
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell
    except FileNotFoundError:
        raise RequirementsNotMet(
            f"there is no {argv[0]} on this machine",
            hint="install your system's OpenSSH client" if argv[0] == "ssh" else "set SHELL",
        ) from None
