"""`batch`: answer a file of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty


@guarded
def batch(
    service: Annotated[
        str, typer.Argument(metavar="SERVICE", help="Service, as `status` shows it.")
    ],
    requests: Annotated[
        Path,
        typer.Argument(
            metavar="REQUESTS",
            help="JSON lines in OpenAI's batch format, or just request bodies.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE", help="Answers, a JSON line each."),
    ],
    concurrency: Annotated[
        int,
        typer.Option("--concurrency", metavar="N", min=1, max=256, help="Requests at once."),
    ] = 64,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Send a file of requests. A second run sends only those that failed or have no answer."""
    from clusterctl.cli.session import session
    from clusterctl.commands.batch import run
    from clusterctl.errors import StepFailed

    with session("batch", inventory, quiet=as_json) as opened:
        count = run(opened, service, requests, output, concurrency)
    if as_json:
        print(pretty({"service": service, "answers": str(output), **vars(count)}))
    elif count.kept == count.total:
        print(f"{output} already has all {count.total} answers")
    else:
        print(f"{count.answered} answers in {output}, {count.kept} of them from earlier runs")
    if count.failed and not as_json:
        raise StepFailed(
            f"{count.failed} of {count.total} requests failed",
            hint=f"{output} has the reasons; the same command resends only these",
        )
    if count.failed:
        raise typer.Exit(StepFailed.exit_code)
