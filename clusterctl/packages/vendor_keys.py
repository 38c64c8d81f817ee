"""Get the keys that sign vendors' repositories on this machine, and verify their fingerprints."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed, UsageError
from clusterctl.packages.repository import Repository

LARGEST = 1 << 20

# By repository: the fix if its key cannot be downloaded
_INSTEAD = {
    "docker": "name a mirror: --docker URL",
    "nvidia-container-toolkit": "name a mirror: --nvidia URL; or leave it out: --engine-only",
}


def vendor_key(repository: Repository) -> bytes:
    """Return the signing key: the user's, or the vendor's after verifying its fingerprint.

    Raises UsageError for a different or malformed key, StepFailed if it cannot be downloaded.
    """
    whence = str(repository.key_file or repository.key_url)
    data = _read(repository.key_file) if repository.key_file else _fetched(repository)
    try:
        found = fingerprints(data)
    except ValueError as error:
        raise UsageError(f"{whence} is not a signing key: {error}") from error
    if repository.key_file is None and not found & repository.fingerprints:
        raise UsageError(
            f"{whence} returned a different key than {repository.name}'s: "
            f"{', '.join(sorted(found))}",
            hint="for a mirror of your own give its key: --nvidia-key FILE, --docker-key FILE",
        )
    return data


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror}") from error


def _fetched(repository: Repository) -> bytes:
    url = repository.key_url
    if url.startswith("file:/") and not url.startswith("file://"):
        url = f"file://{url.removeprefix('file:')}"  # apt's `file:/path`
    try:
        with urllib.request.urlopen(url, timeout=deadlines.KEY_DOWNLOAD) as answer:  # noqa: S310 - the user's own words
            return bytes(answer.read(LARGEST))
    except (OSError, ValueError, HTTPException) as error:
        raise StepFailed(
            f"the signing key {url} cannot be downloaded here: {getattr(error, 'reason', error)}",
            hint=f"run it where that address is reached, or {_INSTEAD[repository.name]}",
        ) from error


_ARMOR = re.compile(
    rb"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(?:[^\r\n]+\r?\n)*\r?\n(.*?)\r?\n-----END",
    re.DOTALL,
)
_PUBLIC_KEY = 6  # Packet type of a primary key; subkeys are 14


def fingerprints(data: bytes) -> frozenset[str]:
    """Return fingerprints of all primary keys in `data`, armored or not: 40 upper-case hex digits.

    Raises ValueError if `data` contains no key.
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
        # The last line of a block may be `=` and a CRC of 24 bits.
        return b"".join(
            base64.b64decode(re.sub(rb"^=[^=]{4}$", b"", block, flags=re.MULTILINE))
            for block in (block.replace(b"\r", b"") for block in blocks)
        )
    except binascii.Error as error:
        raise ValueError(f"a damaged OpenPGP key: {error}") from None


def _packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and body of each packet."""
    position = 0
    while position < len(data):
        first = data[position]
        if not first & 0x80:
            raise ValueError("not OpenPGP data")
        kind, length, start = _header(data, position, new=bool(first & 0x40))
        yield kind, data[start : start + length]
        position = start + length


def _header(data: bytes, position: int, *, new: bool) -> tuple[int, int, int]:
    """Return type, length and position of the body (RFC 9580, 4.2). Raises ValueError."""
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
