"""Make text from hosts safe to print: terminals interpret control characters, so the author of a
log line or a GPU's name could clear the screen, fill the clipboard or forge a line.

Every stream that the program prints to is an `Escaping`, so that no command can forget it; views
pass text that belongs on one line through `one_line`.

JSON documents need neither: they are ASCII.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO, Any

MOST_SHOWN = 4000  # Characters of one line
MOST_LINES = 200  # Lines of a quoted output

# Colours, which programs also write to logs. Without them the text is readable and as long.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


class _Shown(dict[int, str]):
    """What is printed for each character, by its code point; filled as characters come up."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if not (character.isprintable() or unicodedata.category(character) == "Zs"):
            character = character.encode("unicode_escape").decode()
        self[code] = character
        return character


_SHOWN = _Shown({ord(kept): kept for kept in "\n\t"})


def escaped(text: str) -> str:
    """Return the text with its newlines and tabs, without colours, and with `\\x1b` or `\\u202e`
    for each character that a terminal would obey or not show: control characters, bidirectional and
    other formatting, unassigned ones."""
    return _COLOURS.sub("", text).translate(_SHOWN)


def one_line(text: str, most: int = MOST_SHOWN) -> str:
    """Return `escaped` text on one line of at most `most` characters, followed by how many more
    there are."""
    more = len(text) - most
    if more > 0:
        text = f"{text[:most]} ... ({more} more characters)"
    return escaped(text.strip("\r\n")).replace("\n", "\\n").replace("\t", " ")


def quoted(text: str) -> Iterator[str]:
    """Yield the lines of a program's output, limited in number and length; the last says how many
    more there are."""
    lines = text.rstrip().splitlines()
    yield from map(one_line, islice(lines, MOST_LINES))
    if more := len(lines[MOST_LINES:]):
        yield f"... ({more} more lines; --json has them all)"


class Escaping:
    """A text stream that escapes everything written to it. `beneath` is for a writer that emits its
    own control sequences, and escapes what it prints."""

    def __init__(self, beneath: Any) -> None:
        self.beneath = beneath

    def write(self, text: str) -> int:
        self.beneath.write(escaped(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.beneath, name)


def drawing_on(stream: IO[str]) -> IO[str]:
    """Return the stream to which rich may write its control sequences."""
    return stream.beneath if isinstance(stream, Escaping) else stream
