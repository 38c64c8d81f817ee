"""A line of a log: its text without colours, and its time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache

LONGEST_LINE = 4000
"""Characters searched per line: progress bars and dumps of settings are longer."""

_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_RAW_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")
_TIME = re.compile(
    r"(?:\d{4}-)?(?P<month>\d\d)-(?P<day>\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)"
    r"|\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<date>\d{1,2}) "
    r"(?P<hours>\d\d:\d\d:\d\d)"
)
# What follows names what may have been, not what was.
_GUESSES = re.compile(
    r"(?:possible reasons|(?:root|common) causes?)[^:]{0,40}?(?:include|\.|:)", re.IGNORECASE
)
# How a line goes on that a terminal or its writer broke: no prefix, no capital letter, no command
_CONTINUES = re.compile(
    r"(?!(?:at|in|from|and then|root|self|return|raise) ?[\w@./(]*[@(:])[a-z(`'][^@$#={}]*$"
)
_IS_WHOLE = re.compile(r"[.!?:)\]}'\"]$")
_OPENS = re.compile(r"[{,]$")
_HALF_A_YEAR = timedelta(days=183)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


def plain(raw: bytes) -> str:
    """Return a line as text, truncated, without colours and other control characters."""
    return _ESCAPES.sub("", raw[: 4 * LONGEST_LINE].decode("utf-8", "replace"))[:LONGEST_LINE]


def without_escapes(raw: bytes) -> bytes:
    """Return lines without colours and other control characters."""
    return _RAW_ESCAPES.sub(b"", raw) if b"\x1b" in raw or b"\x00" in raw else raw


def goes_on(text: str, more: str) -> bool:
    """Whether a line goes on with a message that a terminal or its writer broke, or that holds a
    record of several lines, such as JSON."""
    if text.count("{") > text.count("}") and _OPENS.search(text):
        return True
    return _CONTINUES.match(more) is not None and not _IS_WHOLE.search(text)


def without_guesses(text: str) -> str:
    """Return a line without its guesses at the cause."""
    guesses = _GUESSES.search(text)
    return text[: guesses.end()] if guesses else text


def when(stamp: str) -> datetime:
    """Return the time of a line, in a year that has all days, since logs have none. Raises
    ValueError if there is none."""
    return datetime.strptime(f"2024-{stamp}", "%Y-%m-%d %H:%M:%S")


def time_of(before: Sequence[bytes]) -> str:
    """Return the time of the last line that has one."""
    return next(filter(None, (_time_in(raw[:200]) for raw in reversed(before))), "")


def first_within(lines: Sequence[bytes], span: timedelta) -> int:
    """Return the index of the first line in the last `span` of a log; 0 without times."""
    last = None
    for at in range(len(lines) - 1, -1, -1):
        with suppress(ValueError):
            written = when(time_of(lines[at : at + 1]))
            last = last or written
            passed = last - written
            if passed > span or passed < -_HALF_A_YEAR:
                return at + 1
    return 0


def last_silence(lines: Sequence[bytes]) -> tuple[int, timedelta]:
    """Return the index of the last line but one that has a time, and how long nothing was written
    after it; 0 and nothing if the lines do not tell."""
    timed = [(at, _time_in(raw[:200])) for at, raw in enumerate(lines)]
    timed = [(at, stamp) for at, stamp in timed if stamp]
    with suppress(ValueError):
        (at, begins), (_, ends) = timed[-2:]
        return at, when(ends) - when(begins)
    return 0, timedelta()


@lru_cache(maxsize=600)  # the same lines stand before many
def _time_in(raw: bytes) -> str:
    match = _TIME.search(plain(raw))
    if match is None:
        return ""
    if match["name"]:
        month = _MONTHS.index(match["name"]) // 3 + 1
        return f"{month:02}-{int(match['date']):02} {match['hours']}"
    return f"{match['month']}-{match['day']} {match['clock']}"
