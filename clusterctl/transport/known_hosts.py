"""known_hosts files in OpenSSH's format: check a host's key, and find the line that decides.

Paramiko's own reader ignores wildcards, negations, @revoked, and line numbers, stops at a broken
line, and forgets a host's second key type, all of which matter to tell "unknown" from "changed".
Format: sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT".
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
import os
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Literal, cast

from clusterctl.errors import HostKeyProblem

_APPENDING = threading.Lock()

Marker = Literal["", "@revoked", "@cert-authority"]


@dataclass(frozen=True)
class Entry:
    """One line: `patterns` as written, key type, base64 key, and its file and line number."""

    patterns: tuple[str, ...]
    key_type: str
    key: str
    file: Path
    line: int
    marker: Marker = ""

    @property
    def revoked(self) -> bool:
        return self.marker == "@revoked"

    @cached_property
    def _is_plain(self) -> bool:
        """Whether its patterns are plain names: not hashed or negated, and without wildcards."""
        return not any(character in pattern for pattern in self.patterns for character in "|!*?")

    def names(self, name: str) -> bool:
        """Whether a pattern matches `name`, and no negated one does."""
        if self._is_plain:
            return name in self.patterns
        covered = False
        for pattern in self.patterns:
            if pattern.startswith("!") and fnmatch.fnmatchcase(name, _escaped(pattern[1:])):
                return False
            covered = covered or covers(pattern, name)
        return covered

    def covers(self, name: str) -> bool:
        """Whether it names the host, with or without its port, as in OpenSSH."""
        return self.names(name) or (name.startswith("[") and self.names(name[1 : name.rindex("]")]))


@dataclass(frozen=True)
class Verdict:
    """Result for a key. `entry`: the line that revokes it or has another key."""

    kind: Literal["known", "unknown", "changed", "revoked"]
    entry: Entry | None = None


def host_name(address: str, port: int) -> str:
    """The name of a host in known_hosts: bare for port 22, else `[address]:port`."""
    name = address.lower()
    return name if port == 22 else f"[{name}]:{port}"


def read(files: Iterable[Path]) -> list[Entry]:
    """Return the entries of all readable files."""
    found: list[Entry] = []
    for file in files:
        with suppress(OSError):
            now = file.expanduser().stat()
            found += _entries(file, (now.st_ino, now.st_size, now.st_mtime_ns))
    return found


def judge(entries: Sequence[Entry], name: str, key_type: str, key: str) -> Verdict:
    """Return the verdict on a host called `name` that shows this key.

    A key of a new type for a host with lines of another type counts as changed: a man in the middle
    could otherwise pick any type. A key known under the bare address is known on any port too, as
    in OpenSSH.
    """
    mine = [e for e in entries if e.marker != "@cert-authority" and e.names(name)]
    same = [entry for entry in mine if (entry.key_type, entry.key) == (key_type, key)]
    if revoked := next((entry for entry in same if entry.revoked), None):
        return Verdict("revoked", revoked)
    if same:
        return Verdict("known")
    valid = [entry for entry in mine if not entry.revoked]
    if valid:
        like = [entry for entry in valid if entry.key_type == key_type]
        return Verdict("changed", (like or valid)[0])
    if name.startswith("["):
        bare = judge(entries, name[1 : name.rindex("]")], key_type, key)
        return bare if bare.kind in ("known", "revoked") else Verdict("unknown")
    return Verdict("unknown")


def key_types(entries: Sequence[Entry], name: str) -> list[str]:
    """Return the key types known for the host, to request one of them."""
    found = (e.key_type for e in entries if not e.marker and e.covers(name))
    return list(dict.fromkeys(found))


def authorities(entries: Sequence[Entry], name: str) -> list[Entry]:
    """Return the lines with CAs that may sign the host's certificate, and lines that revoke one;
    empty without a CA."""
    found = [e for e in entries if e.marker and e.covers(name)]
    return found if any(not e.revoked for e in found) else []


def fingerprint(key: str) -> str:
    """Return the SHA256 of a base64 key, as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@lru_cache(maxsize=16)
def _entries(file: Path, version: tuple[int, int, int]) -> tuple[Entry, ...]:
    """Parse one version of a file, cached: a hundred hosts need the same hundred lines."""
    del version
    lines = file.expanduser().read_text(errors="replace").splitlines()
    found = (_parse(line, file, number) for number, line in enumerate(lines, start=1))
    return tuple(entry for entry in found if entry)


def _parse(line: str, file: Path, number: int) -> Entry | None:
    fields = line.split()
    if not fields or fields[0].startswith("#"):
        return None
    marker = fields.pop(0) if fields[0].startswith("@") else ""
    if marker not in ("", "@revoked", "@cert-authority"):
        return None
    if len(fields) < 3 or not _is_base64(fields[2]):
        return None
    patterns = tuple(
        name if name.startswith("|") else name.lower() for name in fields[0].split(",")
    )
    return Entry(patterns, fields[1], fields[2], file, number, cast("Marker", marker))


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False


def covers(pattern: str, name: str) -> bool:
    """Whether a pattern, which may be hashed, matches `name`. Wildcards are * and ?."""
    if not pattern.startswith("|1|"):
        return fnmatch.fnmatchcase(name, _escaped(pattern))
    salt = [*pattern.split("|"), "", ""][2]
    return _is_base64(salt) and _hashed(name, base64.b64decode(salt)) == pattern


def _escaped(pattern: str) -> str:
    """Escape brackets, part of `[address]:port`: only * and ? are wildcards in known_hosts."""
    return pattern.replace("[", "[[]")


def _hashed(name: str, salt: bytes | None = None) -> str:
    """Return the form that `HashKnownHosts yes` writes: |1|salt|HMAC-SHA1(salt, name)."""
    salt = salt or os.urandom(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@dataclass(frozen=True)
class OfferedKey:
    """A key that a host offered. `name`: the host in known_hosts; `file`: where to add the key."""

    file: Path
    name: str
    key_type: str
    key: str
    hashed: bool = False

    def __str__(self) -> str:
        """`ssh-ed25519 SHA256:...`, as `ssh-keygen -l` shows it."""
        return f"{self.key_type} {fingerprint(self.key)}"

    def remember(self) -> None:
        """Add this key to known_hosts; the host must present the same key again. Raises OSError."""
        name = _hashed(self.name) if self.hashed else self.name
        with _APPENDING:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            text = self.file.read_text(errors="replace") if self.file.exists() else ""
            start = "\n" if text and not text.endswith("\n") else ""
            descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "a") as stream:
                stream.write(f"{start}{name} {self.key_type} {self.key}\n")


class UnknownHostKey(HostKeyProblem):
    """No known_hosts file has a key of this host; `offered` is the key that it presented."""

    offered: OfferedKey | None = None
