"""Load an `Inventory` from a YAML file, or report every problem of the file with its position.

The file is parsed with YAML 1.2's core schema, as in editors: `on`, `yes` and `12:30` are text, and
010 is not octal. A duplicate key is an error, where PyYAML alone would take the last one.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import yaml

from clusterctl.errors import InventoryError
from clusterctl.inventory.checks import check
from clusterctl.inventory.document import Document, Position, Problem, Trail
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.shape import validate
from clusterctl.inventory.wording import yaml_problem

# Bytes; enough for 2000 hosts without anchors. PyYAML reads about 250 KiB/s.
LARGEST_FILE = 512 * 1024
# Limit of values after resolving aliases: nested aliases can expand to billions.
MOST_VALUES = 100_000
DEEPEST = 20  # Levels; an inventory has 5

_CORE = "tag:yaml.org,2002:"
_MERGE = _CORE + "merge"


def load(path: Path) -> Inventory:
    """Load the inventory in `path`, with its defaults merged into every host.

    Raises InventoryError with every problem found; `detail` has `file:line:column: text` lines.
    """
    document = read(path)
    inventory = None
    if isinstance(document.data, dict):
        check(document)
        inventory = validate(document, path)
    elif not document.problems:
        document.report(document.at(()), "an inventory is a mapping: cluster, image, hosts")
    if document.problems or inventory is None:
        raise _error(path, document.problems)
    return inventory


def read(path: Path) -> Document:
    """Read a YAML file as plain data with positions. Problems of single values are in the document.

    Raises InventoryError if the file cannot be read, is not YAML, or is empty.
    """
    text = _text(path)
    try:
        document = _Builder().document(yaml.compose(text, Loader=_CoreLoader))
    except yaml.YAMLError as error:
        raise _error(path, [_from_yaml(error, text)]) from None
    except RecursionError:
        raise _error(path, [Problem(Position(), "values are nested too deeply")]) from None
    except (ValueError, OverflowError) as error:
        problem = Problem(Position(), f"an invalid number or escape: {error}")
        raise _error(path, [problem]) from None
    except _TooMany as error:
        raise _error(path, [Problem(error.position, "aliases expand to too many values")]) from None
    if document.data is None and not document.problems:
        raise _error(path, [Problem(Position(), "the file is empty")])
    return document


def _error(path: Path, problems: list[Problem]) -> InventoryError:
    """Return an error with a line for each problem, in the order of the file."""
    lines = [f"{path}:{p.position.line}:{p.position.column}: {p.text}" for p in sorted(problems)]
    count = "a problem" if len(lines) == 1 else f"{len(lines)} problems"
    return InventoryError(
        f"the inventory {path} has {count}",
        detail="\n".join(lines),
        hint=f"edit it, then: clusterctl check {path}   (every key: docs/inventory.md)",
    )


def _text(path: Path) -> str:
    """Read the file's text. Raises InventoryError if it cannot be read or is not UTF-8."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "not a file"
            raise InventoryError(f"the inventory {path} is {what}", hint=_NAME_A_FILE)
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InventoryError(
            f"the inventory {path} cannot be read: {reason}", hint=_NAME_A_FILE
        ) from error
    if len(content) > LARGEST_FILE:
        raise InventoryError(
            f"the inventory {path} is larger than {LARGEST_FILE // 1024} KiB",
            hint="use anchors and `<<` for what many hosts share: docs/inventory.md",
        )
    return _decoded(path, content)


_NAME_A_FILE = "name the file: clusterctl -i FILE ...   (how to write one: docs/inventory.md)"


