"""Reword the messages of PyYAML and pydantic for users of the inventory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from clusterctl.inventory.values import PATTERN_MEANS, did_you_mean

_YAML = (
    (r"found character '\\t'", "a tab; YAML indents with spaces only"),
    (r"found character '(.+)' that cannot start", "text that starts with {0} needs quotes"),
    (
        r"mapping values are not allowed",
        "no `:` can stand here; text with `: ` needs quotes, or the line above lacks its `:`",
    ),
    (r"found unknown escape character '(.+)'", "no escape \\{0} exists; single quotes need none"),
    (r"expected <block end>, but found '<scalar>'", "more text after the value; quote all of it"),
    (r"found '<stream end>'", "the file ends where a value is missing"),
    (r"while scanning an (?:alias|anchor)", "text that starts with * or & needs quotes"),
    (r"while (?:scanning|parsing) a tag", "text that starts with ! needs quotes"),
    (r"expected '<document start>'", "this line is indented less than the first key of the file"),
    (r"sequence entries are not allowed", "no `- ` can stand here; a list begins on its own line"),
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


def yaml_problem(problem: str, context: str, begun: int) -> str:
    """Reword a problem that PyYAML found, or return its own message if it is not known.

    `begun` is the line on which the construct being parsed began.
    """
    for pattern, words in _YAML:
        match = re.search(pattern, problem) or re.search(pattern, context)
        if match:
            return words.format(*match.groups(), line=begun)
    return " ".join(part for part in ("not YAML:", context, problem) if part)


_EXPECTED = {
    "string_type": "text",
    "path_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "dict_type": "a mapping (key: value)",
    "list_type": "a list",
    "tuple_type": "a list",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
}


def value_problem(error: Mapping[str, Any], written: str) -> str:
    """Describe the problem of a value, without the key's name: `must be text, not 22`."""
    kind, details = str(error["type"]), error.get("ctx", {})
    if expected := _EXPECTED.get(kind):
        return f"must be {expected}, not {written}{_advice(expected, error['input'], written)}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"must be {words} {details[key]:g}, not {written}"
    if kind == "string_pattern_mismatch":
        means = PATTERN_MEANS.get(details["pattern"], "has the wrong format")
        return f"{means}; not {written}"
    if kind == "literal_error":
        choices = tuple(re.findall(r"'([^']*)'", details["expected"]))
        near = did_you_mean(str(error["input"]), choices)
        return f"must be {' or '.join(choices)}, not {written}{near}"
    if kind == "value_error":
        return str(details["error"])
    return _SIMPLE.get(kind, f"is not usable: {written}")


_SIMPLE = {
    "missing": "is missing",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


def _advice(expected: str, value: object, written: str) -> str:
    """Return how to write the value that was probably meant."""
    if expected == "text" and isinstance(value, int | float):
        return f'; put it in quotes: "{written}"'
    if expected == "a whole number" and isinstance(value, str) and value.isascii():
        digits = value.strip().lstrip("0")
        return f"; write {digits} without quotes" if digits.isdigit() else ""
    return ""


def shown(value: object, text: str | None) -> str:
    """Return a value as the user wrote it, shortened."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return f'"{value[:60]}..."' if len(value) > 60 else f'"{value}"'
    return text or str(value)
