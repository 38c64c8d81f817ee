"""Known vulnerabilities of vLLM and Ray that a request can reach, by the release that fixes them.

vulnerabilities.json has them, each with its source. Releases after the date on which it was read
may have others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clusterctl.models.version import parse_version

_TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Vulnerability:
    """One of a package (vllm or ray). `since`: the first release with it; `fixed`: without it."""

    id: str
    package: str
    fixed: str
    effect: str
    source: str
    since: str = "0.0.0"

    def is_in(self, version: str) -> bool:
        """Return whether that version has it; no if it cannot be parsed."""
        found = parse_version(version)
        since, fixed = parse_version(self.since), parse_version(self.fixed)
        return bool(found and since and fixed and since <= found < fixed)


KNOWN = tuple(Vulnerability(**each) for each in _TABLE["known"])


def vulnerabilities_of(versions: Mapping[str, str]) -> tuple[Vulnerability, ...]:
    """Return the vulnerabilities of the given versions, by package."""
    return tuple(each for each in KNOWN if each.is_in(versions.get(each.package, "")))


def vulnerability_notes(versions: Mapping[str, str]) -> tuple[str, ...]:
    """Return a sentence for each package with vulnerabilities: the release that fixes all, and what
    each does."""
    notes = []
    found = vulnerabilities_of(versions)
    for package in dict.fromkeys(each.package for each in found):
        own = [each for each in found if each.package == package]
        fixed = max((each.fixed for each in own), key=lambda text: parse_version(text) or (0, 0, 0))
        told = "; ".join(f"{each.id} ({each.effect})" for each in own)
        name = "vLLM" if package == "vllm" else "Ray"
        notes.append(f"{name} {versions[package]} has {told}: fixed in {fixed}")
    return tuple(notes)
