"""`report`: one page about a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty


@guarded
def report(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="File to write.")
    ] = Path("report.html"),
    bandwidth: Annotated[
        bool,
        typer.Option(
            "--bandwidth",
            help="Measure throughput between hosts, which slows services for seconds.",
        ),
    ] = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Write an HTML report: hosts, links, memory, benchmarks and events."""
    from clusterctl.cli.session import session
    from clusterctl.commands.report import run
    from clusterctl.reporting.output_file import write_file
    from clusterctl.reporting.page import page

    with session("report", inventory, quiet=as_json) as opened:
        document = run(opened, bandwidth=bandwidth)
    if as_json:
        print(pretty(document))
        return
    write_file(output, page(document).encode())
    print(output)
