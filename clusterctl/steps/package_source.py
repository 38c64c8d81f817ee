"""Add a repository to a host's package sources, with the key that must have signed it."""

from __future__ import annotations

from pathlib import Path

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed, StepFailed, UsageError
from clusterctl.packages.repository import (
    Repository,
    fingerprints,
    key_path,
    source_path,
    source_text,
)
from clusterctl.steps import directories, node_files
from clusterctl.steps.node_files import RemoteFile
from clusterctl.steps.package_manager import target
from clusterctl.steps.root_script import root_script

# A minimal Debian has neither curl nor wget; apt has its own downloader
FETCH = """\
set -e
if command -v curl >/dev/null; then exec curl -fsSL --max-time 60 "$1"; fi
if command -v wget >/dev/null; then exec wget -q -T 60 -O - "$1"; fi
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
chmod 755 "$directory"
/usr/lib/apt/apt-helper -o Acquire::http::Timeout=60 download-file "$1" "$directory/key" >&2
cat "$directory/key"
"""


def ensure_source(view: HostView, repository: Repository) -> None:
    """Add the repository to the host's sources, trusted only for its own key.

    Raises CommandFailed if the host cannot download the key, StepFailed if it is a different key.
    """
    system = target(view)
    key = RemoteFile(key_path(repository, system), _key(view, repository))
    text = source_text(repository, system).encode()
    files = (key, RemoteFile(source_path(repository, system), text))
    parents = [word for file in files for word in ("755", file.path.rpartition("/")[0])]
    root_script(view, directories.MAKE, *parents, doing="making directories for sources")
    paths = [file.path for file in files]
    told = root_script(view, node_files.LOOK, *paths, doing="looking at sources").splitlines()
    for file, seal in zip(files, told, strict=True):
        if seal != file.seal:
            view.transport.put(file.data, file.path, mode=file.mode, sudo=True)


def _key(view: HostView, repository: Repository) -> bytes:
    if repository.key_file is not None:
        return _own_key(repository.key_file)
    view.say(f"getting the key of {repository.name}")
    try:
        told = root_script(
            view,
            FETCH,
            repository.key_url,
            doing=f"getting {repository.key_url}",
            timeout=deadlines.KEY_ON_HOST,
        )
    except CommandFailed as error:
        raise CommandFailed(
            error.summary,
            host=error.host,
            hint="the host cannot reach it: name a mirror in the inventory (packages), or use a "
            "bundle: clusterctl bundle packages --help",
            detail=error.detail,
        ) from error
    data = told.encode()
    try:
        found = fingerprints(data)
    except ValueError as error:
        raise _other_key(view, repository, str(error)) from error
    if not found & repository.fingerprints:
        raise _other_key(view, repository, f"its fingerprint is {', '.join(sorted(found))}")
    return data


def _own_key(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        fingerprints(data)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the key {path} cannot be used: {error}",
            hint="export it: gpg --armor --export KEY > FILE",
        ) from error
    return data


def _other_key(view: HostView, repository: Repository, why: str) -> StepFailed:
    return StepFailed(
        f"what {repository.key_url} gives is not the key that signs {repository.name}: {why}",
        host=view.host.name,
        hint="a proxy in between, or a new key; for a mirror of your own give its key in the "
        f"inventory: packages.{'docker' if repository.name == 'docker' else 'nvidia'}.key",
    )
