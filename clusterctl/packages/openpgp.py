"""Fingerprints of OpenPGP public keys (RFC 9580), so that a downloaded signing key can be
compared with the one that is known. No signature is checked here: apt and dnf do that."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator

_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)\r?\n-----END",
    re.DOTALL,
)
_PUBLIC_KEY = 6
"""Packet type of a primary key; subkeys are 14."""


def fingerprints(data: bytes) -> frozenset[str]:
    """Of every primary key in `data`, armored or not: 40 hex digits in capitals.

    Raises ValueError when `data` holds no key.
    """
    found = frozenset(
        hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324 - RFC 9580, 5.5.4.1
        for kind, body in _packets(_binary(data))
        if kind == _PUBLIC_KEY and body[:1] == b"\x04"
    )
    if not found:
        raise ValueError("no OpenPGP public key in it")
    return found


def _binary(data: bytes) -> bytes:
    blocks = _ARMOR.findall(data)
    if not blocks:
        return data
    try:
        return b"".join(base64.b64decode(_without_checksum(block)) for block in blocks)
    except binascii.Error as error:
        raise ValueError(f"a damaged OpenPGP key: {error}") from None


def _without_checksum(block: bytes) -> bytes:
    """The last line may be `=` and a CRC of 24 bits."""
    return b"".join(line for line in block.splitlines() if not re.fullmatch(rb"=[^=]{4}", line))


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each packet."""
    position = 0
    while position < len(data):
        first = data[position]
        if not first & 0x80:
            raise ValueError("not OpenPGP data")
        kind, length, start = _header(data, position, new=bool(first & 0x40))
        yield kind, data[start : start + length]
        position = start + length


def _header(data: bytes, position: int, *, new: bool) -> tuple[int, int, int]:
    """Type, length of the body, where it starts (RFC 9580, 4.2). Raises ValueError."""
    first = data[position]
    if new:
        size, start = _new_length(data, position + 1)
        return first & 0x3F, size, start
    width = {0: 1, 1: 2, 2: 4}.get(first & 3)
    if width is None:
        raise ValueError("a packet without length")
    start = position + 1 + width
    return (first >> 2) & 0x0F, int.from_bytes(data[position + 1 : start], "big"), start


def _new_length(data: bytes, position: int) -> tuple[int, int]:
    octet = data[position] if position < len(data) else 255
    if octet < 192:
        return octet, position + 1
    if octet < 224:
        return ((octet - 192) << 8) + data[position + 1] + 192, position + 2
    if octet == 255:
        return int.from_bytes(data[position + 1 : position + 5], "big"), position + 5
    raise ValueError("a packet of unknown length")
