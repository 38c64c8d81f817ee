"""`model`: the models that have a short name."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

app = typer.Typer(help="Models known by a short name.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Models known by a short name."""


@app.command("ls")
@guarded
def ls(
    hub: Annotated[bool, typer.Option("--hub", help="Only the names on the Hub.")] = False,
    as_json: options.Json = False,
) -> None:
    """List the models that `serve` knows by a short name, with the flags that each needs."""
    from clusterctl.reporting.text import columns
    from clusterctl.serving.catalogue import CATALOGUE

    if as_json:
        rows = [
            {"name": e.alias, "hub_id": e.hub_id, "flags": list(e.tokens(None))} for e in CATALOGUE
        ]
        print(json.dumps(rows, indent=2))
    elif hub:
        print("\n".join(entry.hub_id for entry in CATALOGUE))
    else:
        table = [(e.alias, e.hub_id, " ".join(e.tokens(None))) for e in CATALOGUE]
        print("\n".join(columns(table, indent="")))
