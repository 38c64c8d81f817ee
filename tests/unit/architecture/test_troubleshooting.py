"""The troubleshooting page quotes what clusterctl says: each quotation is a message of the code,
with names and numbers in place of what the code puts in."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from clusterctl.diagnosis.rules import rules

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/troubleshooting.md"
QUOTED = [line[2:] for line in PAGE.read_text().splitlines() if line.startswith("> ")]
SLOT = re.compile(r"\{\w+\}")

FAULTS = (
    "does not exist", "name server", "cannot reach the others",
    "127.0.1.1", "one host name", "one machine ID",
    "drops Ray's ports", "drops ephemeral ports", "one side only", "black hole", "clock",
    "Different images under one tag", "Different releases of Ray", "shared memory", "open files",
    "full disk", "Docker hangs", "default route", "is down", "stale Ray", "leftover container",
    "too old", "nouveau", "Unknown Error", "Xid", "Memory errors", "fell off the bus", "MIG",
    "no memory",
)  # fmt: skip


@dataclass(frozen=True)
class Message:
    """Literal parts of a string of the code, in order; anything may stand between."""

    parts: tuple[str, ...]

    def fits(self, text: str) -> bool:
        """`text` has all parts in order, and they are much of it."""
        if len("".join(self.parts)) < len(text) * 0.3:
            return False
        at = 0
        for part in self.parts:
            at = text.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return True


@cache
def messages() -> tuple[Message, ...]:
    in_code = (
        message
        for file in sorted((ROOT / "clusterctl").rglob("*.py"))
        for message in _of_file(file)
        if len("".join(message.parts)) > 12
    )
    in_logs = (Message((pattern.text,)) for rule in rules() for pattern in rule.seen)
    return (*in_code, *in_logs)


def _of_file(file: Path) -> Iterator[Message]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield Message(tuple(_parts(node)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Message(tuple(SLOT.split(node.value)))


def _parts(node: ast.JoinedStr) -> Iterator[str]:
    for value in node.values:
        text = value.value if isinstance(value, ast.Constant) else "{slot}"
        yield from SLOT.split(str(text))


@pytest.mark.parametrize("quotation", QUOTED)
def test_a_quotation_is_what_the_code_says(quotation: str) -> None:
    text = re.sub(r"^(note: )?(\w+: )?", "", quotation)
    assert any(message.fits(text) for message in messages()), quotation


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_entry(fault: str) -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert any(fault in heading for heading in headings)


def test_every_entry_begins_with_a_quotation() -> None:
    for entry in PAGE.read_text().split("\n### ")[1:]:
        heading, _, rest = entry.partition("\n")
        assert rest.strip().startswith("> "), heading


def test_words_that_the_code_does_not_say_are_found_out() -> None:
    assert not any(
        message.fits("the cat sat on interface eth0 and nobody minded") for message in messages()
    )
