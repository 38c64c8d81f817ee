"""A tar archive that is read once, from front to back: POSIX (ustar, pax) and GNU.

Runs under any python3 from 3.6, with the few modules that Debian's python3-minimal has: no
tarfile there.
"""

import os
import time
from typing import Callable, Dict, Iterator

CHUNK = 1 << 20
BLOCK = 512
LARGEST_TEXT = 4 << 20

Read = Callable[[int], bytes]
"""At most so many bytes; none at the end."""

Tell = Callable[[str], None]


class Broken(Exception):
    """The stream is not what it should be."""


class Member:
    """A file of the stream: `kind` is tar's type flag."""

    def __init__(self, name: str, kind: bytes, size: int, target: str) -> None:
        self.name, self.kind, self.size, self.target = name, kind, size, target


class Stream:
    """A tar that is read once, from front to back."""

    def __init__(self, read: Read, tell: Tell) -> None:
        self._read, self._tell = read, tell
        self._count, self._told = 0, time.monotonic()

    def exactly(self, size: int) -> bytes:
        parts, missing = [], size
        while missing:
            chunk = self._read(min(missing, CHUNK))
            if not chunk:
                raise Broken(f"the archive ends after {self._count} bytes, too early")
            parts.append(chunk)
            missing -= len(chunk)
            self._count += len(chunk)
            self._report()
        return b"".join(parts)

    def body(self, size: int) -> Iterator[bytes]:
        """A member's bytes; the padding behind them is read too."""
        left = size
        while left:
            chunk = self.exactly(min(left, CHUNK))
            left -= len(chunk)
            yield chunk
        self.exactly(-size % BLOCK)

    def whole(self, size: int) -> bytes:
        if size > LARGEST_TEXT:
            raise Broken(f"a header of {size} bytes")
        return b"".join(self.body(size))

    def drain(self) -> None:
        while self._read(CHUNK):
            pass

    def _report(self) -> None:
        if time.monotonic() - self._told >= 1:
            self._told = time.monotonic()
            self._tell(f"at\t{self._count}")


def members(stream: Stream) -> Iterator[Member]:
    """Every member; its body must be read before the next one is asked for."""
    long: Dict[str, str] = {}
    while True:
        header = stream.exactly(BLOCK)
        if not header.strip(b"\0"):
            return
        member = parsed(header)
        if member.kind == b"x":
            long.update(extended(stream.whole(member.size)))
        elif member.kind in (b"L", b"K"):
            text = stream.whole(member.size).rstrip(b"\0").decode("utf-8", "replace")
            long["path" if member.kind == b"L" else "linkpath"] = text
        elif member.kind == b"g":
            stream.whole(member.size)
        else:
            member.name = normal(one_line(long.get("path", member.name)))
            member.target = one_line(long.get("linkpath", member.target))
            member.size = count(long["size"]) if "size" in long else member.size
            long = {}
            yield member


def parsed(header: bytes) -> Member:
    """One header block: POSIX ustar and GNU."""
    try:
        expected = number(header[148:156])
        size = number(header[124:136])
    except ValueError:
        raise Broken("this is not a tar archive") from None
    if size < 0 or sum(header[:148]) + sum(header[156:]) + 8 * 32 != expected:
        raise Broken("this is not a tar archive, or a header of it is damaged")
    name = string(header[:100])
    if header[257:263] == b"ustar\0" and header[345:500].strip(b"\0"):
        name = string(header[345:500]) + "/" + name
    return Member(name, header[156:157], size, string(header[157:257]))


def number(field: bytes) -> int:
    """Octal digits, or GNU's base 256 for what has more than 11 of them."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    return int(field.strip(b"\0 ") or b"0", 8)


def string(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "replace")


def extended(data: bytes) -> Dict[str, str]:
    """A pax header: lines of `LENGTH KEY=VALUE`."""
    found = {}
    while data:
        length = count(data.partition(b" ")[0].decode("ascii", "replace"))
        if not length:
            raise Broken("a header of it is damaged: a record without bytes")
        record = data[:length].partition(b" ")[2]
        key, _, value = record.rstrip(b"\n").partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
        data = data[length:]
    return found


def count(text: str) -> int:
    """Bytes, as pax headers write them."""
    if not text.isdecimal():
        raise Broken(f"a header of it is damaged: {text[:20]!r} is no number")
    return int(text)


def one_line(name: str) -> str:
    """What is told of a member is a line of fields between tabs."""
    if "\t" in name or len(f"{name}|".splitlines()) > 1:
        raise Broken(f"a file in it has the name {name!r}")
    return name


def normal(name: str) -> str:
    return os.path.normpath(name).lstrip("/")
