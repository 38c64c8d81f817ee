"""Runs in the build of a node image: installs a requirement and its dependencies from a lock, by
hash.

    python3 lock_install.py REQUIREMENT LOCK CA

What the image has stays, unless it is too old for REQUIREMENT or its dependencies: then the lock's
version replaces it. Only wheels are installed: what builds a wheel would be fetched without a hash.
CA has certificates for the package index, besides those that pip and the image trust; it may be
empty.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from importlib import metadata

OTHER_HASH = "a file of the package index has a different hash than clusterctl's lock"
EXPECTED = re.compile(r"\s+(Expected\b|sha256:)")


def main(requirement: str, lock: str, ca: str = os.devnull) -> None:
    with open(lock, encoding="utf-8") as file:
        text = file.read()
    with open(ca, encoding="utf-8") as file:
        own = file.read()
    oldest = re.search(r"^# For Python 3\.(\d+) and later", text)
    if oldest and sys.version_info < (3, int(oldest[1])):
        found = ".".join(map(str, sys.version_info[:2]))
        sys.exit(f"{requirement} needs Python 3.{oldest[1]}, and the image has Python {found}")
    locked = entries(text)
    tried: set[str] = set()
    wanted = {name for name in locked if release(name) is None}
    with tempfile.TemporaryDirectory() as directory:
        trusted = trusting(own, os.path.join(directory, "ca.pem")) if own else {}
        while wanted:
            install((entry for name in sorted(wanted) for entry in locked[name]), trusted)
            importlib.invalidate_caches()
            tried |= wanted
            wanted = too_old(requirement, locked) - tried


def trusting(ca: str, path: str) -> dict[str, str]:
    """Write `ca` and the usual CAs to `path`, and return the variables that name it: for pip and
    uv, the file replaces their default CAs."""
    import ssl  # not every image's Python has it

    usual = [ssl.get_default_verify_paths().cafile]
    try:
        from pip._vendor import certifi

        usual.append(certifi.where())
    except ImportError:
        pass
    with open(path, "w", encoding="utf-8") as file:
        for known in usual:
            if known and os.path.isfile(known):
                with open(known, encoding="utf-8", errors="replace") as other:
                    file.write(other.read() + "\n")
        file.write(ca)
    return {"PIP_CERT": path, "SSL_CERT_FILE": path}


def entries(lock: str) -> dict[str, list[str]]:
    """Return the lock's entries by name; several if versions differ between Pythons."""
    found: dict[str, list[str]] = {}
    for line in lock.replace("\\\n", " ").splitlines():
        if line and not line.startswith("#"):
            found.setdefault(normalized(line.partition("==")[0]), []).append(line)
    return found


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def release(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def too_old(requirement: str, locked: dict[str, list[str]]) -> set[str]:
    """Return what is installed but too old for `requirement` or its dependencies, and older than
    the lock's version."""
    # Every lock of Ray has it, so that it is installed by now.
    from packaging.requirements import Requirement
    from packaging.version import Version

    found: set[str] = set()
    seen: set[str] = set()
    queue = [Requirement(requirement)]
    while queue:
        needed = queue.pop()
        name, installed = normalized(needed.name), release(needed.name)
        if installed is None or str(needed) in seen:
            continue
        seen.add(str(needed))
        if not needed.specifier.contains(installed, prereleases=True):
            pins = [re.split(r"[=; ]+", entry)[1] for entry in locked.get(name, ())]
            if any(Version(pin) > Version(installed) for pin in pins):
                found.add(name)
        for text in metadata.requires(needed.name) or ():
            dependency = Requirement(text)
            extras = needed.extras or {""}
            if dependency.marker is None or any(
                dependency.marker.evaluate({"extra": extra}) for extra in extras
            ):
                queue.append(dependency)
    return found


def install(requirements: Iterable[str], trusted: Mapping[str, str]) -> None:
    """Exits the program on failure."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(requirements) + "\n")
        file.flush()
        options = ["--no-deps", "--require-hashes", "--only-binary", ":all:", "-r", file.name]
        pip = [sys.executable, "-m", "pip"]
        if subprocess.run([*pip, "--version"], capture_output=True).returncode == 0:
            argv = [*pip, "install", "--no-cache-dir", *options]
        else:
            uv = ["uv", "pip", "install", "--python", sys.executable, "--no-cache"]
            argv = [*uv, *uv_index(), *options]
        environment = {**os.environ, **trusted, "PIP_BREAK_SYSTEM_PACKAGES": "1"}
        done = subprocess.run(argv, env=environment, stderr=subprocess.PIPE, text=True)
        # pip lists every hash that it expected, hundreds of lines.
        lines = [line for line in done.stderr.splitlines() if not EXPECTED.match(line)]
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        if done.returncode:
            refused = any(words in done.stderr for words in ("DO NOT MATCH", "Hash mismatch"))
            sys.exit(OTHER_HASH if refused else "the packages could not be installed")


def uv_index() -> list[str]:
    """Return uv's options for the index that pip reads from its environment."""
    index, trusted = os.environ.get("PIP_INDEX_URL"), os.environ.get("PIP_TRUSTED_HOST")
    return [
        *(["--default-index", index] if index else []),
        *(["--allow-insecure-host", trusted] if trusted else []),
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
