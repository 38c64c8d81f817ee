"""A `docker save` stream, split into blobs while it runs. Also a program for hosts.

Runs under any python3 from 3.6, with the few modules that Debian's python3-minimal has: no
tarfile, no json. So it does not know what the files mean; it tells, a line each, tab-separated:

    file  SIZE DIGITS KEPT NAME CODEC     DIGITS: SHA-256; KEPT: 1 when DIRECTORY/DIGITS is there
    text  SIZE DIGITS KEPT NAME BASE64    the same for a small JSON file, with what is in it
    link  NAME TARGET
    at    COUNT                           bytes read so far, at most once a second
    end                                   without it, the list is not whole

CODEC is gzip, zstd or -.
"""

import base64
import contextlib
import errno
import hashlib
import os
import re
import subprocess
import sys
from typing import Iterator, List, Optional, Set, Tuple

from clusterctl.transfer.archives.tar_stream import (
    LARGEST_TEXT,
    Broken,
    Member,
    Read,
    Stream,
    Tell,
    members,
    normal,
)

DIGITS = frozenset("0123456789abcdef")
MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
PLAIN = "-"


class Splitter:
    """Writes files that are wanted into `directory`, named by their SHA-256.

    `keep`: digits of the plain layers to keep, None for all. What is compressed is always
    kept, as nobody can tell which layer it is.
    """

    def __init__(self, directory: str, keep: Optional[Set[str]], tell: Tell) -> None:
        self._directory, self._keep, self._tell = directory, keep, tell

    def split(self, read: Read) -> None:
        stream = Stream(read, self._tell)
        for member in members(stream):
            if member.kind in (b"0", b"\0", b"7"):
                self._file(stream, member)
            elif member.kind == b"2":
                target = os.path.join(os.path.dirname(member.name), member.target)
                self._tell(f"link\t{member.name}\t{normal(target)}")
            elif member.kind == b"1":
                self._tell(f"link\t{member.name}\t{normal(member.target)}")
            else:
                for _ in stream.body(member.size):
                    pass
        stream.drain()
        self._tell("end")

    def _file(self, stream: Stream, member: Member) -> None:
        body = stream.body(member.size)
        first = next(body, b"")
        said = named_digest(member.name)
        if member.size <= LARGEST_TEXT and first[:1] in (b"{", b"["):
            self._text(member, first + b"".join(body))
        elif said and not self._wants(said, first):
            for _ in body:
                pass
            self._told("file", member, said, False, codec(first))
        else:
            self._large(member, first, body)

    def _text(self, member: Member, data: bytes) -> None:
        digits = hashlib.sha256(data).hexdigest()
        blob = named_digest(member.name) is not None
        if blob:
            self._write(digits, iter([data]))
        self._told("text", member, digits, blob, base64.b64encode(data).decode())

    def _large(self, member: Member, first: bytes, rest: Iterator[bytes]) -> None:
        digits, part = self._receive(first, rest)
        kept = self._wants(digits, first)
        if kept:
            os.rename(part, os.path.join(self._directory, digits))
        else:
            os.unlink(part)
        self._told("file", member, digits, kept, codec(first))

    def _write(self, digits: str, data: Iterator[bytes]) -> None:
        part = self._receive(b"", data)[1]
        os.rename(part, os.path.join(self._directory, digits))

    def _receive(self, first: bytes, rest: Iterator[bytes]) -> Tuple[str, str]:
        """Digits, and the file that holds the bytes."""
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

    def _told(self, kind: str, member: Member, digits: str, kept: bool, more: str) -> None:
        words = (kind, str(member.size), digits, "1" if kept else "0", member.name, more)
        self._tell("\t".join(words))


def codec(first: bytes) -> str:
    """How a file that begins so is compressed."""
    for magic, name in MAGIC.items():
        if first.startswith(magic):
            return name
    return PLAIN


def named_digest(name: str) -> Optional[str]:
    """The digits in blobs/sha256/DIGITS, and in DIGITS.json: a config of older engines."""
    last = os.path.basename(name)
    digits = last[:-5] if last.endswith(".json") else last
    return digits if len(digits) == 64 and set(digits) <= DIGITS else None


def still_true(told: str, directory: str, keep: Optional[Set[str]]) -> bool:
    """Whether what an earlier run told is whole, and the files are still there."""
    rows = [line.split("\t") for line in told.splitlines()]
    files = [row for row in rows if row[0] in ("file", "text")]
    return rows[-1:] == [["end"]] and all(usable(row, directory, keep) for row in files)


def usable(words: List[str], directory: str, keep: Optional[Set[str]]) -> bool:
    size, digits, kept = int(words[1]), words[2], words[3] == "1"
    if not kept:
        return words[0] == "text" or (keep is not None and digits not in keep)
    try:
        return os.stat(os.path.join(directory, digits)).st_size == size
    except OSError:
        return False


def main(image: str, directory: str, needed: int, saving: List[str]) -> None:
    """Save `image` by the command `saving`; one digest a line on stdin are those to keep, `*` for
    all. `needed`: bytes that must be free."""
    wanted = sys.stdin.read().split()
    keep = None if wanted == ["*"] else {one[len("sha256:") :] for one in wanted}
    os.makedirs(directory, exist_ok=True)
    clean(directory)
    record = os.path.join(directory, "save-" + image.replace("sha256:", "") + ".list")
    known = contents(record)
    if still_true(known, directory, keep):
        sys.stdout.write(known)
        return
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize
    if free < needed:
        sys.exit(f"not enough free space: {free}")
    save(directory, keep, record, saving)


def save(directory: str, keep: Optional[Set[str]], record: str, saving: List[str]) -> None:
    told: List[str] = []

    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        if not line.startswith("at\t"):
            told.append(line)

    process = subprocess.Popen(saving, stdout=subprocess.PIPE)
    with process.stdout or open(os.devnull, "rb") as stream:
        problem = broken(Splitter(directory, keep, tell), stream.read)
    # With its output closed it ends, and its own words on stderr say more than the broken tar.
    if process.wait() != 0:
        sys.exit(1)
    if problem:
        raise problem
    fresh = f"{record}.{os.getpid()}"
    with open(fresh, "w") as file:
        file.write("\n".join(told) + "\n")
    os.rename(fresh, record)


def contents(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def broken(splitter: Splitter, read: Read) -> Optional[Broken]:
    try:
        splitter.split(read)
    except Broken as problem:
        return problem
    return None


def clean(directory: str) -> None:
    """Remove what a killed run left half written. Several may do so at once."""
    for name in os.listdir(directory):
        found = re.match(r"save-(\d+)-\w+\.part$", name)
        if found and not alive(int(found.group(1))):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


if __name__ == "__main__":
    try:
        main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:])
    except (Broken, OSError) as problem:
        sys.exit(f"docker save could not be split: {problem}")
