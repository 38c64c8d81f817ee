"""A YAML file as plain data, with the position of each part in the file.

The file is parsed with YAML 1.2's core schema, as in editors: `on`, `yes` and `12:30` are text, and
010 is not octal. A duplicate key is an error; PyYAML alone would take the last one.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clusterctl.errors import ClusterctlError, InventoryError

# Bytes; enough for 2000 hosts without anchors. PyYAML reads about 250 KiB/s.
LARGEST_FILE = 512 * 1024
# Limit of values after resolving aliases: nested aliases can expand to billions.
MOST_VALUES = 100_000
DEEPEST = 20  # Levels; an inventory has 5

_CORE = "tag:yaml.org,2002:"
_MERGE = _CORE + "merge"


@dataclass(frozen=True)
class FileKind:
    """What a file is, for messages about it."""

    name: str
    error: type[ClusterctlError]
    which: str  # How the user names another file
    again: str  # How the user tries an edited file, `{path}`
    page: str  # Of the documentation


INVENTORY = FileKind(
    "the inventory",
    InventoryError,
    "name the file: clusterctl -i FILE ...   (how to write one: docs/inventory.md)",
    "edit it, then: clusterctl check {path}   (every key: docs/inventory.md)",
    "docs/inventory.md",
)

# Path of keys and indexes to a value: ("hosts", "gpu1", "gpus", 0).
Trail = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Position:
    """Line and column as editors count them, from 1."""

    line: int = 1
    column: int = 1


@dataclass(frozen=True, order=True)
class Problem:
    """A problem at one position in the file, in a sentence for the user."""

    position: Position
    text: str


@dataclass
class Document:
    """The content of a file. `data` consists of dictionaries with text keys, lists, and plain
    values, but never None. Trails of merged (`<<`) and aliased values have the positions of their
    originals."""

    data: object = None
    keys: dict[Trail, Position] = field(default_factory=dict)
    values: dict[Trail, Position] = field(default_factory=dict)
    # Original text of numbers and booleans: 1.10, not 1.1.
    texts: dict[Trail, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def at(self, trail: Trail) -> Position:
        """Return the position of the value, or of the nearest part of the file around it."""
        return self._nearest(self.values, trail)

    def at_key(self, trail: Trail) -> Position:
        """Return the position of the value's key, or of the nearest key around it."""
        return self._nearest(self.keys, trail)

    def report(self, position: Position, text: str) -> None:
        """Record a problem; duplicates, found through two aliases, are ignored."""
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


