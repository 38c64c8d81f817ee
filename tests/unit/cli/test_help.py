"""What `--help` shows: whole sentences, words instead of Python's types, the same everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from clusterctl.cli.app import app


def _commands(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, *path, name)


ALL = list(_commands(typer.main.get_command(app)))
EACH = pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])


@EACH
def test_nothing_is_cut_off_at_80_columns_and_no_type_of_python_is_shown(
    path: tuple[str, ...], command: Any
) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*path, "-h"]).output
    assert shown.startswith(f"Usage: clusterctl {' '.join(path)}".rstrip())
    if hasattr(command, "commands"):
        assert "...\n" not in shown.partition("Commands:")[2]
    for word in ("<str>", "<path>", "<int", "list[", "{"):
        assert word not in shown


@EACH
def test_every_argument_and_option_is_told_in_a_sentence(
    path: tuple[str, ...], command: Any
) -> None:
    del path
    told = {each.name: each.help or "" for each in command.params if "completion" not in each.name}
    assert [name for name, text in told.items() if not text.endswith((".", ")"))] == []
    assert not hasattr(command, "help") or command.help.rstrip().endswith(".")


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("init", "[OPTIONS] HOST...\n"),
        ("check", "[OPTIONS] [FILE]\n"),
        ("serve", "[OPTIONS] [MODEL] [-- FLAG...]\n"),
        ("ssh", "[OPTIONS] HOST [COMMAND...]\n"),
    ],
)
def test_usage_names_arguments_as_the_text_does(path: str, usage: str) -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(app, [path, "-h"]).output
    assert shown.startswith(f"Usage: clusterctl {path} {usage}")
