"""Stand-ins for NVIDIA's four packages: the same names and dependencies, and an nvidia-ctk that
does to daemon.json what the real one does. NVIDIA's own cannot be had without its repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from clusterctl.packages.target import TOOLKIT

VERSION = "1.19.1-1"
NEEDS = {
    "nvidia-container-toolkit": f"nvidia-container-toolkit-base (= {VERSION}), "
    f"libnvidia-container-tools (>= {VERSION})",
    "libnvidia-container-tools": f"libnvidia-container1 (>= {VERSION})",
}
CALLS = "/var/log/nvidia-ctk.calls"
NVIDIA_CTK = f"""\
#!/bin/sh
echo "$@" >>{CALLS}
if [ "$1 $2" = "runtime configure" ]; then
  mkdir -p /etc/docker
  printf '%s\\n' '{{"runtimes":{{"nvidia":{{"path":"/usr/bin/nvidia-container-runtime"}}}}}}' \\
    >/etc/docker/daemon.json
fi
"""


def build_packages(directory: Path) -> None:
    """The four .deb files, in `directory`."""
    for name in TOOLKIT:
        tree = directory / f"tree-{name}"
        (tree / "DEBIAN").mkdir(parents=True)
        needs = f"Depends: {NEEDS[name]}\n" if name in NEEDS else ""
        (tree / "DEBIAN/control").write_text(
            f"Package: {name}\nVersion: {VERSION}\nArchitecture: amd64\n"
            f"Maintainer: tests <tests@example.org>\n{needs}Description: stand-in for tests\n"
        )
        if name == "nvidia-container-toolkit-base":
            _programs(tree / "usr/bin")
        file = directory / f"{name}_{VERSION}_amd64.deb"
        subprocess.run(
            ["dpkg-deb", "--build", "--root-owner-group", tree, file],
            check=True, capture_output=True,
        )  # fmt: skip
        shutil.rmtree(tree)


def _programs(directory: Path) -> None:
    directory.mkdir(parents=True)
    for name, text in (
        ("nvidia-ctk", NVIDIA_CTK),
        ("nvidia-container-runtime", '#!/bin/sh\nexec runc "$@"\n'),
    ):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)


def build_repository(root: Path) -> Path:
    """A repository with NVIDIA's layout below `root`, signed with a key of its own; the key."""
    packages = root / "stable/deb/amd64"
    packages.mkdir(parents=True)
    build_packages(packages)
    environment = {**os.environ, "GNUPGHOME": str(root / "gnupg")}
    (root / "gnupg").mkdir(mode=0o700)

    def run(*argv: str) -> str:
        done = subprocess.run(
            argv, cwd=packages, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout

    (packages / "Packages").write_text(run("apt-ftparchive", "packages", "."))
    (packages / "Release").write_text(run("apt-ftparchive", "release", "."))
    gpg = ("gpg", "--batch", "--pinentry-mode", "loopback", "--passphrase", "")
    run(*gpg, "--quick-generate-key", "tests <tests@example.org>", "ed25519", "sign", "never")
    run(*gpg, "--clearsign", "--output", "InRelease", "Release")
    key = root / "gpgkey"
    key.write_text(run("gpg", "--armor", "--export"))
    return key


@contextmanager
def served(directory: Path, address: str) -> Iterator[str]:
    """The directory by HTTP; the URL."""
    handler = partial(_Quiet, directory=str(directory))
    with ThreadingHTTPServer((address, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{address}:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        return None