def read(path: Path, kind: FileKind = INVENTORY) -> Document:
    """Read a YAML file as plain data with positions. Problems with single values are in the
    document.

    Raises the kind's error if the file cannot be read, is not UTF-8 or YAML, or is empty.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a file"
            raise kind.error(f"{kind.name} {path} is {what}", hint=kind.which)
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise kind.error(f"{kind.name} {path} cannot be read: {reason}", hint=kind.which) from error
    if len(content) > LARGEST_FILE:
        raise kind.error(
            f"{kind.name} {path} is larger than {LARGEST_FILE // 1024} KiB",
            hint=f"use anchors and `<<` for what many entries share: {kind.page}",
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = _after(content[: error.start].decode("utf-8-sig"))
        problem = Problem(where, "not UTF-8 text; save the file as UTF-8")
        raise file_error(kind, path, [problem]) from None
    builder = _Builder()
    document = builder.document
    try:
        root = yaml.compose(text, Loader=_CoreLoader)
        if root is not None:
            document.data = builder.value(root, ())
    except yaml.YAMLError as error:
        raise file_error(kind, path, [_from_yaml(error, text)]) from None
    except RecursionError:
        raise file_error(
            kind, path, [Problem(Position(), "values are nested too deeply")]
        ) from None
    except (ValueError, OverflowError) as error:
        problem = Problem(Position(), f"an invalid number or escape: {error}")
        raise file_error(kind, path, [problem]) from None
    except _TooMany as error:
        problem = Problem(error.args[0], "aliases expand to too many values")
        raise file_error(kind, path, [problem]) from None
    if document.data is None and not document.problems:
        raise file_error(kind, path, [Problem(Position(), "the file is empty")])
    return document


def file_error(kind: FileKind, path: Path, problems: Iterable[Problem]) -> ClusterctlError:
    """Return an error with a line for each problem, in the order of the file."""
    lines = [f"{path}:{p.position.line}:{p.position.column}: {p.text}" for p in sorted(problems)]
    count = "a problem" if len(lines) == 1 else f"{len(lines)} problems"
    return kind.error(
        f"{kind.name} {path} has {count}",
        detail="\n".join(lines),
        hint=kind.again.format(path=path),
    )


def _after(text: str) -> Position:
    """Return the position of the character after `text`."""
    return Position(text.count("\n") + 1, len(text) - text.rfind("\n"))


class _CoreLoader(yaml.SafeLoader):
    """The YAML 1.2 core schema: which plain scalars are null, booleans and numbers.

    Numbers with leading zeros stay text: parsers disagree on whether 010 is 8 or 10.
    """

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (declared so by PyYAML)


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _CoreLoader.add_implicit_resolver(_CORE + _tag, re.compile(rf"^(?:{_pattern})\Z"), _first)


# PyYAML's messages, as patterns, and what users of an inventory read instead. {line} is the line on
# which the construct being parsed began.
_YAML = (
    (r"found character '\\t'", "a tab; YAML indents with spaces only"),
    (r"found character '(.+)' that cannot start", "text that starts with {0} needs quotes"),
    (
        r"mapping values are not allowed",
        "no `:` is allowed here; text with `: ` needs quotes, or the line above lacks its `:`",
    ),
    (r"found unknown escape character '(.+)'", "there is no escape \\{0}; single quotes need none"),
    (r"expected <block end>, but found '<scalar>'", "more text after the value; quote all of it"),
    (r"found '<stream end>'", "the file ends where a value is missing"),
    (r"while scanning an (?:alias|anchor)", "text that starts with * or & needs quotes"),
    (r"while (?:scanning|parsing) a tag", "text that starts with ! needs quotes"),
    (r"expected '<document start>'", "this line is indented less than the first key of the file"),
    (r"sequence entries are not allowed", "no `- ` is allowed here; a list begins on its own line"),
    (r"could not find expected ':'", "a key without its `:`"),
    (r"found unexpected end of stream", "the quote opened on line {line} is never closed"),
    (r"found undefined alias '?(.+?)'?$", "*{0} is used, but no &{0} is above it"),
    (r"found duplicate anchor '?(.+?)'?; ", "&{0} is defined twice"),
    (r"but found another document", "a second document; one file holds one inventory (no `---`)"),
    (r"expected ',' or '([\]}])'", "a missing comma or closing {0}, opened on line {line}"),
    (r"expected <block end>", "this line is indented unlike line {line}, where its block begins"),
    (
        r"expected the node content, but found '(.+)'",
        "a value is missing before {0}, or needs quotes",
    ),
)


def _from_yaml(error: yaml.YAMLError, text: str) -> Problem:
    """Reword the parser's message, or keep it if it is unknown, and convert its marks."""
    if isinstance(error, yaml.reader.ReaderError):
        where = _after(text[: error.position])
        return Problem(where, f"YAML does not allow the character {text[error.position]!r}")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(Position(), f"not YAML: {error}")
    position = _at(error.problem_mark or error.context_mark)
    begun = error.context_mark.line + 1 if error.context_mark else 0
    problem, context = error.problem or "", error.context or ""
    for pattern, words in _YAML:
        match = re.search(pattern, problem) or re.search(pattern, context)
        if match:
            return Problem(position, words.format(*match.groups(), line=begun))
    return Problem(position, " ".join(filter(None, ("not YAML:", context, problem))))


def _at(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1) if mark else Position()


class _TooMany(Exception):
    """Aliases expand to too many values; the argument is the position of the first one too many."""


