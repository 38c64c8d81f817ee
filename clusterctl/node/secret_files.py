"""Reads the token and the key, which are required to start Ray and vLLM."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from clusterctl.node.files import NodePaths

LARGEST = 4096  # Bytes of a secret; ours have 64


class SecretUnusable(Exception):
    """Nothing may be started with this secret; the text says why, and how to repair it."""


def read_secret(path: Path) -> str:
    """Return the content of a secret's file.

    Raises SecretUnusable unless it is a non-empty file that this process's user owns and nobody
    else may read or write.
    """
    try:
        # Not through a link; and O_NONBLOCK since opening a fifo would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SecretUnusable(f"{path} is missing; clusterctl bootstrap repairs that") from None
    except OSError as error:
        raise SecretUnusable(f"{path} cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:  # noqa: PTH123 - of a descriptor
        found = os.fstat(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise SecretUnusable(f"{path} is not a file")
        if mode & 0o077:
            raise SecretUnusable(
                f"{path} is open to other users (mode {mode:o}); clusterctl bootstrap repairs that"
            )
        if found.st_uid != os.geteuid():
            raise SecretUnusable(
                f"{path} belongs to user {found.st_uid}; clusterctl bootstrap repairs that"
            )
        try:
            content = file.read(LARGEST).decode().strip()
        except (OSError, ValueError) as error:
            raise SecretUnusable(f"{path} cannot be read: {error}") from error
    if not content:
        raise SecretUnusable(f"{path} is empty; clusterctl bootstrap repairs that")
    return content


def mark(secret: str) -> str:
    """Return a mark that distinguishes a secret from others without revealing it."""
    return hashlib.sha256(secret.encode()).hexdigest()[:8]


def marks(paths: NodePaths) -> Tuple[Dict[str, str], List[str]]:
    """Return the marks of this host's secrets by file name, and why the unusable ones cannot be
    used."""
    found, problems = {}, []
    for path in (paths.api_key, paths.ray_token):
        try:
            found[path.name] = mark(read_secret(path))
        except SecretUnusable as error:
            if os.path.lexists(path):
                problems.append(str(error))
    return found, problems


def why_no_ray(env: Mapping[str, str], paths: NodePaths) -> str:
    """Return why Ray may not be started with `env`, or "".

    Only `allow_unauthenticated_ray` in the inventory sets RAY_AUTH_MODE to `disabled`.
    """
    if env.get("RAY_AUTH_MODE") == "disabled":
        return ""
    try:
        read_secret(Path(env.get("RAY_AUTH_TOKEN_PATH") or paths.ray_token))
    except SecretUnusable as error:
        return str(error)
    return ""
