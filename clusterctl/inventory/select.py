"""Select hosts with `--limit`, and with `--on` for a service.

    gpu1                a host
    gpu*, gpu?          names with a wildcard
    gpu[2-4], r[1,3]n1  names with numbers; [01-12] for names with leading zeros
    role=head           the head, or the workers
    rack=a*             hosts whose label has this value
    !gpu3               not this one; any part can be negated

Parts are separated by commas. A selected host matches at least one of them, and no negated one.
Every part must match a host of the inventory, so that a typo never silently selects fewer hosts.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import translate

from clusterctl.errors import UsageError
from clusterctl.inventory.model import Host, Inventory
from clusterctl.inventory.values import did_you_mean

_PART = re.compile(r"(?:\[[^\]]*\]|[^,\[])+")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_SHOWN = 20


def select(inventory: Inventory, limit: str, option: str = "--limit") -> tuple[Host, ...]:
    """Return the hosts selected by `limit`, the value of `option`, in the inventory's order.

    Raises UsageError if a part matches nothing or cannot be parsed, or if no host is left.
    """
    parts = _PART.findall(limit)
    if not parts or ",".join(parts) != limit or not all(part.strip() for part in parts):
        raise UsageError(
            f"{option} '{limit}' cannot be parsed",
            hint="write it as gpu1,gpu[2-4],gpu*,role=head,LABEL=VALUE,!gpu3",
        )
    chosen: set[str] = set()
    without: set[str] = set()
    for part in (part.strip() for part in parts):
        negated = part.startswith("!")
        (without if negated else chosen).update(
            _names_of(inventory, part.removeprefix("!"), option)
        )
    if all(part.strip().startswith("!") for part in parts):
        chosen = {host.name for host in inventory.hosts}
    left = tuple(host for host in inventory.hosts if host.name in chosen - without)
    if not left:
        raise UsageError(f"{option} {limit} leaves no host", hint=_known(inventory))
    return left


def still_known(inventory: Inventory, limit: str) -> str | None:
    """Return an earlier `limit` without parts that no longer match any host; "" if it no longer
    limits anything, None if no host that it named is left."""
    parts = [part.strip() for part in _PART.findall(limit)]
    left = []
    for part in parts:
        with suppress(UsageError):
            _names_of(inventory, part.removeprefix("!"), "")
            left.append(part)
    named, named_left = (any(not part.startswith("!") for part in each) for each in (parts, left))
    return None if named and not named_left else ",".join(left)


def _names_of(inventory: Inventory, part: str, option: str) -> list[str]:
    """Return the hosts that one part matches. Raises UsageError if there are none."""
    key, is_property, wanted = part.partition("=")
    found = []
    if is_property:
        matches = re.compile(translate(wanted)).match
        for host in inventory.hosts:
            value = host.role if key == "role" else host.labels.get(key)
            if value is not None and matches(value):
                found.append(host.name)
    else:
        pieces = re.split(r"\[([^\]]*)\]", part)
        numbers = [_numbers(piece, f"{option} {part}") for piece in pieces[1::2]]
        texts = (re.escape(it).replace(r"\*", ".*").replace(r"\?", ".") for it in pieces[::2])
        pattern = re.compile("(\\d+)".join(texts), re.ASCII)
        for host in inventory.hosts:
            match = pattern.fullmatch(host.name)
            groups = zip(numbers, match.groups(), strict=True) if match else ()
            if match and all(any(span.holds(it) for span in spans) for spans, it in groups):
                found.append(host.name)
    if not found:
        near = did_you_mean(part, tuple(host.name for host in inventory.hosts))
        raise UsageError(f"{option} {part} matches no host{near}", hint=_known(inventory))
    return found


@dataclass(frozen=True)
class _Span:
    """Numbers from `first` to `last`; with leading zeros, only those of the same width."""

    first: int
    last: int
    width: int

    def holds(self, digits: str) -> bool:
        padded = len(digits) == self.width if self.width else not _has_zeros(digits)
        return padded and self.first <= int(digits) <= self.last


def _numbers(text: str, given: str) -> list[_Span]:
    """Parse `1-3,5`. Raises UsageError for anything else."""
    spans = []
    for item in text.split(","):
        match = _RANGE.fullmatch(item.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise UsageError(
                f"{given}: [{text}] is not a range of numbers",
                hint="write it as gpu[1-4] or gpu[1,3]",
            )
        width = len(match[1]) if _has_zeros(match[1]) else 0
        spans.append(_Span(int(match[1]), int(match[2] or match[1]), width))
    return spans


def _has_zeros(digits: str) -> bool:
    return len(digits) > 1 and digits.startswith("0")


def _known(inventory: Inventory) -> str:
    names = [host.name for host in inventory.hosts]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"hosts of {inventory.cluster}: {', '.join(names[:_SHOWN])}{more}"
