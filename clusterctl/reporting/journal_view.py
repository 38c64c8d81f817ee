"""The supervisors' journals as lines for people: when, where, what."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any


def journal_line(host: str, line: str) -> str:
    """One entry of `host`'s journal; what is no entry is passed on as it is."""
    entry = _entry(line)
    if entry is None:
        return f"{host}  {line}"
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(float(entry.get("time", 0))))
    words = [str(entry.get(key, "")) for key in ("subject", "event", "text")]
    return f"{when}  {host}  {words[0]}: {' '.join(filter(None, words[1:]))}"


def by_time(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Entries of several hosts in one order; lines that are no entries come first."""
    return sorted(lines, key=lambda pair: float((_entry(pair[1]) or {}).get("time", 0)))


def _entry(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
