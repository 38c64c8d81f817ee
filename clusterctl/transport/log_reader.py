"""Print the last lines of a log, and new ones. A program for hosts, Python 3.9.

The argument of `main` is {"path", "lines", "follow"}. It reads only the last LONGEST bytes, follows
a log that is replaced by a new one, and ends with its stdin. It refuses anything but regular files,
since node containers write to the directory. If the file does not exist, it exits with status 66
and lists the directory's logs on stderr.
"""

import os
import select
import stat
import sys
from pathlib import Path
from typing import Any, Optional

LONGEST = 16 << 20  # Bytes
MISSING = 66  # EX_NOINPUT of sysexits.h
PAUSE = 0.5  # Seconds between looks for new lines


def open_log(path: str) -> int:
    """Return a descriptor of a regular file. Raises OSError for any other."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


def end_of(descriptor: int, lines: int) -> bytes:
    """Return the last `lines` lines, and leave the descriptor at the end of the file."""
    os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - LONGEST), os.SEEK_SET)
    parts, left = [], LONGEST
    while left and (data := os.read(descriptor, min(left, 1 << 20))):
        parts.append(data)
        left -= len(data)
    found = b"".join(parts).splitlines(keepends=True)
    return b"".join(found[max(0, len(found) - lines) :])


def follow(path: str, descriptor: int) -> None:
    """Print what is added to the log, or to a new one in its place, until stdin ends."""
    while True:
        while data := os.read(descriptor, 65536):
            tell(data)
        ready, _, _ = select.select([0], [], [], PAUSE)
        if ready and not os.read(0, 4096):
            return
        try:
            if not os.path.samestat(os.lstat(path), os.fstat(descriptor)):
                fresh = open_log(path)
                os.dup2(fresh, descriptor)
                os.close(fresh)
            elif os.fstat(descriptor).st_size < os.lseek(descriptor, 0, os.SEEK_CUR):
                os.lseek(descriptor, 0, os.SEEK_SET)  # it was emptied
        except OSError:
            continue  # between two logs, or no log now


def tell(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def main(order: Optional[dict[str, Any]]) -> None:
    """Print the log of `order`: see the module's docstring."""
    if not order:
        return
    path = order["path"]
    try:
        descriptor = open_log(path)
    except FileNotFoundError:
        logs = sorted(log.stem for log in Path(path).parent.glob("*.log"))
        sys.stderr.write("".join(f"{log}\n" for log in logs))
        sys.exit(MISSING)
    except OSError as error:
        sys.exit(f"{path} cannot be read: {error.strerror or error}")
    tell(end_of(descriptor, order["lines"]))
    if order["follow"]:
        follow(path, descriptor)
