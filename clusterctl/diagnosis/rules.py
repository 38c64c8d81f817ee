"""The known causes, and how logs show them: `rules.yaml` as typed data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from typing import Any

import yaml

LEVELS = {"root": 0, "link": 1, "raised": 1, "said": 2, "report": 3, "request": 4}
"""How deep a finding goes: the first level that a log has holds its cause. Of an exception that no
rule knows (`raised`) and a failure between ranks (`link`), the first by time."""

_PARTS = re.compile(r"\{(\w+)(\.\.\.)?\}|\.\.\.")
_LONGEST_GAP = 600  # characters between two parts of a pattern
_NO_DIGITS = str.maketrans("", "", "0123456789")


@dataclass(frozen=True)
class Pattern:
    """A wording of a log line; the fields are explained in rules.yaml."""

    text: str
    of: str
    example: str
    level: str
    cause: str  # `{name}` stands for what the pattern finds
    fix: str
    likely: bool = False
    more_follows: bool = False  # what is joined to it says better what failed
    says_little: bool = False  # a line beside it does
    passing: bool = False  # healthy starts that take long say it, too
    after: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()  # ids that the same failure had up to this line
    only: dict[str, str] = field(default_factory=dict)

    @cached_property
    def anchor(self) -> str:
        """The longest literal part, in lower case and without digits: a line that lacks it, digits
        aside, cannot match."""
        return max(map(without_digits, _literals(self.text)), key=len).lower()

    @cached_property
    def tells_alike_apart(self) -> bool:
        """Whether it may match only one of two lines that differ only in digits."""
        if self.only or self.after or self.without or self.releases:
            return True
        return any(without_digits(part) != part for part in _literals(self.text))

    def is_for(self, release: str) -> bool:
        """Whether a release of vLLM uses this wording for this cause; true if unknown."""
        if not self.releases or not release:
            return True
        first, last = map(_numbers, self.releases)
        return first <= _numbers(release) <= last

    @cached_property
    def expression(self) -> re.Pattern[str]:
        """The regular expression of `text`."""
        made, at = "", 0
        for slot in _PARTS.finditer(self.text):
            name, many = slot.group(1), slot.group(2)
            last = slot.end() == len(self.text)
            made += re.escape(self.text[at : slot.start()])
            words = self.only.get(name or "")
            if name is None:
                words = f".{{0,{_LONGEST_GAP}}}?"
            elif words is None:
                words = (f".{{1,{_LONGEST_GAP}}}" if many else r"\S+") + ("" if last else "?")
            made += f"(?P<{name}>{words})" if name and name != "_" else f"(?:{words})"
            at = slot.end()
        return re.compile(made + re.escape(self.text[at:]), re.IGNORECASE)


@dataclass(frozen=True)
class Rule:
    """A cause of failure."""

    id: str
    cause: str
    fix: str
    seen: tuple[Pattern, ...]
    at: str = "start"  # `start`: overcome if the same start goes on to serve; `any`: at any time
    by_clients: bool = False  # a client did something wrong, and the service works


def _numbers(release: str) -> tuple[int, ...]:
    """Return the numbers of a release that matter to rules: (0, 19) for 0.19.1."""
    return tuple(int(each) for each in re.findall(r"\d+", release)[:2])


def without_digits(text: str) -> str:
    """Return the text common to lines that differ only in digits."""
    return text.translate(_NO_DIGITS)


def _literals(text: str) -> Iterator[str]:
    at = 0
    for slot in _PARTS.finditer(text):
        yield text[at : slot.start()]
        at = slot.end()
    yield text[at:]


@cache
def rules() -> tuple[Rule, ...]:
    """Return all rules in the order in which a line is compared with them."""
    text = files("clusterctl.diagnosis").joinpath("rules.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(map(_rule, yaml.load(text, Loader=loader)))  # noqa: S506 - both are safe


def _rule(entry: dict[str, Any]) -> Rule:
    inherited = {"level": entry.pop("level", "root")}
    inherited |= {key: entry[key] for key in ("cause", "fix")}
    seen = []
    for own in entry.pop("seen"):
        lists = {key: tuple(value) for key, value in own.items() if isinstance(value, list)}
        seen.append(Pattern(**{**inherited, **own, **lists}))
    return Rule(**entry, seen=tuple(seen))
