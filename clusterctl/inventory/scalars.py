"""Writes values as YAML: plain if that is safe and readable, otherwise quoted."""

from __future__ import annotations

import json
import re

# Nothing that starts like this is a number, and a colon only matters before a space.
_PLAIN = re.compile(r"[A-Za-z_/~](?:[\w./@~+-]|:(?=[\w/])| (?=[\w(]))*|\d+(?:\.\d+){3}(?:/\d+)?")

# What YAML 1.2, and editors that still read YAML 1.1, do not take for text.
_WORDS = frozenset({"null", "true", "false", "~", "yes", "no", "on", "off", "y", "n"})


def scalar(value: str) -> str:
    """Return `value` as a block or flow scalar."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not value.endswith(" "):
        return value
    return json.dumps(value, ensure_ascii=False)
