"""`run`: run one's own script beside Ray."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded


@guarded
def run(
    script: Annotated[
        Path, typer.Argument(metavar="SCRIPT", help="Python script on this machine.")
    ],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGUMENT", help="Arguments of the script."),
    ] = None,
    gpus: Annotated[
        int,
        typer.Option("--gpus", metavar="N", min=0, help="GPUs that must be free; default: 1."),
    ] = 1,
    inventory: options.Inventory = None,
) -> None:
    """Run a Python script beside Ray, in the head's node container."""
    from clusterctl.cli.session import session
    from clusterctl.commands import run as command
    from clusterctl.engine.events import Note
    from clusterctl.serving.job import JobOutput

    words = arguments or []
    if words[:1] == ["--"]:  # what follows SCRIPT is the script's, with or without it
        words = words[1:]

    def write(stream: int, data: bytes) -> None:
        file = (sys.stdout, sys.stderr)[stream - 1]
        file.buffer.write(data)
        file.buffer.flush()

    with session("run", inventory) as opened:
        output = JobOutput(
            stdout=lambda data: write(1, data),
            stderr=lambda data: write(2, data),
            note=lambda text: opened.progress(Note(text)),
        )
        status = command.run(
            opened.inventory,
            script,
            words,
            gpus,
            opened.credentials,
            output,
            opened.progress,
        )
    raise typer.Exit(status)
