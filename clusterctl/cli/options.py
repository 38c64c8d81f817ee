"""Options that several commands take, so that each has one spelling and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Inventory = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--inventory",
        envvar="CLUSTERCTL_INVENTORY",
        help="Inventory file; default: the one last bootstrapped.",
    ),
]
InventoryFile = Annotated[
    Path | None, typer.Argument(help="Inventory file; default: the one last bootstrapped.")
]
Limit = Annotated[
    str | None,
    typer.Option("--limit", help="Only these hosts: names, globs, ranges, label=value, !name."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would change; exit 10 when something would.")
]
LimitRate = Annotated[
    str | None,
    typer.Option("--limit-rate", help="Send no more than this a second: 400mbit, 50MB."),
]


def rate_of(limit_rate: str | None) -> int | None:
    """Bytes a second. Raises UsageError."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory.units import parse_rate

    try:
        return parse_rate(limit_rate) if limit_rate else None
    except ValueError as error:
        raise UsageError(f"--limit-rate: {error}", hint="--limit-rate 400mbit") from error
