"""The keys that sign vendors' repositories, got on this machine and compared with what is known."""

from __future__ import annotations

import urllib.request
from http.client import HTTPException
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed, UsageError
from clusterctl.packages.openpgp import fingerprints
from clusterctl.packages.repository import Repository

LARGEST = 1 << 20

_INSTEAD = {
    "docker": "name a mirror: --docker URL",
    "nvidia-container-toolkit": "name a mirror: --nvidia URL; or leave it out: --engine-only",
}
"""By repository: what to do where its key is out of reach."""


def vendor_key(repository: Repository) -> bytes:
    """The key that signs it: the user's, or the vendor's, compared with its fingerprint.

    Raises UsageError for a key that is another one or none, StepFailed when it cannot be had.
    """
    whence = str(repository.key_file or repository.key_url)
    data = _own(repository.key_file) if repository.key_file else _fetched(repository)
    try:
        found = fingerprints(data)
    except ValueError as error:
        raise UsageError(f"{whence} is no signing key: {error}") from error
    if repository.key_file is None and not found & repository.fingerprints:
        raise UsageError(
            f"{whence} gives another key than {repository.name}'s: {', '.join(sorted(found))}",
            hint="for a mirror of your own give its key: --nvidia-key FILE, --docker-key FILE",
        )
    return data


def _own(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"the key {path} cannot be read: {error.strerror}") from error


def _fetched(repository: Repository) -> bytes:
    url = repository.key_url
    try:
        with urllib.request.urlopen(_absolute(url), timeout=deadlines.KEY_DOWNLOAD) as answer:  # noqa: S310 - the user's own words
            return bytes(answer.read(LARGEST))
    except (OSError, ValueError, HTTPException) as error:
        raise StepFailed(
            f"the signing key {url} cannot be had here: {getattr(error, 'reason', error)}",
            hint=f"run it where that address is reached, or {_INSTEAD[repository.name]}",
        ) from error


def _absolute(url: str) -> str:
    """apt's `file:/path` is `file:///path` to everybody else."""
    alone = url.startswith("file:/") and not url.startswith("file://")
    return f"file://{url.removeprefix('file:')}" if alone else url
