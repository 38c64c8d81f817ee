"""The text that login shells are given, run by the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.transport.command import Framed, login_shell_line

SHELLS = [shell for shell in ("sh", "bash", "dash", "fish", "tcsh") if shutil.which(shell)]
ARGUMENT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize("shell", SHELLS)
@settings(max_examples=15, deadline=None)
@given(arguments=st.lists(ARGUMENT, max_size=3))
def test_every_shell_hands_the_arguments_on(shell: str, arguments: list[str]) -> None:
    line = login_shell_line(["printf", "%s\\0", *arguments, "end"])

    result = subprocess.run([shell, "-c", line], capture_output=True, check=True)

    assert result.stdout.decode().split("\0")[:-1] == [*arguments, "end"]


@settings(deadline=None)
@given(st.lists(ARGUMENT))
def test_the_line_has_no_character_that_a_shell_would_touch(arguments: list[str]) -> None:
    line = login_shell_line(arguments)

    assert line.isascii()
    assert line.isprintable()
    assert "!" not in line
    assert line.count("'") == 4


def run(frame: Framed) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(frame.plain(), capture_output=True)


def test_the_mark_comes_first_on_both_streams() -> None:
    frame = Framed(("sh", "-c", "echo out; echo err >&2; exit 3"), seconds=60)

    result = run(frame)

    assert result.stdout == frame.mark + b"out\n"
    assert result.stderr == frame.mark + b"err\n"
    assert result.returncode == 3


def test_the_mark_is_not_in_the_text_that_is_sent() -> None:
    """A shell that traces what it runs would print it too early."""
    frame = Framed(("true",))

    assert frame.mark.decode().strip() not in login_shell_line(frame.plain())


def test_marks_differ() -> None:
    assert Framed(("true",)).mark != Framed(("true",)).mark


def test_limits_are_whole_seconds_rounded_up() -> None:
    """Not every `timeout` takes fractions, and 0 would mean no limit."""
    assert Framed(("true",), seconds=0.2).plain()[6] == "1"
    assert Framed(("true",)).plain()[6] == "0"


def test_sudo_asks_only_when_there_is_a_password() -> None:
    frame = Framed(("true",))

    assert frame.as_root(password=False)[:2] == ("sudo", "-n")
    assert frame.as_root(password=True)[:4] == ("sudo", "-S", "-p", frame.prompt.decode())
