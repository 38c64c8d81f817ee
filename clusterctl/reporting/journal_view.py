"""The supervisors' journals as lines for the user: time, host, event."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any


def journal_line(host: str, line: str) -> str:
    """Format one journal entry of `host`; a line that is not an entry is passed on unchanged."""
    entry = _entry(line)
    if entry is None:
        return f"{host}  {line}"
    when = time.strftime("%m-%d %H:%M:%S", time.localtime(float(entry.get("time", 0))))
    words = [str(entry.get(key, "")) for key in ("subject", "event", "text")]
    return f"{when}  {host}  {words[0]}: {' '.join(filter(None, words[1:]))}"


def by_time(lines: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sort entries of several hosts by time; lines that are not entries come first."""
    return sorted(lines, key=lambda pair: float((_entry(pair[1]) or {}).get("time", 0)))


def _entry(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
