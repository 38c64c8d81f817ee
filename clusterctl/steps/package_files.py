"""Copy packages to a host as files, and index them so that its package manager can install them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import StepFailed
from clusterctl.packages.bundle import Bundle, PackageFile
from clusterctl.steps import directories, node_files
from clusterctl.steps.apt import Apt
from clusterctl.steps.dnf import Dnf
from clusterctl.steps.package_manager import PackageManager, target
from clusterctl.steps.root_script import root_script

CACHE = "/var/cache/clusterctl/packages"

# `trusted`: the checksum of every file has been verified
INDEX = """\
set -e
cd "$1"
mkdir -p lists/partial
for file in *.deb; do
  dpkg-deb -f "$file"
  printf 'Filename: ./%s\\nSize: %s\\nSHA256: %s\\n\\n' \
    "$file" "$(stat -c %s "$file")" "$(sha256sum <"$file" | cut -c1-64)"
done >Packages.new
mv Packages.new Packages
printf 'deb [trusted=yes] file:%s ./\\n' "$1" >offline.list
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
    root_script(view, directories.MAKE, "755", directory, doing=f"making {directory}")
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
    told = root_script(
        view, node_files.LOOK, *paths, doing="comparing packages", timeout=deadlines.PACKAGE_FILES
    )
    return [
        file
        for file, seal in zip(files, told.splitlines(), strict=True)
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
        directory = bring(view, bundle, bundle.packages(".deb"))
        root_script(
            view, INDEX, directory, doing="indexing packages", timeout=deadlines.PACKAGE_FILES
        )
        return Apt(view, pause, only=directory)
    files = [file for file in bundle.packages(".rpm") if wanted(file.name)]
    directory = bring(view, bundle, files)
    names = [file.name for file in files]
    told = root_script(
        view,
        MISSING,
        directory,
        *names,
        doing="looking at packages",
        timeout=deadlines.PACKAGE_FILES,
    )
    return Dnf(view, pause, files=told.splitlines())
