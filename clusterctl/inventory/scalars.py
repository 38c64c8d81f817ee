"""Write values as YAML: plain if that is safe and readable, otherwise quoted."""

from __future__ import annotations

import json
import re

# Text with such a beginning is never a number, and a colon is special only before a space.
_PLAIN = re.compile(r"[A-Za-z_/~](?:[\w./@~+-]|:(?=[\w/])| (?=[\w(]))*|\d+(?:\.\d+){3}(?:/\d+)?")

# Words that YAML 1.2, or editors that still use YAML 1.1, do not read as text.
_WORDS = frozenset({"null", "true", "false", "~", "yes", "no", "on", "off", "y", "n"})


def scalar(value: str) -> str:
    """Return `value` as a block or flow scalar."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not value.endswith(" "):
        return value
    return json.dumps(value, ensure_ascii=False)
