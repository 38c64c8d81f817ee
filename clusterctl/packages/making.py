"""Make a bundle: packages with their dependencies, checksums, and a manifest.

The local package manager downloads them, with sources and state separate from the machine's, which
do not change, and regardless of what is installed. So a bundle for a different release can be made.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed, UsageError
from clusterctl.packages.bundle import MANIFEST, SUMS
from clusterctl.packages.repository import (
    Repository,
    docker,
    key_path,
    nvidia,
    source_text,
    vendor_key,
)
from clusterctl.packages.target import (
    CLIENT_OF_DISTRIBUTION,
    DEBIAN_ARCHITECTURES,
    ENGINE_OF_DISTRIBUTION,
    ENGINE_OF_DOCKER,
    FIREWALL,
    TOOLKIT,
    BundleRequest,
    python_package,
)

FORMAT = 1

MACHINES_REPOSITORIES = "/etc/yum.repos.d"

_SHOWN = "$(CODENAME) $(COMPONENT) $(REPO_URI)"


@dataclass(frozen=True)
class Made:
    path: Path
    files: tuple[str, ...]
    size: int  # Bytes of all packages
    sums: str  # SHA-256 of its SHA256SUMS


def make(wanted: BundleRequest, output: Path, say: Callable[[str], None]) -> Made:
    """Make a bundle at `output`: a tar if its name ends in .tar, else a directory.

    `output` is created only when complete. Raises UsageError if `output` contains something else or
    cannot be written, or if this machine cannot make the bundle; StepFailed with the package
    manager's message.
    """
    _require_room(output)
    by_apt = wanted.target.family == "apt"
    on_disk = (wanted.mirror or "").startswith("file:")
    if wanted.mirror and not (wanted.keyring or by_apt or on_disk):
        raise UsageError(
            f"no key is known for the packages of {wanted.mirror}",
            hint="pass it: --keyring /etc/pki/rpm-gpg/RPM-GPG-KEY-...",
        )
    program = "apt-get" if by_apt else "dnf"
    if shutil.which(program) is None:
        raise UsageError(
            f"bundling packages for {wanted.target.name} needs {program}, which is not installed "
            "here",
            hint=f"run it on a connected machine with {program}, or in a container of that system",
        )
    with tempfile.TemporaryDirectory(prefix="clusterctl-bundle-") as name:
        work = Path(name)
        say(f"downloading packages for {wanted.target.name} {wanted.architecture}")
        files = download_by_apt(wanted, work) if by_apt else download_by_dnf(wanted, work)
        bundle = work / "bundle"
        bundle.mkdir()
        # apt before 2.1 does not find files whose names contain the `%3a` of an epoch.
        names = [file.name.replace("%3a", "-") for file in files]
        for file, its_name in zip(files, names, strict=True):
            file.rename(bundle / its_name)
        sums = (hashlib.sha256((bundle / file).read_bytes()).hexdigest() for file in names)
        lines = [f"{digest}  {file}\n" for digest, file in zip(sums, names, strict=True)]
        sums_text = "".join(lines)
        (bundle / SUMS).write_text(sums_text)
        manifest = {
            "format": FORMAT,
            "for": wanted.target.name,
            "architecture": wanted.architecture,
            "toolkit": wanted.toolkit,
        }
        (bundle / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
        size = sum((bundle / file).stat().st_size for file in names)
        try:
            # Write to a temporary name beside `output`, then rename.
            fresh = output.with_name(f".{output.name}.new")
            if output.suffix == ".tar":
                with tarfile.open(fresh, "w") as tar:
                    for file in sorted(bundle.iterdir()):
                        tar.add(file, file.name)
            else:
                shutil.rmtree(fresh, ignore_errors=True)
                shutil.copytree(bundle, fresh)
                shutil.rmtree(output, ignore_errors=True)
            fresh.rename(output)
        except OSError as error:
            raise _unwritable(output, error) from error
    return Made(output, tuple(names), size, hashlib.sha256(sums_text.encode()).hexdigest())


def _require_room(output: Path) -> None:
    """Raise UsageError if `output` cannot be used, before hundreds of MB are downloaded."""
    packed = output.suffix == ".tar"
    if output.exists() and output.is_dir() == packed:
        kind = "a directory" if packed else "a file"
        raise UsageError(
            f"{output} is {kind}", hint="-o names a directory, or a file that ends in .tar"
        )
    if output.is_dir() and any(output.iterdir()) and not (output / MANIFEST).is_file():
        raise UsageError(f"{output} is a directory that holds other files", hint="name a new one")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(output, error) from error


def _unwritable(output: Path, error: OSError) -> UsageError:
    why = error.strerror or str(error)
    return UsageError(f"{output} cannot be written: {why}", hint=f"ls -ld {output.parent}")


def _run(argv: Sequence[str], *, timeout: float = deadlines.LOCAL_COMMAND) -> str:
    """Return stdout. Raises StepFailed with the last lines, or after `timeout` seconds."""
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=environment,
            timeout=timeout,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired as error:
        raise StepFailed(f"`{argv[0]}` took longer than {timeout:g} s") from error
    except OSError as error:
        raise StepFailed(f"`{argv[0]}` cannot be run here: {error.strerror}") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        first = next((line for line in lines if line.startswith(("E:", "Error:"))), "")
        raise StepFailed(
            f"`{argv[0]}` ended with {done.returncode}: {first or (lines or [''])[-1]}",
            detail="\n".join(lines[-15:]) or None,
        )
    return done.stdout


def _vendors(wanted: BundleRequest) -> list[Repository]:
    """Return the repositories of Docker and NVIDIA that the bundle needs."""
    found = []
    if wanted.by_docker:
        found.append(docker(wanted.target, wanted.docker_url, wanted.docker_key))
    if wanted.toolkit:
        found.append(nvidia(wanted.target, wanted.nvidia_url, wanted.nvidia_key))
    return found


def download_by_apt(wanted: BundleRequest, work: Path) -> list[Path]:
    """Return the .deb files, in a directory below `work`. Raises UsageError if this machine has no
    sources for the release, StepFailed with apt's message."""
    for name in ("state/lists/partial", "cache/archives/partial", "keys"):
        (work / name).mkdir(parents=True, exist_ok=True)
    (work / "status").touch()
    signed = f"[signed-by={wanted.keyring}] " if wanted.keyring else ""
    sources = [f"deb {signed}{_copied(url)} {rest}" for url, rest in _own_sources(wanted)]
    for repository in _vendors(wanted):
        key = work / "keys" / f"{repository.name}.asc"
        key.write_bytes(vendor_key(repository))
        sources.append(f"deb [signed-by={key}] {_copied(repository.url)} {repository.suite}")
    (work / "sources.list").write_text("".join(f"{line}\n" for line in sources))
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
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    _run(["apt-get", *options, "update"], timeout=deadlines.PACKAGES_INDEX_HERE)
    engine = list(ENGINE_OF_DOCKER)
    if not wanted.by_docker:
        shown = _run(["apt-cache", *options, "policy", CLIENT_OF_DISTRIBUTION])
        has_client = "Candidate:" in shown and "(none)" not in shown
        engine = [*ENGINE_OF_DISTRIBUTION, *([CLIENT_OF_DISTRIBUTION] if has_client else [])]
    toolkit = [f"{name}={wanted.toolkit}" for name in TOOLKIT] if wanted.toolkit else []
    argv = ["apt-get", *options, "--yes", "--download-only", "--no-install-recommends", "install"]
    _run(
        [*argv, python_package(wanted.target), FIREWALL, *engine, *toolkit],
        timeout=deadlines.PACKAGES_DOWNLOAD,
    )
    needed = []
    for archive in sorted((work / "cache" / "archives").glob("*.deb")):
        shown = _run(["dpkg-deb", "-f", str(archive), "Priority", "Essential"])
        # Every Debian has the others.
        if "Priority: required" not in shown and "Essential: yes" not in shown:
            needed.append(archive)
    return needed


