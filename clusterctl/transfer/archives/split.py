"""Split a `docker save` stream into blobs while it runs. Also sent to hosts: see engine_image.

The program does not interpret an archive's files. It reports each, one JSON list per line:

    ["file", NAME, SIZE, DIGITS, KEPT, CODEC]   DIGITS: SHA-256; KEPT: DIRECTORY/DIGITS exists
    ["text", NAME, SIZE, DIGITS, KEPT, TEXT]    the same for a small JSON file, with its content
    ["link", NAME, TARGET]
    ["at", COUNT]                               bytes read so far, at most once a second
    ["end"]                                     without it, the output is incomplete

CODEC is gzip, zstd or - (none).
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

CHUNK = 1 << 20
LARGEST_TEXT = 4 << 20  # size limit of a JSON file or an extended header, in bytes

# Types of headers whose content is about the next one.
LONG_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)

DIGITS = frozenset("0123456789abcdef")
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
PLAIN = "-"

Read = Callable[[int], bytes]  # reads at most this many bytes; none at the end
Row = List[Any]  # a line of output, see above
Tell = Callable[[Row], None]


class BrokenArchive(Exception):
    """The stream is not a valid and complete tar."""


class StrictHeader(tarfile.TarInfo):
    """A header of the archive. tarfile takes a damaged one for the end of the archive, and reads
    one of any size into memory: here both are errors."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> "StrictHeader":
        if len(buf) < tarfile.BLOCKSIZE:
            raise BrokenArchive("the archive is truncated")
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if not bytes(buf).strip(b"\0"):
                raise  # the end
            raise BrokenArchive(
                f"this is not a tar archive, or a header is damaged: {error}"
            ) from None
        if member.size < 0 or (member.type in LONG_HEADERS and member.size > LARGEST_TEXT):
            raise BrokenArchive(f"one of its headers is damaged: {member.size} bytes")
        return member


class CountedStream:
    """A stream that tells how much of it was read."""

    def __init__(self, read: Read, tell: Tell) -> None:
        self._read, self._tell = read, tell
        self._count, self._told = 0, time.monotonic()

    def read(self, size: int) -> bytes:
        chunk = self._read(size)
        self._count += len(chunk)
        if time.monotonic() - self._told >= 1:
            self._told = time.monotonic()
            self._tell(["at", self._count])
        return chunk


def normal(name: str) -> str:
    return os.path.normpath(name).lstrip("/")


