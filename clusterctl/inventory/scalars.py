"""Values as YAML text: plain where that is safe and readable, else quoted."""

from __future__ import annotations

import json
import re

# No value that starts so is a number; a colon needs a blank after it to have a meaning.
_PLAIN = re.compile(r"[A-Za-z_/~](?:[\w./@~+-]|:(?=[\w/])| (?=[\w(]))*|\d+(?:\.\d+){3}(?:/\d+)?")

# What YAML 1.2, and the readers of YAML 1.1 that editors have, take for something else.
_WORDS = frozenset({"null", "true", "false", "~", "yes", "no", "on", "off", "y", "n"})


def scalar(value: str) -> str:
    """`value` as a block or flow scalar."""
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS and not value.endswith(" "):
        return value
    return json.dumps(value, ensure_ascii=False)
