"""Frames on the relay's stdin and stdout, each with a kind, a stream number and a payload.

Text payloads are lines of tab-separated fields; tabs, newlines and % are written as %XX.
"""

import struct
from typing import BinaryIO, Iterable, List, Optional, Tuple

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
