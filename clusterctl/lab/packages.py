"""Content of the mirror: Debian packages for bare hosts, and wheels for derived images."""

from __future__ import annotations

import gzip
import html
import re
import shutil
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

from clusterctl import deadlines
from clusterctl.lab.cache import content_key
from clusterctl.lab.local import run, succeeds

# Packages for hosts; their dependencies beyond the common tree are added.
MIRRORED_PACKAGES = ("curl", "docker.io", "gnupg", "iptables", "pigz", "python3", "python3-venv")


def packages_key(base_key: str) -> str:
    return content_key(base_key, *MIRRORED_PACKAGES)


def build_apt_repository(directory: Path, base: Path) -> None:
    """Download `MIRRORED_PACKAGES` with the dependencies that `base` lacks, and index them.

    apt uses lists and caches of its own here: the machine's are not changed.
    """
    apt = directory / "apt"
    options = _private_apt(apt, base)
    # One unreachable source among several may not matter; the download below fails if it does.
    succeeds(["apt-get", *options, "update"], timeout=deadlines.LAB_BUILD)
    run(
        ["apt-get", *options, "--yes", "--download-only", "--no-install-recommends", "install",
         *MIRRORED_PACKAGES],
        timeout=deadlines.LAB_BUILD,
    )  # fmt: skip
    for archive in (apt / "archives").glob("*.deb"):
        archive.rename(directory / archive.name)
    shutil.rmtree(apt)
    _index(directory)


def build_wheel_index(directory: Path, wheels: Path) -> None:
    """Write a `simple` index whose pages link to the wheels, which are served beside it."""
    projects: dict[str, list[str]] = defaultdict(list)
    for wheel in sorted(wheels.glob("*.whl")):
        projects[project_name(wheel.name)].append(wheel.name)
    simple = directory / "simple"
    _write_page(simple, (f"{name}/" for name in projects))
    for name, files in projects.items():
        _write_page(simple / name, (f"../../files/{quote(file)}" for file in files))


def project_name(wheel: str) -> str:
    """Return the normalized project name of a wheel's file name."""
    return re.sub(r"[-_.]+", "-", wheel.split("-", 1)[0]).lower()


def _private_apt(apt: Path, base: Path) -> list[str]:
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    settings = {
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": base / "var/lib/dpkg/status",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        # The machine may be configured to delete archives after use; keep these.
        "APT::Keep-Downloaded-Packages": "true",
        "APT::Sandbox::User": "root",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _index(directory: Path) -> None:
    """Write Packages, with paths relative to the repository, and Release."""
    packages = run(
        ["env", "-C", str(directory), "apt-ftparchive", "packages", "."],
        timeout=deadlines.LAB_INDEX,
    )
    (directory / "Packages").write_text(packages)
    (directory / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))
    release = run(["env", "-C", str(directory), "apt-ftparchive", "release", "."])
    (directory / "Release").write_text(release)


def _write_page(directory: Path, links: Iterable[str]) -> None:
    directory.mkdir(parents=True)
    anchors = (f'<a href="{link}">{html.escape(link.rstrip("/").split("/")[-1])}</a>'
               for link in links)  # fmt: skip
    body = "<br>\n".join(anchors)
    (directory / "index.html").write_text(
        f"<!DOCTYPE html>\n<html><body>\n{body}\n</body></html>\n"
    )