def _copied(url: str) -> str:
    """Replace `file:`, whose packages apt uses in place, by `copy:`, whose packages it copies."""
    return f"copy:{url.removeprefix('file:')}" if url.startswith("file:") else url


def _own_sources(wanted: BundleRequest) -> list[tuple[str, str]]:
    """Return (URL, suite and components) of each source of the release's own packages: the mirror,
    or this machine's sources with the wanted release's name in place of the machine's."""
    target = wanted.target
    components = "main universe" if target.system == "ubuntu" else "main"
    if wanted.mirror:
        return [(wanted.mirror, f"{target.codename} {components}")]
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        lines = []
    machine = dict(line.split("=", 1) for line in lines if "=" in line)
    if machine.get("ID", "").strip('"') != target.system:
        raise UsageError(
            f"this machine is not {target.system} and has no package sources for it",
            hint=f"make the bundle on a {target.system} machine (a container will do), or pass "
            "--mirror URL and --keyring FILE",
        )
    here = machine.get("VERSION_CODENAME", "").strip('"')
    shown = _run(["apt-get", "indextargets", "--format", _SHOWN, "Created-By: Packages"])
    rows = [line.split() for line in shown.splitlines() if line.startswith((here, f"{here}-"))]
    found = {(row[2], row[0].replace(here, target.codename, 1)) for row in rows if len(row) == 3}
    if not found:
        raise UsageError(
            "apt has no package source for this machine's release", hint="apt-get update"
        )
    return [(url, f"{suite} {components}") for url, suite in sorted(found)]


