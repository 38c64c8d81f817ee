"""Split a probe's answer into its sections, and the files in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from clusterctl.errors import MALFORMED
from clusterctl.facts.claims import checked

T = TypeVar("T")
P = ParamSpec("P")

Files = Mapping[str, Sequence[str]]  # Lines by path

TIMED_OUT = 124  # Exit status of `timeout` when it had to end its command


@dataclass(frozen=True)
class Section:
    name: str
    argument: str  # The rest of the marker's line: a path, an exit status
    body: str

    @property
    def status(self) -> int:
        """The exit status that follows the section's name. Raises ValueError."""
        return int(self.argument)

    @property
    def lines(self) -> list[str]:
        return [line for line in self.body.split("\n") if line.strip()]


@dataclass(frozen=True)
class Answer:
    """All sections of one probe, in order, and what could not be parsed."""

    sections: tuple[Section, ...]
    unknown: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return bool(self.sections) and self.sections[-1].name == "end"

    def all(self, name: str) -> tuple[Section, ...]:
        return tuple(section for section in self.sections if section.name == name)

    def find(self, name: str) -> Section | None:
        return next(iter(self.all(name)), None)

    def lines(self, name: str) -> list[str]:
        """Lines of the section; an empty list if it is missing."""
        section = self.find(name)
        return section.lines if section else []

    def read(self, what: str, default: T, parse: Callable[P, T], *a: P.args, **k: P.kwargs) -> T:
        """Return the result of `parse(*a, **k)`. If it fails to parse, note that in `unknown` and
        return `default`."""
        try:
            return checked(parse(*a, **k))
        except MALFORMED as error:
            self.unknown.append(f"{what} could not be read: {type(error).__name__}: {error}")
            return default


def split_sections(text: str, marker: str) -> Answer:
    """Split `text` at the lines that start with `marker`; text before the first, such as output of
    the shell's start-up files, is dropped."""
    sections = []
    for part in f"\n{text}".split(f"\n{marker} ")[1:]:
        head, _, body = part.partition("\n")
        name, _, argument = head.partition(" ")
        sections.append(Section(name, argument, body))
    return Answer(tuple(sections))


# grep's `path:line`; of the requested paths, only those of PCI devices contain colons
_NAMED_LINE = re.compile(r"(/sys/bus/pci/(?:devices|drivers/nvidia)/[^/]*/[a-z_/]+|/[^:]*):(.*)")


def files_in(answer: Answer) -> dict[str, list[str]]:
    """Return each file's lines by path."""
    files: dict[str, list[str]] = {}
    for line in (*answer.lines("files"), *answer.lines("lines")):
        if match := _NAMED_LINE.fullmatch(line):
            files.setdefault(match[1], []).append(match[2])
    return files


def first_line(files: Files, *paths: str) -> str:
    """Return the first line of the first of `paths` that has one, else ""."""
    return next((files[path][0].strip() for path in paths if files.get(path)), "")
