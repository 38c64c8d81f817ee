"""SSH keys of the lab: one for its user, two for each host, and lines for known_hosts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clusterctl.lab.layout import LabHost
from clusterctl.lab.local import run
from clusterctl.lab.paths import LabPaths

HOST_KEY_TYPES = ("ed25519", "ecdsa")


def ensure_identity(paths: LabPaths) -> bool:
    """Create the user's key pair if it is missing. Return whether it was created."""
    paths.keys.mkdir(parents=True, exist_ok=True)
    paths.keys.chmod(0o700)
    return _ensure_key(paths.identity, "ed25519", "clusterctl-lab")


def ensure_host_keys(directory: Path, host: LabHost, types: Iterable[str] = HOST_KEY_TYPES) -> None:
    """Create the host's missing keys in `directory`, named as sshd names them."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind in types:
        _ensure_key(directory / f"ssh_host_{kind}_key", kind, f"root@{host.name}")


def known_hosts_lines(directory: Path, host: LabHost) -> list[str]:
    """Return the host's lines for known_hosts: its name and address with each of its keys."""
    names = f"{host.name},{host.address}"
    keys = (file.read_text().split()[:2] for file in sorted(directory.glob("ssh_host_*.pub")))
    return [f"{names} {kind} {key}" for kind, key in keys]


def _ensure_key(file: Path, kind: str, comment: str) -> bool:
    public = file.with_name(file.name + ".pub")
    if file.is_file() and public.is_file():
        return False
    # ssh-keygen would ask before it overwrites the file of an interrupted run.
    file.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(file)])
    return True
