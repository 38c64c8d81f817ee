"""The package mirror: a static web server on the controller's address on the bridge.

It is the only server outside the lab that a host can reach, and stands in for real package sources:
Debian packages for bare hosts, and wheels for node images.
"""

from __future__ import annotations

import gzip
import html
import os
import re
import shutil
import signal
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab.base import AptSource
from clusterctl.lab.layout import CONTROL
from clusterctl.lab.local import ensure_link, last_lines, run, start, succeeds
from clusterctl.lab.paths import content_key

MIRROR_PORT = 8077
MIRROR_URL = f"http://{CONTROL.controller}:{MIRROR_PORT}"
MIRROR_DEBIAN = f"{MIRROR_URL}/debian"
MIRROR_PIP = f"{MIRROR_URL}/pip/simple"
# Python's server first looks up the name of its address, which is not needed.
_NAMES_SOON = {"RES_OPTIONS": "timeout:1 attempts:1"}


def server_argv(directory: Path) -> list[str]:
    """Return the server's command. -I: no module of the current directory shadows the library's."""
    bind = ["--bind", str(CONTROL.controller), "--directory", str(directory)]
    return [sys.executable, "-I", "-m", "http.server", *bind, str(MIRROR_PORT)]


def ensure_mirror(directory: Path, contents: dict[str, Path]) -> bool:
    """Serve `contents` (name below the root to a directory). Return whether anything changed."""
    directory.mkdir(parents=True, exist_ok=True)
    changed = [ensure_link(directory / name, target) for name, target in contents.items()]
    if server_pids(directory):
        return any(changed)
    log = directory.with_name("mirror.log")
    start(server_argv(directory), log=log, env=_NAMES_SOON)
    deadline = time.monotonic() + deadlines.LAB_PACKAGE_SERVER
    address = (str(CONTROL.controller), MIRROR_PORT)
    while True:
        with suppress(OSError), socket.create_connection(address, deadlines.LAB_GREETING):
            if server_pids(directory):
                return True
        if time.monotonic() > deadline:
            raise StepFailed(
                f"the package mirror does not start on port {MIRROR_PORT}",
                hint=f"read {log}",
                detail=last_lines(log, 5),
            )
        time.sleep(0.05)


def server_pids(directory: Path) -> tuple[int, ...]:
    """Return the processes that serve this directory in this network namespace. A process in a
    different namespace belongs to another lab, in a container or sandbox next to this one."""
    wanted = ("http.server", f"--directory\0{directory}\0")
    here = Path("/proc/self/ns/net").readlink()
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace")
            network = entry.with_name("ns").joinpath("net").readlink()
        except OSError:
            continue  # the process ended meanwhile
        if network == here and all(part in command for part in wanted):
            found.append(int(entry.parent.name))
    return tuple(found)


def stop_mirror(directory: Path) -> bool:
    """Stop the server. Return whether it was running."""
    pids = server_pids(directory)
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + deadlines.LAB_PACKAGE_SERVER
    while left := server_pids(directory):
        if time.monotonic() > deadline:
            raise StepFailed(f"the mirror (process {left[0]}) does not end")
        time.sleep(0.05)
    return bool(pids)


# Packages for hosts; their dependencies beyond the common tree are added.
MIRRORED_PACKAGES = (
    "curl",
    "docker.io",
    "gnupg",
    "iptables",
    "keepalived",
    "nftables",
    "pigz",
    "python3",
    "python3-venv",
)
# Since Debian 13 the engine's client is a package of its own, which docker.io only recommends.
CLIENT_PACKAGE = "docker-cli"

# Debian 12's engine, 20.10, has no CDI, by which hosts give containers their GPUs. The next
# release's does, and runs on it.
ENGINE_SUITE = {"bookworm": "trixie"}
ENGINE_PACKAGES = ("docker.io", "containerd", CLIENT_PACKAGE)
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def packages_key(base_key: str) -> str:
    return content_key(base_key, *MIRRORED_PACKAGES, CLIENT_PACKAGE, str(ENGINE_SUITE))


def build_apt_repository(directory: Path, base: Path, source: AptSource) -> None:
    """Download `MIRRORED_PACKAGES` with the dependencies that `base` lacks, and the engine's client
    if it is a separate package; index them. `source`: what `base` was built from.

    apt uses separate lists and caches, so that the machine's do not change.
    """
    apt = directory / "apt"
    for name in ("lists/partial", "archives/partial"):
        (apt / name).mkdir(parents=True)
    newer = ENGINE_SUITE.get(source.suite)
    if newer:
        line = f"deb [signed-by={_KEYRING}] {source.uri} {newer} main\n"
        (apt / "sources.list").write_text(line)
        (apt / "preferences").write_text(f"Package: *\nPin: release n={newer}\nPin-Priority: 1\n")
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
    if newer:
        settings["Dir::Etc::SourceList"] = apt / "sources.list"
        settings["Dir::Etc::Preferences"] = apt / "preferences"
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    # One unreachable source among several may not matter; the download below fails if it does.
    succeeds(["apt-get", *options, "update"], timeout=deadlines.LAB_BUILD)
    install = ["apt-get", *options, "--yes", "--no-install-recommends", "install"]
    own_client = succeeds([*install, "--simulate", CLIENT_PACKAGE], timeout=deadlines.LAB_BUILD)
    wanted = [*MIRRORED_PACKAGES, *([CLIENT_PACKAGE] if own_client else [])]
    if newer:
        wanted = [name for name in wanted if name not in ENGINE_PACKAGES]
        wanted += [f"{name}/{newer}" for name in ENGINE_PACKAGES]
    run([*install, "--download-only", *wanted], timeout=deadlines.LAB_BUILD)
    for archive in (apt / "archives").glob("*.deb"):
        archive.rename(directory / archive.name)
    shutil.rmtree(apt)
    index = ["env", "-C", str(directory), "apt-ftparchive"]  # for paths relative to the repository
    packages = run([*index, "packages", "."], timeout=deadlines.LAB_INDEX)
    (directory / "Packages").write_text(packages)
    (directory / "Packages.gz").write_bytes(gzip.compress(packages.encode(), mtime=0))
    (directory / "Release").write_text(run([*index, "release", "."]))


def build_wheel_index(directory: Path, wheels: Path) -> None:
    """Write a `simple` index whose pages link to the wheels, which are served next to it."""
    projects: dict[str, list[str]] = defaultdict(list)
    for wheel in sorted(wheels.glob("*.whl")):
        projects[project_name(wheel.name)].append(wheel.name)
    simple = directory / "simple"
    _write_page(simple, (f"{name}/" for name in projects))
    for name, files in projects.items():
        _write_page(simple / name, (f"../../files/{quote(file)}" for file in files))


def add_wheel(index: Path, name: str) -> None:
    """Add the wheel `name` to the index that `build_wheel_index` wrote for wheels next to it."""
    page = index / "simple" / project_name(name)
    shutil.rmtree(page, ignore_errors=True)
    _write_page(page, [f"../../files/{quote(name)}"])


def project_name(wheel: str) -> str:
    """Return the normalized project name of a wheel's file name."""
    return re.sub(r"[-_.]+", "-", wheel.split("-", 1)[0]).lower()


def _write_page(directory: Path, links: Iterable[str]) -> None:
    directory.mkdir(parents=True)
    anchors = (f'<a href="{link}">{html.escape(link.rstrip("/").split("/")[-1])}</a>'
               for link in links)  # fmt: skip
    body = "<br>\n".join(anchors)
    (directory / "index.html").write_text(
        f"<!DOCTYPE html>\n<html><body>\n{body}\n</body></html>\n"
    )