class Splitter:
    """Writes files to keep into `directory`, named by their SHA-256.

    `keep`: digits of the uncompressed layers to keep, None for all. Compressed files are always
    kept, since it is unknown which layers they are.
    """

    def __init__(self, directory: str, keep: Optional[Set[str]], tell: Tell) -> None:
        self._directory, self._keep, self._tell = directory, keep, tell

    def split(self, read: Read) -> None:
        stream: Any = CountedStream(read, self._tell)
        try:
            with tarfile.open(
                mode="r|",
                fileobj=stream,
                bufsize=CHUNK,
                tarinfo=StrictHeader,
                encoding="utf-8",
                errors="replace",
            ) as tar:
                for member in tar:
                    self._member(tar, member)
        except tarfile.TarError as error:
            raise BrokenArchive(f"the archive is truncated or damaged: {error}") from error
        while read(CHUNK):
            pass
        self._tell(["end"])

    def _member(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if member.size < 0:
            raise BrokenArchive("one of its headers is damaged: a negative size")
        name = normal(member.name)
        if member.issym():
            self._tell(["link", name, normal(os.path.join(os.path.dirname(name), member.linkname))])
        elif member.islnk():
            self._tell(["link", name, normal(member.linkname)])
        elif file := tar.extractfile(member):
            self._file(name, member.size, iter(lambda: file.read(CHUNK), b""))

    def _file(self, name: str, size: int, body: Iterator[bytes]) -> None:
        first = next(body, b"")
        digits = named_digest(name)
        row = [name, size]
        if size <= LARGEST_TEXT and first[:1] in (b"{", b"["):
            data = first + b"".join(body)
            kept = digits is not None
            digits = hashlib.sha256(data).hexdigest()
            if kept:
                os.rename(self._receive(data, iter(()))[1], os.path.join(self._directory, digits))
            self._tell(["text", *row, digits, kept, data.decode("utf-8", "surrogateescape")])
        elif digits and not self._wants(digits, first):
            self._tell(["file", *row, digits, False, codec(first)])
        else:
            digits, part = self._receive(first, body)
            kept = self._wants(digits, first)
            if kept:
                os.rename(part, os.path.join(self._directory, digits))
            else:
                os.unlink(part)
            self._tell(["file", *row, digits, kept, codec(first)])

    def _receive(self, first: bytes, rest: Iterator[bytes]) -> Tuple[str, str]:
        """Write the bytes to a part file; return their digits and its path."""
        part = os.path.join(self._directory, f"save-{os.getpid()}-{id(self)}.part")
        hashed = hashlib.sha256(first)
        try:
            with open(part, "wb") as file:
                file.write(first)
                for chunk in rest:
                    hashed.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.unlink(part)
            raise
        return hashed.hexdigest(), part

    def _wants(self, digits: str, first: bytes) -> bool:
        return self._keep is None or digits in self._keep or codec(first) != PLAIN


def codec(first: bytes) -> str:
    """Return the compression of a file that starts with these bytes: gzip, zstd or `-`."""
    return next((name for magic, name in MAGIC.items() if first.startswith(magic)), PLAIN)


def named_digest(name: str) -> Optional[str]:
    """Return the digits in blobs/sha256/DIGITS or DIGITS.json (a config of older engines)."""
    last = os.path.basename(name)
    digits = last[:-5] if last.endswith(".json") else last
    return digits if len(digits) == 64 and set(digits) <= DIGITS else None


def still_true(told: str, directory: str, keep: Optional[Set[str]]) -> bool:
    """Return whether the output of an earlier run is complete and its files still exist."""
    try:
        rows = [json.loads(line) for line in told.splitlines()]
        for kind, _, size, digits, kept, _ in (r for r in rows if r[0] in ("file", "text")):
            if kept:
                usable = os.stat(os.path.join(directory, digits)).st_size == size
            else:
                usable = kind == "text" or (keep is not None and digits not in keep)
            if not usable:
                return False
        return rows[-1:] == [["end"]]
    except (OSError, ValueError, LookupError, TypeError):
        return False  # gone, or written by another version


def clean(directory: str) -> None:
    """Remove part files of killed runs. Several processes may do this at once."""
    for name in os.listdir(directory):
        found = re.match(r"save-(\d+)-\w+\.part$", name)
        if not found:
            continue
        try:
            os.kill(int(found.group(1)), 0)
        except ProcessLookupError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
        except PermissionError:
            pass  # it runs, as another user


def main(order: Dict[str, Any]) -> None:
    """Save `image` on a host with the command `saving` into `directory`, where `needed` bytes must
    be free. `keep`: digests of the layers to keep, None for all."""
    try:
        save(**order)
    except (BrokenArchive, OSError) as problem:
        sys.exit(f"docker save could not be split: {problem}")


def save(
    image: str, directory: str, needed: int, saving: List[str], keep: Optional[List[str]]
) -> None:
    wanted = None if keep is None else {one[len("sha256:") :] for one in keep}
    os.makedirs(directory, exist_ok=True)
    clean(directory)
    record = os.path.join(directory, "save-" + image.replace("sha256:", "") + ".list")
    with contextlib.suppress(OSError):
        with open(record) as file:
            known = file.read()
        if still_true(known, directory, wanted):
            sys.stdout.write(known)
            return
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        sys.exit(f"not enough free space: {free}")
    told: List[str] = []

    def tell(row: Row) -> None:
        line = json.dumps(row)
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if row[0] != "at":
            told.append(line)

    process = subprocess.Popen(saving, stdout=subprocess.PIPE)
    problem = None
    with process.stdout or open(os.devnull, "rb") as stream:
        try:
            Splitter(directory, wanted, tell).split(stream.read)
        except BrokenArchive as error:
            problem = error
    # The process ends once its output is closed; its stderr says more than the broken tar.
    if process.wait() != 0:
        sys.exit(1)
    if problem:
        raise problem
    fresh = f"{record}.{os.getpid()}"
    with open(fresh, "w") as file:
        file.write("\n".join(told) + "\n")
    os.rename(fresh, record)
