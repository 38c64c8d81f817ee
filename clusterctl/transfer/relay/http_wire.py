"""As much of HTTP/1.1 as engines and relays use between them: heads, ranges, answers.

Between relays a body is framed, so that a relay that waits itself can say that it is there:
a length and that many bytes; length 0 means still there, RESTART that all was wrong so far.
"""

import re
import struct
from typing import Dict, Iterable, Optional, Tuple

LENGTH = struct.Struct("!I")
RESTART = 0xFFFFFFFF
MOST_HEAD = 32 * 1024


class StillThere(bytes):
    """Stands among pieces of a body: nothing came, but the other side lives."""


STILL_THERE = StillThere()

REASONS = {
    200: "OK",
    206: "Partial Content",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    416: "Range Not Satisfiable",
    503: "Service Unavailable",
}


class BadRequest(Exception):
    """What came is no HTTP request."""


class Request:
    """The head of a request. Header names are in lower case."""

    def __init__(self, method: str, path: str, headers: Dict[str, str], keep: bool) -> None:
        self.method, self.path, self.headers, self.keep = method, path, headers, keep

    def header(self, name: str) -> str:
        return self.headers.get(name, "")


def parse_request(head: bytes) -> Request:
    """Raises BadRequest."""
    first, *rest = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(first[:80])
    headers = {}
    for line in rest:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    keep = headers.get("connection", "").lower() != "close" and words[2] != "HTTP/1.0"
    return Request(words[0], words[1].split("?")[0], headers, keep)


def request(method: str, path: str, headers: Iterable[Tuple[str, str]]) -> bytes:
    rows = ["%s %s HTTP/1.1" % (method, path)] + ["%s: %s" % pair for pair in headers]
    return ("\r\n".join(rows) + "\r\n\r\n").encode("latin-1")


def answer(status: int, headers: Iterable[Tuple[str, str]]) -> bytes:
    rows = ["HTTP/1.1 %d %s" % (status, REASONS[status])] + ["%s: %s" % pair for pair in headers]
    return ("\r\n".join(rows) + "\r\n\r\n").encode("latin-1")


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
