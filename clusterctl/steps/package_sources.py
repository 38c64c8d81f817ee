"""Sources that a host's package manager installs from: the host's own, a vendor's repository with
its signing key, or files of a bundle, copied to the host and indexed there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed, StepFailed, UsageError
from clusterctl.node.documents import PRIVATE
from clusterctl.packages.bundle import Bundle, PackageFile
from clusterctl.packages.repository import (
    Repository,
    key_path,
    pinned,
    source_path,
    source_text,
)
from clusterctl.steps.files import (
    LOOK_AT_FILES,
    RemoteFile,
    line_per_path,
    make_directories,
    make_private,
    root_script,
)
from clusterctl.steps.package_manager import WITH_PROXY, Apt, Dnf, PackageManager, target

CACHE = f"{PRIVATE}/packages"

# `trusted`: the checksum of each of these files has been verified; others are not indexed
INDEX = """\
set -e
cd "$1"
mkdir -p lists/partial
directory=$1; shift
for file in "$@"; do
  dpkg-deb -f "$file"
  printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' \
    "$file" "$(stat -c %s "$file")" "$(sha256sum <"$file" | cut -c1-64)"
done >Packages.new
mv Packages.new Packages
printf 'deb [trusted=yes] file:%s ./\\n' "$directory" >offline.list
"""

# Skip packages that the host has, whatever their version
MISSING = """\
directory=$1; shift
for file in "$@"; do
  name=$(rpm -qp --nosignature --qf '%{NAME}' "$directory/$file")
  rpm -q "$name" >/dev/null 2>&1 || echo "$directory/$file"
done
"""


def bring(view: HostView, bundle: Bundle, files: Sequence[PackageFile]) -> str:
    """Copy `files` to the host, except those already there, and return their directory.

    Raises StepFailed if a copied file differs from what was sent.
    """
    directory = f"{CACHE}/{hashlib.sha256(str(bundle.path).encode()).hexdigest()[:12]}"
    make_private(view, directory)
    lacking = _unlike(view, bundle, directory, files)
    if lacking:
        size = sum(file.size for file in lacking) / 2**20
        view.say(f"copying {len(lacking)} packages, {size:.0f} MiB")
    for file in lacking:
        view.transport.put(bundle.read(file), f"{directory}/{file.name}", sudo=True)
    if wrong := _unlike(view, bundle, directory, lacking):
        names = ", ".join(file.name for file in wrong)
        raise StepFailed(
            f"files on the host differ from what was sent: {names}", host=view.host.name
        )
    return directory


def _unlike(
    view: HostView, bundle: Bundle, directory: str, files: Sequence[PackageFile]
) -> list[PackageFile]:
    if not files:
        return []
    paths = [f"{directory}/{file.name}" for file in files]
    seals = line_per_path(
        view, LOOK_AT_FILES, paths, doing="comparing packages", timeout=deadlines.PACKAGE_FILES
    )
    return [
        file
        for file, seal in zip(files, seals, strict=True)
        if seal != f"644 {file.sha256 or hashlib.sha256(bundle.read(file)).hexdigest()}"
    ]


def manager_of(
    view: HostView,
    bundle: Bundle,
    *,
    wanted: Callable[[str], bool] = lambda _: True,
    pause: Callable[[float], None] = time.sleep,
) -> PackageManager:
    """Return a package manager that uses only the bundle's files. `wanted`: selects files by name
    for dnf, which installs all files it is given."""
    if target(view).family == "apt":
        files = bundle.packages(".deb")
        directory = bring(view, bundle, files)
        root_script(
            view, INDEX, directory, *(file.name for file in files),
            doing="indexing packages", timeout=deadlines.PACKAGE_FILES,
        )  # fmt: skip
        return Apt(view, pause, only=directory)
    chosen = [file for file in bundle.packages(".rpm") if wanted(file.name)]
    directory = bring(view, bundle, chosen)
    names = [file.name for file in chosen]
    missing = root_script(
        view, MISSING, directory, *names,
        doing="looking at packages", timeout=deadlines.PACKAGE_FILES,
    )  # fmt: skip
    return Dnf(view, pause, files=missing.splitlines())


# A minimal Debian has neither curl nor wget; apt has its own downloader
FETCH = f"""\
set -e
{WITH_PROXY}\
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

    Raises CommandFailed if the host cannot download the key, StepFailed if it is the wrong key,
    UsageError if the user's key cannot be used.
    """
    system = target(view)
    own = repository.key_file
    try:
        key = own.read_bytes() if own else _vendor_key(view, repository)
        key = pinned(repository, key)
    except (OSError, ValueError) as error:
        if own is None:
            raise _other_key(view, repository, str(error)) from error
        raise UsageError(
            f"the key {own} cannot be used: {error}",
            hint="export it: gpg --armor --export KEY > FILE",
        ) from error
    files = (
        RemoteFile(key_path(repository, system), key),
        RemoteFile(source_path(repository, system), source_text(repository, system).encode()),
    )
    make_directories(view, *(file.path.rpartition("/")[0] for file in files))
    paths = [file.path for file in files]
    seals = line_per_path(view, LOOK_AT_FILES, paths, doing="looking at sources")
    for file, seal in zip(files, seals, strict=True):
        if seal != file.seal:
            view.transport.put(file.data, file.path, mode=file.mode, sudo=True)


def _vendor_key(view: HostView, repository: Repository) -> bytes:
    view.say(f"getting the key of {repository.name}")
    url = repository.key_url
    try:
        key = root_script(view, FETCH, url, doing=f"getting {url}", timeout=deadlines.KEY_ON_HOST)
    except CommandFailed as error:
        error.hint = (
            "the host cannot reach it: name a mirror in the inventory (packages), or use a "
            "bundle: clusterctl packages bundle --help"
        )
        raise
    return key.encode()


def _other_key(view: HostView, repository: Repository, why: str) -> StepFailed:
    return StepFailed(
        f"{repository.key_url} is not the key that signs {repository.name}: {why}",
        host=view.host.name,
        hint="a proxy in between, or a new key; for your own mirror, set its key in the "
        f"inventory: packages.{'docker' if repository.name == 'docker' else 'nvidia'}.key",
    )
