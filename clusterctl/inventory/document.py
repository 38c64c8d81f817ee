"""A configuration file as plain data, with the position of each part in the file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# Path of keys and indexes to a value: ("hosts", "gpu1", "gpus", 0).
Trail = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Position:
    """Line and column as editors count them, from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, order=True)
class Problem:
    """A problem at one position of the file, in a sentence for the user."""

    position: Position
    text: str


@dataclass
class Document:
    """The content of a file. `data` consists of dictionaries with text keys, lists, and plain
    values, but never None. Trails of merged (`<<`) and aliased values have the positions where
    those are written."""

    data: object = None
    keys: dict[Trail, Position] = field(default_factory=dict)
    values: dict[Trail, Position] = field(default_factory=dict)
    # Original text of numbers and booleans: 1.10, not 1.1.
    texts: dict[Trail, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def at(self, trail: Trail) -> Position:
        """Return the position of the value, or of the nearest part of the file that contains it."""
        return self._nearest(self.values, trail)

    def at_key(self, trail: Trail) -> Position:
        """Return the position of the value's key, or of the nearest key that contains it."""
        return self._nearest(self.keys, trail)

    def report(self, position: Position, text: str) -> None:
        """Record a problem; a duplicate, found through two aliases, is ignored."""
        problem = Problem(position, text)
        if problem not in self.problems:
            self.problems.append(problem)

    @staticmethod
    def _nearest(positions: dict[Trail, Position], trail: Trail) -> Position:
        for length in range(len(trail), -1, -1):
            if found := positions.get(trail[:length]):
                return found
        return Position()


def dotted(trail: Iterable[str | int]) -> str:
    """Return a trail as `hosts.gpu1.gpus[0].memory`."""
    text = ""
    for part in trail:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
