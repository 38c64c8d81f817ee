"""`ssh`: a shell on one host, by the machine's own ssh and the inventory's settings."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from clusterctl.inventory.model import Host, Inventory


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
    from clusterctl.errors import RequirementsNotMet

    argv = _argv(_host(load_inventory(inventory), host), command or [])
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell
    except FileNotFoundError:
        raise RequirementsNotMet(
            f"there is no {argv[0]} on this machine",
            hint="install your system's OpenSSH client" if argv[0] == "ssh" else "set SHELL",
        ) from None


def _host(inventory: Inventory, name: str) -> Host:
    """Return the host with exactly this name; patterns are not accepted. Raises UsageError."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory.values import did_you_mean

    hosts = {host.name: host for host in inventory.hosts}
    if name in hosts:
        return hosts[name]
    known = tuple(hosts)
    raise UsageError(
        f"no host is named {name}{did_you_mean(name, known)}",
        hint=f"clusterctl ssh {known[0]}   (hosts: {', '.join(known[:20])})",
    )


def _argv(host: Host, command: list[str]) -> list[str]:
    from clusterctl.transport.connect import LOCAL_ADDRESSES
    from clusterctl.transport.target import target_of

    if host.address not in LOCAL_ADDRESSES:
        return target_of(host).argv(*command)
    shell = os.environ.get("SHELL") or "sh"
    # Like sshd, join the words after the host into one line for the user's shell.
    return [shell, "-c", " ".join(command)] if command else [shell]
