"""A failure that is recognised by its words in a log."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    """One failure by its words."""

    id: str
    pattern: re.Pattern[str]
    cause: str  # One sentence
    fix: str
    # Only says that something failed earlier; counts when nothing else is found
    wrapper: bool = False


def signature(
    name: str,
    pattern: str,
    cause: str,
    fix: str,
    *,
    wrapper: bool = False,
) -> Signature:
    return Signature(name, re.compile(pattern), cause, fix, wrapper)
