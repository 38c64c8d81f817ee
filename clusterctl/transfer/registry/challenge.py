"""What a registry asks for when it answers 401. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_SCHEME = re.compile(r"(?:^|,\s*)(Bearer|Basic)\s", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Challenge:
    """`realm` is the URL that gives tokens, for Bearer."""

    bearer: bool
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenges(headers: Iterable[str]) -> Challenge | None:
    """The best of those in WWW-Authenticate: a token before a password; None when none is
    understood."""
    found = []
    for header in headers:
        starts = [match.start() for match in _SCHEME.finditer(header)]
        for start, end in zip(starts, [*starts, len(header)][1:], strict=True):
            found.append(_one(header[start:end].lstrip(", ")))
    found.sort(key=lambda one: not one.bearer)
    return found[0] if found else None


def _one(text: str) -> Challenge:
    said = {key.lower(): value for key, value in _PARAMETER.findall(text)}
    return Challenge(
        text.lower().startswith("bearer"),
        said.get("realm", ""),
        said.get("service", ""),
        said.get("scope", ""),
    )
