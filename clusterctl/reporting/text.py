"""Text formats that all views share: sizes, times, tables of plain columns."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterable, Sequence
from typing import IO

from clusterctl.reporting.escaping import one_line

_STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_LEAST_ROOM = 16  # Least characters for a wrapped column: room for a few words


def size(count: float) -> str:
    """Format bytes: `23.7 GiB`."""
    for factor, unit in _STEPS:
        if count >= factor:
            value = count / factor
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Format seconds: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 4 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def moment(seconds: float) -> str:
    """Format Unix seconds in local time: `2026-11-22 18:00`; `?` for one out of range."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
    except (ValueError, OverflowError, OSError):
        return "?"


def clock(seconds: float) -> str:
    """Format Unix seconds in local time: `18:00:05`."""
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def count(number: int, noun: str) -> str:
    """Format a number with its noun: `1 host`, `2 hosts`, `0 changes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def line_width(stream: IO[str]) -> int | None:
    """Return the characters in a line of the terminal; None without a terminal, or if unknown."""
    return (stream.isatty() and os.get_terminal_size(stream.fileno()).columns) or None


def columns(
    rows: Sequence[Sequence[str]], *, indent: str = "  ", width: int | None = None
) -> list[str]:
    """Format rows with cells padded to the widest in each column; no trailing blanks. If that
    exceeds `width` characters, the last cell wraps inside its column."""
    if not rows:
        return []
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(max(map(len, rows)) - 1)]
    lines = []
    for row in rows:
        padded = [cell.ljust(most) for cell, most in zip(row[:-1], widths, strict=False)]
        lines += below_itself(indent + "  ".join([*padded, ""]), row[-1], width)
    return lines


def each_below_itself(lead: str, texts: Iterable[str], width: int | None) -> list[str]:
    """Format every text after `lead`, each wrapped by `below_itself`."""
    return [line for text in texts for line in below_itself(lead, text, width)]


def below_itself(lead: str, text: str, width: int | None) -> list[str]:
    """Return `lead` and `text`, wrapped at `width` characters inside the column where `text`
    begins. Words are not broken. Without `width`, or with too little room, the line is not
    wrapped."""
    text = one_line(text)
    room = width - len(lead) if width else 0
    if len(text) <= room or room < _LEAST_ROOM:
        return [(lead + text).rstrip()]
    first, *rest = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [lead + first, *(" " * len(lead) + part for part in rest)]
