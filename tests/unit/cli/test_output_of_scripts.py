"""What `run` makes of a script's output: the same bytes to a file, escaped lines to a terminal."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer import Exit

from clusterctl.cli.run import _writer, run
from clusterctl.commands import run as command
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


def test_pieces_of_a_line_stay_on_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERM", "xterm")
    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", Escaping(shown))
    monkeypatch.setattr(sys, "stderr", Escaping(Terminal()))

    @contextmanager
    def opened(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        with Progress(sys.stderr) as progress:
            yield SimpleNamespace(inventory=None, credentials=None, progress=progress)

    def script(*given: Any) -> int:
        for piece in (b"loading", b" weights", b": 10%\n"):
            given[5].stdout(piece)
        return 3

    monkeypatch.setattr("clusterctl.cli.session.session", opened)
    monkeypatch.setattr(command, "run", script)
    with pytest.raises(Exit) as ended:
        run(tmp_path / "s.py")
    assert ended.value.exit_code == 3
    assert shown.getvalue() == "loading weights: 10%\n"
