"""Options that several commands share, so that each has one spelling and one help text."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer


def complete_hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of several host names separated by commas; returns none without a valid
    inventory."""
    from clusterctl.errors import ClusterctlError
    from clusterctl.inventory.current import current
    from clusterctl.inventory.load import load

    before, comma, last = incomplete.rpartition(",")
    typed = before.split(",")
    names: tuple[str, ...] = ()
    with suppress(ClusterctlError):
        # The -i typed so far, the command's own first
        typed_inventories = (it.params.get("inventory") for it in (context, context.find_root()))
        path = next((Path(it) for it in typed_inventories if it), None)
        names = tuple(host.name for host in load(current(path)).hosts)
    fresh = (name for name in names if name.startswith(last) and name not in typed)
    return [f"{before}{comma}{name}" for name in fresh]


def complete_models(incomplete: str) -> list[str]:
    """Complete aliases of the catalogue."""
    from clusterctl.models.catalogue import EDITIONS

    return [entry.alias for entry in EDITIONS if entry.alias.startswith(incomplete)]


Inventory = Annotated[
    Path | None,
    typer.Option(
        "-i",
        "--inventory",
        metavar="FILE",
        envvar="CLUSTERCTL_INVENTORY",
        help="Inventory; default: the one last bootstrapped.",
    ),
]
InventoryFile = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="Inventory; the same as -i FILE.")
]
LIMIT = "Only these hosts: names, globs, ranges, label=value, !name."
Limit = Annotated[
    str | None,
    typer.Option("--limit", metavar="HOSTS", help=LIMIT, autocompletion=complete_hosts),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="HOSTS",
        help="Only on these hosts: names, globs, label=value; default: as before, or all.",
        autocompletion=complete_hosts,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would change; exit 10 if anything would.")
]
AcceptNew = Annotated[
    bool,
    typer.Option(
        "--accept-new", help="Accept and save unknown host keys; a changed key still fails."
    ),
]
LimitRate = Annotated[
    str | None,
    typer.Option(
        "--limit-rate", metavar="RATE", help="Send at most this much per second: 400mbit, 50MB."
    ),
]
TensorParallel = Annotated[
    int | None,
    typer.Option("--tp", metavar="N", min=1, help="Tensor parallel size; default: planned."),
]
PipelineParallel = Annotated[
    int | None,
    typer.Option("--pp", metavar="N", min=1, help="Pipeline parallel size; default: planned."),
]
VllmConfig = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="vLLM's own YAML configuration file."),
]


def named_inventory(
    context: typer.Context, file: Path | None, inventory: Path | None
) -> Path | None:
    """Return the inventory from FILE or -i for a command that takes both; None without either.

    FILE takes precedence over the environment. Raises UsageError if FILE and an -i (the command's
    or the program's) name different files.
    """
    from clusterctl.errors import UsageError

    typed = None
    for where in (context, context.find_root()):
        source = where.get_parameter_source("inventory")
        # The parameter's value may be from the environment, which FILE overrides.
        if typed is None and source is not None and source.name == "COMMANDLINE":
            typed = Path(where.params["inventory"])
    if file is not None and typed is not None and file.absolute() != typed.absolute():
        raise UsageError(
            f"two inventories are given: {file} and -i {typed}", hint="omit one of them"
        )
    return file or inventory


def rate_of(limit_rate: str | None) -> int | None:
    """Return the rate in bytes per second, or None. Raises UsageError."""
    from clusterctl.errors import UsageError
    from clusterctl.inventory.values import parse_rate

    try:
        return parse_rate(limit_rate) if limit_rate else None
    except ValueError as error:
        raise UsageError(f"--limit-rate: {error}", hint="--limit-rate 400mbit") from error
