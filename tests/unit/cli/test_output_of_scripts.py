"""What `run` makes of a script's output: the same bytes to a file, escaped lines to a terminal."""

from __future__ import annotations

import io
import sys

import pytest

from clusterctl.cli.run import _writer, passed_on
from clusterctl.reporting.console import Progress
from clusterctl.reporting.escaping import Escaping

PIECES = (b"50%\r", b"100%\r\n", b"\x1b[31mred\x1b[0m \x1b]0;title\x07 \xe4", b"\xba\x94\n")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_file_gets_the_bytes_as_they_are() -> None:
    file = io.BytesIO()
    write = _writer(Escaping(io.TextIOWrapper(file)))  # type: ignore[arg-type]
    for piece in PIECES:
        write(piece)
    assert file.getvalue() == b"".join(PIECES)


def test_a_terminal_gets_lines_without_what_it_would_obey() -> None:
    terminal = Terminal()
    write = _writer(Escaping(terminal))  # type: ignore[arg-type]
    for piece in PIECES:
        write(piece)
    assert terminal.getvalue() == "50%\n100%\nred \\x1b]0;title\\x07 五\n"


def test_pieces_of_a_line_stay_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", Escaping(shown))
    monkeypatch.setattr(sys, "stderr", Escaping(Terminal()))
    with Progress(sys.stderr) as progress, passed_on(progress) as output:
        for piece in (b"loading", b" weights", b": 10%\n"):
            output.stdout(piece)
    assert shown.getvalue() == "loading weights: 10%\n"
