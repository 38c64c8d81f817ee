"""Parse sizes as users write them: `24 GiB`, `80GB`, `512 MiB`, or bytes."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_FACTORS = {
    "": 1, "b": 1,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SIZE = re.compile(r"^\s*(\d{1,18}(?:\.\d{1,18})?)\s*([a-zA-Z]*)\s*$", re.ASCII)
_BITS = re.compile(r"^\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kKmMgGtT])bit(?:/s)?\s*$", re.ASCII)
_POWERS = {"k": 3, "m": 6, "g": 9, "t": 12}
_SMALLEST_MEMORY = 2**20


def parse_bytes(value: object) -> int:
    """Return the bytes in `value`. Raises ValueError with the accepted forms."""
    match = _SIZE.match(str(value))
    factor = _FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{value!r} is not a size; write it as 24 GiB, 80 GB or a number of bytes")
    return round(float(match[1]) * factor)


def parse_rate(value: str) -> int:
    """Return the bytes per second in `400mbit` (bits), or in `50 MB` or `50 MiB/s` (bytes). Raises
    ValueError with the accepted forms."""
    bits = _BITS.match(value)
    try:
        if bits:
            rate = int(float(bits[1]) * 10 ** _POWERS[bits[2].lower()] / 8)
        else:
            rate = parse_bytes(value.removesuffix("/s"))
    except ValueError:
        rate = 0
    if rate < 1:
        raise ValueError(f"{value!r} is not a rate; write it as 400mbit, or 50 MB for bytes")
    return rate


def _parse_memory(value: object) -> int:
    """Parse a GPU's memory. Rejects `memory: 80`, which is 80 bytes but was meant as GiB."""
    size = parse_bytes(value)
    if size < _SMALLEST_MEMORY:
        raise ValueError(f"{value} is {size} bytes; write the unit, such as {value} GiB")
    return size


# Bytes, with or without a unit in the file.
Memory = Annotated[
    int,
    BeforeValidator(_parse_memory),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": _SMALLEST_MEMORY},
                {"type": "string", "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*[A-Za-z]*\s*$"},
            ]
        }
    ),
]
