"""A host key that nobody knows yet, kept so that a person can be asked about this very key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import HostKeyProblem
from clusterctl.transport import known_hosts


@dataclass(frozen=True)
class OfferedKey:
    """What a host showed. `name` is what known_hosts calls it, `file` where it would be added."""

    file: Path
    name: str
    key_type: str
    key: str
    hashed: bool = False

    def __str__(self) -> str:
        """`ssh-ed25519 SHA256:...`, as `ssh-keygen -l` shows it."""
        return f"{self.key_type} {known_hosts.fingerprint(self.key)}"

    def remember(self) -> None:
        """Add exactly this key to known_hosts: the host must show it again. Raises OSError."""
        known_hosts.append(self.file, self.name, self.key_type, self.key, hashed=self.hashed)


class UnknownHostKey(HostKeyProblem):
    """No known_hosts file has a key of this host; `offered` is the one that it showed."""

    offered: OfferedKey | None = None
