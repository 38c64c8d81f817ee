"""Download packages of a Debian or Ubuntu release, with dependencies, by the local apt-get.

apt uses sources, lists and a state separate from the machine's, which do not change, and ignores
what is installed on it. So a bundle for another release can be made.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import UsageError
from clusterctl.packages import local_command
from clusterctl.packages.repository import Repository, docker, nvidia
from clusterctl.packages.target import (
    CLIENT_OF_DISTRIBUTION,
    DEBIAN_ARCHITECTURES,
    ENGINE_OF_DISTRIBUTION,
    ENGINE_OF_DOCKER,
    TOOLKIT,
    BundleRequest,
    python_package,
)
from clusterctl.packages.vendor_keys import vendor_key

_SHOWN = "$(CODENAME) $(COMPONENT) $(REPO_URI)"


def download(wanted: BundleRequest, work: Path) -> list[Path]:
    """Return the .deb files, in a directory below `work`. Raises UsageError if this machine does
    not know the release's sources, StepFailed with apt's message."""
    options = _private(wanted, work)
    local_command.run(["apt-get", *options, "update"], timeout=deadlines.PACKAGES_INDEX_HERE)
    names = _names(wanted, options)
    argv = ["apt-get", *options, "--yes", "--download-only", "--no-install-recommends", "install"]
    local_command.run([*argv, *names], timeout=deadlines.PACKAGES_DOWNLOAD)
    archives = (work / "cache" / "archives").glob("*.deb")
    return [archive for archive in sorted(archives) if not _is_everywhere(archive)]


def _names(wanted: BundleRequest, options: list[str]) -> list[str]:
    engine = list(ENGINE_OF_DOCKER)
    if not wanted.by_docker:
        shown = local_command.run(["apt-cache", *options, "policy", CLIENT_OF_DISTRIBUTION])
        has_client = "Candidate:" in shown and "(none)" not in shown
        engine = [*ENGINE_OF_DISTRIBUTION, *([CLIENT_OF_DISTRIBUTION] if has_client else [])]
    toolkit = [f"{name}={wanted.toolkit}" for name in TOOLKIT] if wanted.toolkit else []
    return [python_package(wanted.target), *engine, *toolkit]


def _is_everywhere(archive: Path) -> bool:
    """Whether every Debian has the package, as it is required or essential."""
    told = local_command.run(["dpkg-deb", "-f", str(archive), "Priority", "Essential"])
    return "Priority: required" in told or "Essential: yes" in told


def _private(wanted: BundleRequest, work: Path) -> list[str]:
    """Return options that restrict apt to files below `work`."""
    for name in ("state/lists/partial", "cache/archives/partial", "keys"):
        (work / name).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    (work / "sources.list").write_text("".join(f"{line}\n" for line in _sources(wanted, work)))
    settings = {
        "APT::Architecture": DEBIAN_ARCHITECTURES[wanted.architecture],
        "APT::Architectures": DEBIAN_ARCHITECTURES[wanted.architecture],
        "APT::Sandbox::User": "root",
        "APT::Keep-Downloaded-Packages": "true",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
        "Acquire::Retries": "2",
        "Acquire::http::Timeout": "30",
        "Acquire::https::Timeout": "30",
        "Dir::Etc::SourceList": str(work / "sources.list"),
        "Dir::Etc::SourceParts": "-",
        "Dir::State": str(work / "state"),
        "Dir::State::status": str(work / "status"),
        "Dir::Cache": str(work / "cache"),
    }
    return [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]


def _sources(wanted: BundleRequest, work: Path) -> Iterator[str]:
    signed = f"[signed-by={wanted.keyring}] " if wanted.keyring else ""
    for url, suite, components in _own_sources(wanted):
        yield f"deb {signed}{_copied(url)} {suite} {components}"
    if wanted.by_docker:
        yield _vendor(docker(wanted.target, wanted.docker_url, wanted.docker_key), work)
    if wanted.toolkit:
        yield _vendor(nvidia(wanted.target, wanted.nvidia_url, wanted.nvidia_key), work)


def _own_sources(wanted: BundleRequest) -> list[tuple[str, str, str]]:
    """Return URL, suite and components of the release's own packages: of the mirror, or of this
    machine's sources with the release's name in place of the machine's."""
    codename = wanted.target.codename
    components = "main universe" if wanted.target.system == "ubuntu" else "main"
    if wanted.mirror:
        return [(wanted.mirror, codename, components)]
    system, here = _machine()
    if system != wanted.target.system:
        raise UsageError(
            f"this machine is not {wanted.target.system} and has no package sources for it",
            hint=f"make the bundle on a {wanted.target.system} machine (a container does), or "
            "give --mirror URL and --keyring FILE",
        )
    shown = local_command.run(
        ["apt-get", "indextargets", "--format", _SHOWN, "Created-By: Packages"]
    )
    rows = [line.split() for line in shown.splitlines() if line.startswith((here, f"{here}-"))]
    found = {(row[2], row[0].replace(here, codename, 1)) for row in rows if len(row) == 3}
    if not found:
        raise UsageError(
            "apt has no package source for this machine's release", hint="apt-get update"
        )
    return [(url, suite, components) for url, suite in sorted(found)]


def _machine() -> tuple[str, str]:
    """System and codename of this machine."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return "", ""
    told = dict(line.split("=", 1) for line in lines if "=" in line)
    return told.get("ID", "").strip('"'), told.get("VERSION_CODENAME", "").strip('"')


def _vendor(repository: Repository, work: Path) -> str:
    """Return a line of sources.list for a vendor's repository, and store its verified key."""
    key = work / "keys" / f"{repository.name}.asc"
    key.write_bytes(vendor_key(repository))
    return f"deb [signed-by={key}] {_copied(repository.url)} {repository.suite}"


def _copied(url: str) -> str:
    """Replace `file:`, whose packages apt uses in place, by `copy:`, whose packages it copies."""
    return f"copy:{url.removeprefix('file:')}" if url.startswith("file:") else url
