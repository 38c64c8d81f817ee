"""`soak`: steady load for a while, and a verdict."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.errors import DEGRADED, Interrupted, UsageError

_UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600}


@guarded
def soak(
    service: Annotated[
        str | None,
        typer.Argument(
            metavar="SERVICE", help="A service, as `status` shows it; default: the only one."
        ),
    ] = None,
    duration: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long: 90s, 30m or 1h.")
    ] = "1h",
    at_once: Annotated[
        int, typer.Option("--at-once", metavar="N", min=1, help="Requests at once.")
    ] = 8,
    prompt: Annotated[int, typer.Option("--in", metavar="N", min=1, help="Prompt tokens.")] = 256,
    output: Annotated[int, typer.Option("--out", metavar="N", min=1, help="Answer tokens.")] = 128,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests", metavar="N", min=1, help="Requests per round; default: 32 x --at-once."
        ),
    ] = None,
    inventory: options.Inventory = None,
    as_json: options.Json = False,
) -> None:
    """Keep a service under load in rounds, and report failures and slow hosts."""
    from clusterctl.cli.session import session
    from clusterctl.commands.soak import run
    from clusterctl.reporting.escaping import one_line
    from clusterctl.serving.bench import BenchLoad
    from clusterctl.serving.soak import findings, totals

    load = BenchLoad(at_once, None, prompt, output, requests or 32 * at_once)
    seconds = _seconds(duration)
    with session("soak", inventory, quiet=as_json) as opened:
        rounds = run(opened, service, load, seconds)
    if not rounds:
        raise Interrupted("interrupted before the first round ended")
    found = findings(rounds)
    if as_json:
        held = {
            "held": not found,
            "totals": totals(rounds),
            "findings": found,
            "rounds": [asdict(one) for one in rounds],
        }
        print(pretty(held))
    else:
        verdict = found or ["nothing failed or was slow"]
        print("\n".join(one_line(text) for text in (totals(rounds), *verdict)))
    if found:
        raise typer.Exit(DEGRADED)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|m|min|h)", text)
    if not found:
        raise UsageError(f"--for {text}: not a time", hint="--for 30m, or --for 1h")
    return float(found[1]) * _UNITS[found[2]]
