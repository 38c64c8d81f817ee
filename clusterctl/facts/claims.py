"""Check what hosts and containers say against the types and limits that the code relies on.

Root on a host or in a container can answer with any JSON. Parsers build dataclasses from it; here
each field is checked against its annotation, names against their patterns, and numbers and texts
against limits, so that no other code meets a list where it expects a name."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from ipaddress import ip_address
from typing import Any, TypeVar

T = TypeVar("T")

LONGEST = 2**20  # Characters of one text
MOST = 100_000  # Entries of one list
_DEEPEST = 32

_DNS_NAME = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)


def checked(value: T) -> T:
    """Return the value, checking that every dataclass in it matches its annotations and the limits.

    Raises ValueError naming the first field that does not.
    """
    _check(type(value), value, type(value).__name__, 0)
    return value


def is_dns_name(name: str) -> bool:
    return bool(_DNS_NAME.fullmatch(name))


def finite(value: Any) -> float:
    """Return a number. Raises ValueError for anything else, NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r:.40} is not a number")
    return float(value)


def plain_ip(text: str) -> str:
    """Return an address in its canonical spelling. Raises ValueError, also for one with a zone,
    which may hold any characters."""
    found = ip_address(text)
    if getattr(found, "scope_id", None) is not None:
        raise ValueError(f"{text[:60]!r} has a zone")
    return str(found)


@cache
def _hints(kind: Any) -> Mapping[str, Any]:
    return typing.get_type_hints(kind)


def _check(kind: Any, value: Any, where: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"{where} is nested too deeply")
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        _check_one_of(inner, value, where, depth)
    elif kind is Any or isinstance(kind, TypeVar):
        _check(type(value), value, where, depth + 1)
    elif origin is typing.Literal:
        _require(value in inner, value, where, kind)
    else:
        plain = origin or kind
        accepted = (int, float) if plain is float else plain
        is_flag = isinstance(value, bool) and plain in (int, float)
        _require(isinstance(value, accepted) and not is_flag, value, where, plain)
        _check_content(value, inner, where, depth)


def _check_one_of(kinds: tuple[Any, ...], value: Any, where: str, depth: int) -> None:
    for kind in kinds:
        with suppress(ValueError):
            _check(kind, value, where, depth + 1)
            return
    raise ValueError(f"{where}: {value!r:.60} is not one of {kinds}")


def _check_content(value: Any, inner: tuple[Any, ...], where: str, depth: int) -> None:
    if isinstance(value, str):
        _require(len(value) <= LONGEST, value, where, "text of that length")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        _require(math.isfinite(value) and abs(value) < 2**63, value, where, "number")
    elif dataclasses.is_dataclass(value):
        for name, kind in _hints(value.__class__).items():
            if name in value.__dataclass_fields__:
                _check(kind, getattr(value, name), f"{where}.{name}", depth + 1)
    elif isinstance(value, Mapping):
        _require(len(value) <= MOST, len(value), where, "number of entries")
        for key, each in value.items():
            _check(inner[0] if inner else type(key), key, where, depth + 1)
            _check(inner[1] if inner else type(each), each, where, depth + 1)
    elif isinstance(value, tuple | list | frozenset | set):
        _require(len(value) <= MOST, len(value), where, "number of entries")
        for number, each in enumerate(value):
            kinds = inner if inner and inner[-1] is not Ellipsis else inner[:1] * len(value)
            _check(kinds[number] if number < len(kinds) else type(each), each, where, depth + 1)


def _require(holds: bool, value: Any, where: str, kind: Any) -> None:
    if not holds:
        name = getattr(kind, "__name__", kind)
        raise ValueError(f"{where}: {value!r:.60} is not a {name}")