def _decoded(path: Path, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        position = _after(content[: error.start].decode("utf-8-sig"))
        raise _error(path, [Problem(position, "not UTF-8 text; save the file as UTF-8")]) from None


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


def _from_yaml(error: yaml.YAMLError, text: str) -> Problem:
    """Convert the parser's message and marks to a problem."""
    if isinstance(error, yaml.reader.ReaderError):
        where = _after(text[: error.position])
        return Problem(where, f"YAML does not allow the character {text[error.position]!r}")
    if not isinstance(error, yaml.MarkedYAMLError):
        return Problem(Position(), f"not YAML: {error}")
    mark = error.problem_mark or error.context_mark
    begun = error.context_mark.line + 1 if error.context_mark else 0
    return Problem(_at(mark), yaml_problem(error.problem or "", error.context or "", begun))


def _at(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1) if mark else Position()


class _TooMany(Exception):
    def __init__(self, position: Position) -> None:
        super().__init__()
        self.position = position


class _Builder:
    """Builds plain data from YAML nodes, and records their positions."""

    def __init__(self) -> None:
        self._document = Document()
        self._left = MOST_VALUES

    def document(self, root: yaml.Node | None) -> Document:
        if root is not None:
            self._document.data = self._value(root, ())
        return self._document

    def _value(self, node: yaml.Node, trail: Trail) -> object:
        self._document.values[trail] = self._count(node)
        if len(trail) > DEEPEST:
            return self._refuse(node, f"nested deeper than {DEEPEST} levels")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, trail)
        if isinstance(node, yaml.SequenceNode):
            items = (self._value(item, (*trail, i)) for i, item in enumerate(node.value))
            return [self._present(item, (*trail, i)) for i, item in enumerate(items)]
        return self._scalar(node, trail)

    def _count(self, node: yaml.Node) -> Position:
        position = _at(node.start_mark)
        self._left -= 1
        if self._left < 0:
            raise _TooMany(position)
        return position

    def _mapping(self, node: yaml.MappingNode, trail: Trail) -> dict[str, object]:
        result: dict[str, object] = {}
        for name, (key, value) in self._pairs(node, 0).items():
            inner = (*trail, name)
            self._document.keys[inner] = _at(key.start_mark)
            item = self._present(self._value(value, inner), inner)
            if item is not None:
                result[name] = item
        return result

    def _present(self, value: object, trail: Trail) -> object:
        """Report a null, which means a key whose value was forgotten or commented out."""
        position = self._document.values[trail]
        if value is None and not any(p.position == position for p in self._document.problems):
            where = self._document.keys.get(trail, position)
            name = f"`{trail[-1]}`" if isinstance(trail[-1], str) else "this item"
            self._document.report(where, f"{name} has no value; give it one or remove it")
        return value

    def _pairs(self, node: yaml.Node, depth: int) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        """Return keys with their nodes. Keys merged by `<<` come last and never replace others."""
        own: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            position = self._count(key)
            if not isinstance(key, yaml.ScalarNode):
                self._document.report(position, "a key must be text; a text with `{` needs quotes")
            elif key.value in own or (merged and key.tag == _MERGE):
                self._document.report(position, self._twice(key.value, own))
            elif key.tag == _MERGE:
                merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            else:
                own[key.value] = (key, value)
        return self._with_merged(own, merged, depth)

    def _twice(self, name: str, own: dict[str, tuple[yaml.Node, yaml.Node]]) -> str:
        first = f", first on line {own[name][0].start_mark.line + 1}" if name in own else ""
        return f"`{name}` is given twice{first}"

    def _with_merged(
        self, own: dict[str, tuple[yaml.Node, yaml.Node]], merged: list[yaml.Node], depth: int
    ) -> dict[str, tuple[yaml.Node, yaml.Node]]:
        for source in merged:
            if not isinstance(source, yaml.MappingNode):
                self._document.report(_at(source.start_mark), "`<<` needs a mapping: <<: *name")
            elif depth >= DEEPEST:
                self._document.report(_at(source.start_mark), "`<<` leads back to itself")
            else:
                own = {**self._pairs(source, depth + 1), **own}
        return own

    def _scalar(self, node: yaml.Node, trail: Trail) -> object:
        text, kind = str(node.value), node.tag.removeprefix(_CORE)
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            return self._refuse(node, "the text contains an invalid character")
        if kind in {"str", "!"}:
            return text
        if kind in {"null", "bool", "int", "float"}:
            self._document.texts[trail] = text
            return self._plain(kind, text, node)
        tag = f"!!{kind}" if node.tag.startswith(_CORE) else node.tag
        return self._refuse(node, f"the tag {tag} is not supported")

    def _plain(self, kind: str, text: str, node: yaml.Node) -> object:
        try:
            return _PLAIN[kind](text)
        except (ValueError, KeyError):
            shown = text if len(text) <= 40 else text[:40] + "..."
            return self._refuse(node, f"{shown} is not a value of type {kind}")

    def _refuse(self, node: yaml.Node, text: str) -> object:
        """Report a value that cannot be used, and return None for it."""
        self._document.report(_at(node.start_mark), text)
        return None


_PLAIN: dict[str, Any] = {
    "null": lambda _: None,
    "bool": lambda text: {"true": True, "false": False}[text.lower()],
    "int": lambda text: int(text, 0),
    "float": lambda text: float(re.sub(r"\.(inf|nan)$", r"\1", text.lower())),
}
