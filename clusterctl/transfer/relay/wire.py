"""The HTTP protocol between relays, and Range headers, which engines send too.

A body between relays is a series of frames: a length and that many bytes. Length 0 is a sign of
life of a relay that waits itself; RESTART means that all bytes so far were wrong. The client does
not use http.client, since that reads ahead and cannot be read again after a timeout: the reader
of a body must know every second whether bytes still come.
"""

import re
import struct
from typing import Optional, Tuple

LENGTH = struct.Struct("!I")
RESTART = 0xFFFFFFFF


class StillThere(bytes):
    """Marker among pieces of a body: no byte came, but the other side is alive."""


STILL_THERE = StillThere()


def request(digest: str, start: int, size: int, token: str) -> bytes:
    return (
        f"GET /blobs/sha256:{digest} HTTP/1.1\r\n"
        f"Authorization: Bearer {token}\r\n"
        f"Range: bytes={start}-{start + size - 1}\r\n\r\n"
    ).encode("latin-1")


def status_of(head: bytes) -> int:
    """Status of an HTTP answer; 0 if `head` is not one."""
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
    return int(found.group(1)) if found else 0


class Unsatisfiable(Exception):
    """The range lies outside the blob."""


def range_of(header: str, size: int) -> Optional[Tuple[int, int]]:
    """Return (start, end), end exclusive; None for the whole blob or an unknown header format.

    Raises Unsatisfiable.
    """
    found = re.match(r"bytes=(\d*)-(\d*)$", header.replace(" ", ""))
    if not found or found.group(0) == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
    if start >= size or start >= end:
        raise Unsatisfiable
    return start, end
