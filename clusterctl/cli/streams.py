"""stdin, stdout and stderr as a run finds them: closed ones, and those that take nothing more."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, TextIO

from clusterctl.errors import RequirementsNotMet

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputLost(RequirementsNotMet):
    """What a run has to say could not be written to stdout."""


class _Results(io.FileIO):
    """stdout. Who reads results must know when there are none."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputLost(
                f"stdout cannot be written: {error.strerror}",
                hint="give stdout a place with room, and run the same command again",
            ) from error


class _Notices(io.FileIO):
    """stderr. Progress that nobody can see stops no work."""

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def prepare() -> None:
    """To be called before anything is opened: a file or connection that got the number of a
    stream which was closed would be read or written as that stream. Closed ones are /dev/null."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 - a number, open to the end
    sys.stdout = _text(_Results(1, "w", closefd=False), sys.stdout)
    sys.stderr = _text(_Notices(2, "w", closefd=False), sys.stderr)


def _text(raw: io.FileIO, before: TextIO | None) -> io.TextIOWrapper:
    """As Python opened it, `before`. What a host says may not exist in this terminal's encoding; a
    `?` beats a crash."""
    return io.TextIOWrapper(
        io.BufferedWriter(raw),
        encoding=before.encoding if before else "utf-8",
        errors="replace",
        line_buffering=raw.fileno() == 2 or raw.isatty(),
        write_through=isinstance(before, io.TextIOWrapper) and before.write_through,
    )


def drop_stdout() -> None:
    """What is left of it goes nowhere: it would be tried again when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
