"""A command is one file that imports no other command."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

COMMANDS = Path(__file__).parents[3] / "clusterctl" / "commands"


def others(path: Path) -> set[str]:
    """The modules of commands/ that a command imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        module = f"{node.module}." if node.module else ""
        for name in node.names:
            parts = f"{module}{name.name}".split(".")
            if parts[:2] == ["clusterctl", "commands"] and len(parts) > 2:
                found.add(parts[2])
    return found


@pytest.mark.parametrize("path", sorted(COMMANDS.glob("*.py")), ids=lambda path: path.stem)
def test_a_command_imports_no_other(path: Path) -> None:
    assert not others(path)
