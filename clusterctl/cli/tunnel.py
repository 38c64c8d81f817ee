"""`tunnel`: Ray's dashboard or a service's API on this machine's own loopback."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded
from clusterctl.errors import ConnectionFailed
from clusterctl.reporting.error_view import error_lines


@guarded
def tunnel(
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="`dashboard` or a service.", show_default=False)
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65535,
            help="Local port, 0 for any free one; default: the remote port.",
        ),
    ] = None,
    inventory: options.Inventory = None,
) -> None:
    """Reach Ray's dashboard or a service at 127.0.0.1, until Ctrl-C."""
    from clusterctl.cli.session import session
    from clusterctl.commands.tunnel import DASHBOARD, opened_tunnel, wait
    from clusterctl.node.files import NodePaths

    def report(error: ConnectionFailed) -> None:
        print("\n".join(error_lines(error)), file=sys.stderr, flush=True)

    with (
        session("tunnel", inventory, quiet=True) as opened,
        opened_tunnel(opened, target, port) as way,
    ):
        print(f"http://127.0.0.1:{way.port}", flush=True)
        if target == DASHBOARD:
            token = NodePaths(opened.inventory.cluster).ray_token
            print(
                "it requires Ray's token, which this prints: clusterctl exec --sudo --limit "
                f"{opened.inventory.head.name} -- cat {token}",
                file=sys.stderr,
            )
        print("open until Ctrl-C", file=sys.stderr)
        try:
            wait(way, report)
        except KeyboardInterrupt:
            return
