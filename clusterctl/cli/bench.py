"""`bench`: measure services with vLLM's own benchmark."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.errors import UsageError

_MOST = 10_000  # Requests per second


@guarded
def bench(
    services: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SERVICE", help="Services, as `status` shows them; default: the only one."
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate", metavar="R,...", help="Requests per second; default: 1, then 8 at once."
        ),
    ] = None,
    prompt: Annotated[
        int, typer.Option("--in", metavar="N", min=1, help="Prompt tokens; default: 256.")
    ] = 256,
    output: Annotated[
        int, typer.Option("--out", metavar="N", min=1, help="Answer tokens; default: 128.")
    ] = 128,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", metavar="N", min=1, help="Requests per load; default: 4 x the load."
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure 1, 4, 16 and 64 requests at once.")
    ] = False,
    runs: Annotated[
        int,
        typer.Option(
            "--runs", metavar="N", min=1, max=20, help="Runs per load; several show the noise."
        ),
    ] = 1,
    start: Annotated[
        bool,
        typer.Option(
            "--start", help="Restart one service cold and warm, and measure that by stages."
        ),
    ] = False,
    yes: options.Yes = False,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Measure speed, in the unit of the kind of model, and latencies of services."""
    if start:
        if rate or sweep or requests or len(services or ()) != 1:
            raise UsageError(
                "--start measures the start of one service, without loads",
                hint="clusterctl bench SERVICE --start --runs 3",
            )
        _measure_start((services or [""])[0], runs, inventory, yes=yes, as_json=as_json)
        return
    from clusterctl.cli.session import session
    from clusterctl.commands.bench import run
    from clusterctl.reporting.bench_view import bench_lines
    from clusterctl.reporting.text import line_width
    from clusterctl.serving.bench import loads

    planned = loads(
        rates=_rates(rate), sweep=sweep, prompt=prompt, output=output, requests=requests
    )
    with session("bench", inventory, quiet=as_json) as opened:
        found = run(opened, services or (), planned, runs=runs)
    documents = [one.to_json() for one in found]
    if as_json:
        print(pretty(documents))
    else:
        print("\n".join(bench_lines(documents, width=line_width(sys.stdout))))


def _measure_start(
    name: str, runs: int, inventory: options.Inventory, *, yes: bool, as_json: bool
) -> None:
    from clusterctl.cli.session import require_consent, session
    from clusterctl.commands.bench_start import run
    from clusterctl.operations.restarting import RestartPlan
    from clusterctl.reporting.bench_view import start_lines

    with session("bench", inventory, quiet=as_json) as opened:

        def agree(plan: RestartPlan) -> None:
            if plan.interrupts:
                question = f"This restarts {name} {2 * runs} times"
                declined = f"{name} would be unavailable"
                require_consent(question, declined, yes=yes, progress=opened.progress)

        found = run(opened, name, runs, agree=agree)
    documents = [asdict(one) for one in found]
    print(pretty(documents) if as_json else "\n".join(start_lines(documents)))


def _rates(text: str | None) -> list[float]:
    try:
        rates = [] if text is None else [float(each) for each in text.split(",")]
    except ValueError:
        rates = [math.nan]
    if not all(0.01 <= rate <= _MOST for rate in rates):
        raise UsageError(
            f"--rate {text}: not requests per second, from 0.01 to {_MOST}",
            hint="--rate 4, or --rate 1,4,16",
        )
    return rates
