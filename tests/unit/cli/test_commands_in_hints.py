"""Every command that a fix or a document names can be pasted: it exists, with those options."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from clusterctl.cli.app import app
from clusterctl.cli.program import VllmCommand
from clusterctl.diagnosis.kinds import kinds
from clusterctl.diagnosis.rules import rules
from clusterctl.serving.release_flags import is_vllm_flag

ROOT = Path(__file__).parents[3]
PROGRAM: Any = typer.main.get_command(app)
COMMAND = re.compile(r"\bclusterctl((?: +(?:-i +)?[^\s`;,:()'\"]+)+)")
IN_DOCS = re.compile(
    r"`(clusterctl [^`]+)`|^(?: {4}|\$ |sudo )?(?:sudo )?(clusterctl [^#\n]+)", re.MULTILINE
)
PROSE = frozenset(
    re.findall(
        r"\w+",
        """again and asks at brought cannot checkout command creates derives did does from gets
        gives has installed installs inventory is itself keeps knows loads makes may means must
        needs or places proves runs sets share skips start started takes that uses was without
        works writes""",
    )
)
"""Words that follow the program's name in sentences. A new command is not among them."""

NO_INVENTORY = frozenset(
    {
        "clusterctl/containers/failures.py",
        "clusterctl/inventory/current.py",
        "clusterctl/inventory/document.py",
        "clusterctl/survey/inventory_text.py",
    }
)
"""What they say is said before an inventory is read, or of one engine, or in the file itself."""


def _strings(source: str) -> Iterator[str]:
    """String literals that are no docstrings; what an f-string inserts is X."""
    tree = ast.parse(source)
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            yield "".join(_text(part) for part in node.values)
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield node.value if isinstance(node.value, str) else ""


def _text(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "X"


def _named() -> Iterator[tuple[str, list[str]]]:
    """(file, words after `clusterctl`) of every command in hints and documents."""
    for file in sorted((ROOT / "clusterctl").rglob("*.py")):
        for text in _strings(file.read_text()):
            for found in COMMAND.finditer(text):
                words = found[1].split()
                if words[0] not in PROSE and "." not in words[0]:
                    yield str(file.relative_to(ROOT)), words
    told = [f"{each.cause}; {each.fix}" for rule in rules() for each in rule.seen]
    told += [f"{each.cause}; {each.fix}" for each in kinds()]
    for text in told:
        for found in COMMAND.finditer(text):
            if (words := found[1].split())[0] not in PROSE:
                yield "clusterctl/diagnosis", words
    for file in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for match in IN_DOCS.finditer(file.read_text()):
            words = (match[1] or match[2]).split()[1:]
            if words[0] not in PROSE:
                yield str(file.relative_to(ROOT)), words


def _problem(words: list[str]) -> str | None:
    command = PROGRAM
    if words[:1] == ["-i"]:
        words = words[2:] or ["..."]
    while hasattr(command, "commands"):
        word, *words = words or ["..."]
        if word in {"...", "COMMAND", "X"} or word.startswith("-"):
            return None
        if word not in command.commands:
            return f"there is no command {word}"
        command = command.commands[word]
    own = words[: words.index("--")] if "--" in words else words
    known = {option for parameter in command.params for option in parameter.opts}
    passed_on = isinstance(command, VllmCommand)
    unknown = [
        word
        for word in own
        if word.startswith("-")
        and word not in known | {"--help"}
        and not (passed_on and is_vllm_flag(word))
    ]
    return f"{command.name} has no {', '.join(unknown)}" if unknown else None


def test_every_command_named_exists() -> None:
    named = list(_named())
    wrong = [f"{file}: {' '.join(words)}: {problem}" for file, words in named
             if (problem := _problem(words))]  # fmt: skip
    assert len(named) > 60
    assert wrong == []


def test_a_fix_names_the_inventory_wherever_it_is_known() -> None:
    wrong = [
        (file, words)
        for file, words in _named()
        if words[1:2] == ["FILE"] and file.startswith("clusterctl/") and file not in NO_INVENTORY
    ]
    assert wrong == []


def test_exec_takes_hosts_by_limit_alone() -> None:
    wrong = [
        (file, words)
        for file, words in _named()
        if words[0] == "exec" and words[1:2] not in (["--"], ["--limit"], ["--sudo"])
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "words", [["initiate", "HOST"], ["exec", "--nope", "--", "x"], ["lab", "up2"]]
)
def test_the_check_sees_what_does_not_exist(words: list[str]) -> None:
    assert _problem(words)


def test_the_page_of_commands_has_every_command() -> None:
    table = (ROOT / "docs/commands.md").read_text()
    first_cells = "".join(re.findall(r"^\|[^|]+", table, re.MULTILINE))
    named = set(re.findall(r"`([a-z]+(?: [a-z]+)?)", first_cells))
    group: Any = typer.main.get_command(app)
    commands = [
        f"{name} {below}".rstrip()
        for name, command in group.commands.items()
        for below in getattr(command, "commands", [""])
    ]
    assert [command for command in commands if command not in named] == []
