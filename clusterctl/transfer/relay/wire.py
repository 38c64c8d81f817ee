"""What relays send: frames on stdin and stdout, and HTTP between relays.

A frame has a kind, a stream number and a payload. Text payloads are lines of tab-separated fields;
tabs, newlines and % are written as %XX.

A body between relays is a series of lengths, each with that many bytes. Length 0 is a sign of life
from a relay that is itself waiting; RESTART means that all bytes so far were wrong. The client does
not use http.client, which reads ahead and cannot be read again after a timeout: the reader of a
body must know every second whether bytes still arrive.
"""

import re
import struct
from typing import BinaryIO, Iterable, List, Optional, Tuple

LENGTH = struct.Struct("!I")
RESTART = 0xFFFFFFFF


class StillThere(bytes):
    """Marker among pieces of a body: no byte arrived, but the other side is alive."""


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


HEADER = struct.Struct("!cII")  # Kind, stream, length of the payload

# To the relay.
COMMAND = b"C"
DATA = b"D"
PACKED = b"Z"  # Data, compressed by zlib
END = b"E"
FAILED = b"X"
ALIVE = b"A"

# From the relay.
WANT = b"W"
ENOUGH = b"N"
STATE = b"S"
EVENT = b"V"

LARGEST = 1 << 26  # Bytes of a payload; a larger length means that the input is not a frame

Frame = Tuple[bytes, int, bytes]


class NotAFrame(Exception):
    """The other side sent bytes that are not a frame."""


def pack(kind: bytes, stream: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(kind, stream, len(payload)) + payload


def read(stream: BinaryIO) -> Optional[Frame]:
    """Read the next frame; None at the end of the stream. Raises NotAFrame."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    kind, number, length = HEADER.unpack(header)
    if length > LARGEST:
        raise NotAFrame(repr(header))
    payload = stream.read(length)
    return None if len(payload) < length else (kind, number, payload)


def fields(*values: object) -> str:
    """Format one line, without its newline."""
    quoted = (str(value).replace("%", "%25") for value in values)
    return "\t".join(text.replace("\t", "%09").replace("\n", "%0A") for text in quoted)


def lines(rows: Iterable[str]) -> bytes:
    return "\n".join(rows).encode("utf-8", "surrogateescape")


def parse(payload: bytes) -> List[List[str]]:
    """Split a payload into lines, each a list of its fields."""

    def plain(field: str) -> str:
        return field.replace("%0A", "\n").replace("%09", "\t").replace("%25", "%")

    text = payload.decode("utf-8", "surrogateescape")
    return [[plain(field) for field in line.split("\t")] for line in text.split("\n") if line]
