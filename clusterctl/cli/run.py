"""`run`: run your own script next to Ray."""

from __future__ import annotations

import sys
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from clusterctl.cli import options
from clusterctl.cli.guard import guarded

if TYPE_CHECKING:
    from clusterctl.reporting.console import Progress
    from clusterctl.serving.job import JobOutput


def _writer(stream: TextIO) -> Callable[[bytes], None]:
    """Return a function that passes the script's output on: unchanged, but escaped for a terminal,
    where the updates of a progress bar become separate lines."""
    decoder = getincrementaldecoder("utf-8")("replace")

    def write(data: bytes) -> None:
        if stream.isatty():
            stream.write(decoder.decode(data).replace("\r\n", "\n").replace("\r", "\n"))
        else:
            stream.buffer.write(data)
        stream.flush()

    return write


@contextmanager
def passed_on(progress: Progress) -> Iterator[JobOutput]:
    """Yield a function that prints the script's output. Live rows are off: above them, every piece
    of a line would become a line."""
    from clusterctl.engine.events import Note
    from clusterctl.serving.job import JobOutput

    with progress.paused():
        yield JobOutput(
            stdout=_writer(sys.stdout),
            stderr=_writer(sys.stderr),
            note=lambda text: progress(Note(text)),
        )


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
    """Run a Python script next to Ray, in the head's node container."""
    from clusterctl.cli.session import session
    from clusterctl.commands import run as command

    words = arguments or []
    if words[:1] == ["--"]:  # what follows SCRIPT is the script's, with or without it
        words = words[1:]

    with session("run", inventory) as opened, passed_on(opened.progress) as output:
        status = command.run(opened, script, words, gpus, output)
    raise typer.Exit(status)