class _Builder:
    """Builds plain data from YAML nodes, and records their positions."""

    def __init__(self) -> None:
        self.document = Document()
        self._left = MOST_VALUES

    def value(self, node: yaml.Node, trail: Trail) -> object:
        self.document.values[trail] = self._count(node)
        if len(trail) > DEEPEST:
            return self._refuse(node, f"nested deeper than {DEEPEST} levels")
        if isinstance(node, yaml.SequenceNode):
            items = (self.value(item, (*trail, i)) for i, item in enumerate(node.value))
            return [self._present(item, (*trail, i)) for i, item in enumerate(items)]
        if not isinstance(node, yaml.MappingNode):
            return self._scalar(node, trail)
        result: dict[str, object] = {}
        for name, (key, value) in self._pairs(node, 0).items():
            inner = (*trail, name)
            self.document.keys[inner] = _at(key.start_mark)
            item = self._present(self.value(value, inner), inner)
            if item is not None:
                result[name] = item
        return result

    def _count(self, node: yaml.Node) -> Position:
        position = _at(node.start_mark)
        self._left -= 1
        if self._left < 0:
            raise _TooMany(position)
        return position

    def _present(self, value: object, trail: Trail) -> object:
        """Report a null: the key's value was forgotten or commented out."""
        position = self.document.values[trail]
        if value is None and not any(p.position == position for p in self.document.problems):
            where = self.document.keys.get(trail, position)
            name = f"`{trail[-1]}`" if isinstance(trail[-1], str) else "this item"
            self.document.report(where, f"{name} has no value; give it one or remove it")
        return value

    def _pairs(self, node: yaml.Node, depth: int) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return keys with their nodes. Keys merged by `<<` come last and never replace others."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            position = self._count(key)
            if not isinstance(key, yaml.ScalarNode):
                self.document.report(position, "a key must be text; a text with `{` needs quotes")
            elif key.value in own or (merged and key.tag == _MERGE):
                other = own.get(key.value)
                first = f", first on line {other[0].start_mark.line + 1}" if other else ""
                self.document.report(position, f"`{key.value}` is given twice{first}")
            elif key.tag == _MERGE:
                merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            else:
                own[key.value] = (key, value)
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                self._refuse(source, "`<<` needs a mapping: <<: *name")
            elif depth >= DEEPEST:
                self._refuse(source, "`<<` leads back to itself")
            else:
                own = {**self._pairs(source, depth + 1), **own}
        return own

    def _scalar(self, node: yaml.Node, trail: Trail) -> object:
        text, kind = str(node.value), node.tag.removeprefix(_CORE)
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            return self._refuse(node, "the text contains an invalid character")
        if kind in {"str", "!"}:
            return text
        if kind not in _PLAIN:
            tag = f"!!{kind}" if node.tag.startswith(_CORE) else node.tag
            return self._refuse(node, f"the tag {tag} is not supported")
        self.document.texts[trail] = text
        try:
            return _PLAIN[kind](text)
        except (ValueError, KeyError):
            short = text if len(text) <= 40 else text[:40] + "..."
            return self._refuse(node, f"{short} is not a value of type {kind}")

    def _refuse(self, node: yaml.Node, text: str) -> object:
        """Report an unusable value, and return None for it."""
        self.document.report(_at(node.start_mark), text)
        return None


_PLAIN: dict[str, Any] = {
    "null": lambda _: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": lambda text: int(text, 0),
    "float": lambda text: float(re.sub(r"\.(inf|nan)$", r"\1", text.lower())),
}

# Text with such a beginning is never a number, and a colon is special only before a space.
_UNQUOTED = re.compile(r"[A-Za-z_/~](?:[\w./@~+-]|:(?=[\w/])| (?=[\w(]))*|\d+(?:\.\d+){3}(?:/\d+)?")

# Words that YAML 1.2, or editors that still use YAML 1.1, do not read as text.
_WORDS = frozenset({"null", "true", "false", "~", "yes", "no", "on", "off", "y", "n"})


def scalar(value: str) -> str:
    """Return `value` as a YAML scalar: plain if that is safe and readable, otherwise quoted."""
    if _UNQUOTED.fullmatch(value) and value.lower() not in _WORDS and not value.endswith(" "):
        return value
    return json.dumps(value, ensure_ascii=False)