def download_by_dnf(wanted: BundleRequest, work: Path) -> list[Path]:
    """Return the .rpm files, in a directory below `work`. Raises StepFailed with dnf's message.

    dnf resolves against an empty root, so that packages installed on this machine do not count.
    Hosts install only the packages that they lack.
    """
    repositories = work / "repositories"
    repositories.mkdir()
    for repository in _vendors(wanted):
        # The same text that hosts get, but with the key in a file of this run.
        key = work / f"{repository.name}.asc"
        key.write_bytes(vendor_key(repository))
        text = source_text(repository, wanted.target)
        text = text.replace(key_path(repository, wanted.target), str(key))
        (repositories / f"{repository.name}.repo").write_text(text)
    own = f",{MACHINES_REPOSITORIES}"
    if wanted.mirror:  # the URL of one repository, such as .../9/BaseOS/x86_64/os
        own = ""
        signed = f"gpgcheck=1\ngpgkey=file://{wanted.keyring}" if wanted.keyring else "gpgcheck=0"
        (repositories / "mirror.repo").write_text(
            f"[clusterctl-mirror]\nname=mirror\nbaseurl={wanted.mirror}\nenabled=1\n{signed}\n"
        )
    files = work / "rpms"
    dnf = [
        "dnf",
        "--assumeyes",
        f"--installroot={work / 'root'}",
        f"--releasever={wanted.target.version}",
        f"--forcearch={wanted.architecture}",
        f"--setopt=reposdir={repositories}{own}",
        f"--setopt=cachedir={work / 'cache'}",
        "--setopt=install_weak_deps=False",
        "--setopt=skip_if_unavailable=False",
    ]
    toolkit = [f"{name}-{wanted.toolkit}" for name in TOOLKIT] if wanted.toolkit else []
    names = [python_package(wanted.target), FIREWALL, *ENGINE_OF_DOCKER, *toolkit]
    _run(
        [*dnf, "install", "--downloadonly", f"--downloaddir={files}", *names],
        timeout=deadlines.PACKAGES_DOWNLOAD,
    )
    return sorted(files.glob("*.rpm"))
