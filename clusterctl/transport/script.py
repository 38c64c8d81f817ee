"""The shell text that starts a command on a host, and the marks that frame it.

Start-up files of a login shell print things (bash reads ~/.bashrc even for `ssh host true`),
some shells are not POSIX (fish, csh), and sudo may ask for a password. So every command is
started by one fixed script that first writes a mark, never seen before, to stdout and stderr:
what comes before the mark is noise, and without the mark the command has not run.
"""

from __future__ import annotations

import math
import secrets
import shlex
import string
from collections.abc import Sequence
from dataclasses import dataclass, field

KILL_AFTER = 5
"""Seconds between SIGTERM and SIGKILL for a command that runs past its time."""

_START = """\
printf '%s%s\\n' "$1" "$2"; printf '%s%s\\n' "$1" "$2" >&2
limit=$3; shift 3
if [ "$limit" -gt 0 ] && command -v timeout >/dev/null 2>&1
then timeout -k 5 "$limit" "$@"
else (exec "$@")
fi
exit $?"""
# `exit $?` keeps this shell as the parent: it turns death by a signal into 128 + n, which
# sshd would report as an exit-signal that Paramiko 5.1 drops.

_SAFE = frozenset((string.ascii_letters + string.digits + " -_./:,=@%+").encode())


def _token() -> str:
    return secrets.token_hex(12)


@dataclass(frozen=True)
class Framed:
    """`argv` with its mark and, for sudo, the prompt to look for.

    `seconds` is the time limit enforced on the host, None for none. The mark's halves travel
    apart, so that a shell that echoes what it runs (`set -x`) does not write the mark.
    """

    argv: tuple[str, ...]
    seconds: float | None = None
    halves: tuple[str, str] = field(default_factory=lambda: (_token(), _token()))

    @property
    def mark(self) -> bytes:
        return f"{self.halves[0]}{self.halves[1]}\n".encode()

    @property
    def prompt(self) -> bytes:
        return f"[{self.halves[0]} sudo]".encode()

    def plain(self) -> tuple[str, ...]:
        """The argv that starts it as the user who logged in."""
        limit = 0 if self.seconds is None else math.ceil(self.seconds)
        return ("sh", "-c", _START, "clusterctl", *self.halves, str(limit), *self.argv)

    def as_root(self, *, password: bool) -> tuple[str, ...]:
        """The argv that starts it through sudo, which asks on stderr with `prompt`, or never."""
        asking = "-S" if password else "-n"
        return ("sudo", asking, "-p", self.prompt.decode(), "--", *self.plain())


def login_shell_line(argv: Sequence[str]) -> str:
    """One line that any login shell (POSIX, fish, csh) turns into exactly `argv`.

    Single quotes protect everything but the backslash in fish and `!` and newlines in csh, so
    all but plain characters travel as octal escapes for `printf %b`.
    """
    command = f"exec {shlex.join(argv)}"
    escaped = "".join(chr(byte) if byte in _SAFE else f"\\0{byte:03o}" for byte in command.encode())
    return f"""exec sh -c 'eval "$(printf %b "$0")"' '{escaped}'"""
