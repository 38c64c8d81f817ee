"""`metrics`: files for Prometheus and Grafana."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded, pretty
from clusterctl.errors import CHANGES_PENDING


@guarded
def metrics(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to write to.")
    ] = Path("monitoring"),
    textfile: Annotated[
        Path | None,
        typer.Option(
            "--textfile",
            metavar="FILE",
            help="Only write the status to FILE, in Prometheus format.",
        ),
    ] = None,
    inventory: options.Inventory = None,
    dry_run: options.DryRun = False,
    as_json: options.Json = False,
) -> None:
    """Write files for Prometheus and Grafana."""
    from clusterctl.cli.session import session
    from clusterctl.commands.metrics import configuration, state
    from clusterctl.reporting.escaping import one_line
    from clusterctl.reporting.output_file import is_written, write_file

    with session("metrics", inventory, quiet=True) as opened:
        if textfile:
            files = {textfile: state(opened)}
        else:
            found = configuration(opened)
            files = {output / name: text.encode() for name, text in found.items()}
    changed = [path for path, data in files.items() if not is_written(path, data)]
    if not dry_run:
        for path in changed:
            write_file(path, files[path])
    if as_json:
        print(pretty({"files": [*map(str, files)], "changed": [*map(str, changed)]}))
    else:
        verb = "would write" if dry_run else "wrote"
        print("\n".join(one_line(f"{verb} {path}") for path in changed) or "nothing to change")
    if dry_run and changed:
        raise typer.Exit(CHANGES_PENDING)
