"""`ssh`: a shell on one host, with this machine's ssh and the inventory's settings."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from clusterctl.inventory.model import Host


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
        typer.Argument(metavar="COMMAND", help="Command to run instead of a shell."),
    ] = None,
    inventory: options.Inventory = None,
    node: Annotated[bool, typer.Option("--node", help="Inside the node container.")] = False,
) -> None:
    """Open a shell on a host, or run a command on it."""
    from clusterctl.cli.session import load_inventory
    from clusterctl.errors import RequirementsNotMet, UsageError
    from clusterctl.inventory.values import did_you_mean
    from clusterctl.transport.connect import LOCAL_ADDRESSES
    from clusterctl.transport.target import target_of

    loaded = load_inventory(inventory)
    hosts = {each.name: each for each in loaded.hosts}
    if host not in hosts:  # patterns are not accepted
        known = tuple(hosts)
        raise UsageError(
            f"no host is named {host}{did_you_mean(host, known)}",
            hint=f"clusterctl ssh {known[0]}   (hosts: {', '.join(known[:20])})",
        )
    words = command or []
    if words[:1] == ["--node"]:  # options end at HOST, so that those of COMMAND need no --
        node, words = True, words[1:]
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    # Like sshd, join the words after the host into one line for the user's shell.
    line = " ".join(words)
    if node:
        line = _in_node(loaded.cluster, hosts[host], line, terminal=terminal)
    if hosts[host].address in LOCAL_ADDRESSES:
        shell = os.environ.get("SHELL") or "sh"
        argv = [shell, "-c", line] if line else [shell]
    else:
        # ssh gives a command no terminal unless told to
        argv = target_of(hosts[host]).argv(*([line] if line else []), terminal=node and terminal)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - a list, no shell
    except FileNotFoundError:
        raise RequirementsNotMet(
            f"there is no {argv[0]} on this machine",
            hint="install your system's OpenSSH client" if argv[0] == "ssh" else "set SHELL",
        ) from None


def _in_node(cluster: str, host: Host, line: str, *, terminal: bool) -> str:
    """Return the shell line for the host that runs `line`, or a shell, in the node container."""
    from clusterctl.containers.drivers import driver_for
    from clusterctl.ray_cluster.nodes import container_name
    from clusterctl.transport.connect import Connections

    inside = ["sh", "-c", line] if line else ["bash"]
    with Connections() as connections:  # connects to nothing here
        driver = driver_for(connections.to(host))
        words = driver.exec_argv(container_name(cluster), inside, terminal=terminal)
    return shlex.join(
        ["sh", "-c", '[ "$(id -u)" = 0 ] || exec sudo "$@"; exec "$@"', "node", *words]
    )
