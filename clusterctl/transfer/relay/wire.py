"""What relays say to each other in HTTP, and ranges of blobs as engines ask for them too.

Between relays a body is framed, so that a relay that waits itself can say that it is there:
a length and that many bytes; length 0 means still there, RESTART that all was wrong so far.
The client's side is written out, since http.client reads ahead, and cannot be asked again once it
has waited in vain: the reader of a body must know every second whether bytes still come.
"""

import re
import struct
from typing import Optional, Tuple

LENGTH = struct.Struct("!I")
RESTART = 0xFFFFFFFF


class StillThere(bytes):
    """Stands among pieces of a body: nothing came, but the other side lives."""


STILL_THERE = StillThere()


def request(digest: str, start: int, size: int, token: str) -> bytes:
    return (
        f"GET /blobs/sha256:{digest} HTTP/1.1\r\n"
        f"Authorization: Bearer {token}\r\n"
        f"Range: bytes={start}-{start + size - 1}\r\n\r\n"
    ).encode("latin-1")


def status_of(head: bytes) -> int:
    """Of an answer; 0 when it is none."""
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", head)
    return int(found.group(1)) if found else 0


class Unsatisfiable(Exception):
    """The range lies outside of the blob."""


def range_of(header: str, size: int) -> Optional[Tuple[int, int]]:
    """(start, end), end exclusive; None for the whole, as for what is not understood.

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
