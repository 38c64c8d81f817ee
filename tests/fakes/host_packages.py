"""apt-get, dnf and Docker's static archive on a host in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clusterctl.packages.target import TOOLKIT
from clusterctl.steps import (
    container_engine,
    engine_source,
    host_python,
    nvidia_toolkit,
    package_sources,
)
from clusterctl.transport.base import CommandResult

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost

DOCKER_PACKAGES = ("containerd", "docker.io", "runc")
DOCKERS_PACKAGES = ("containerd.io", "docker-ce", "docker-ce-cli")
NVIDIA_KEY = "the test's key"

Script = Callable[[list[str], bytes], str]


class ManagedPackages:
    def __init__(self, state: FakeHost) -> None:
        self._state = state

    def scripts(self) -> dict[str, Script]:
        return {
            package_sources.INDEX: self._index,
            package_sources.MISSING: lambda words, _: "".join(
                f"{words[0]}/{w}\n" for w in words[1:]
            ),
            package_sources.FETCH: lambda *_: NVIDIA_KEY,
            engine_source.NAMES: self._archived,
            engine_source.UNPACK: self._unpack,
            host_python.LOOK: self._python,
            nvidia_toolkit.LOOK: self._toolkit,
            nvidia_toolkit.LEFT: self._left,
            nvidia_toolkit.RESTORE: self._restore,
            container_engine.REMOVE_FILES: self._remove,
        }

    def run(self, argv: Sequence[str]) -> CommandResult:
        words = [word for word in argv if word not in ("env", "-q", "-o")]
        words = [w for w in words if not w.partition("=")[0].isupper() and "::" not in w]
        if words[0] == "dnf":
            return self._dnf(argv, words)
        if words == ["dpkg", "--configure", "-a"]:
            return _result(argv, "")
        if words[:2] == ["apt-cache", "policy"]:
            return _result(argv, self._policy(words[2]))
        assert words[0] == "apt-get", f"unknown command: {argv}"
        if self._state.locked:
            self._state.locked -= 1
            return _result(argv, "", 100, "E: Could not get lock /var/lib/apt/lists/lock")
        if words[1:] == ["update"]:
            return _result(argv, "", 0, self._state.lists)
        if self._state.mirror:
            return _result(argv, "", 100, self._state.mirror)
        return _result(argv, self._install_or_purge(words))

    def _policy(self, name: str) -> str:
        """NVIDIA's and Docker's packages are offered by their sources, once those are there."""
        version = self._state.toolkit_offered if name in TOOLKIT else ""
        if not version and self._has_source_of(name):
            version = "1.19.1-1"
        if not version:
            return ""
        return f"{name}:\n  Candidate: {version}\n  Version table:\n     {version} 500\n"

    def _has_source_of(self, name: str) -> bool:
        if "offline" in self._sources():
            return name in (*TOOLKIT, "docker.io")
        whose = {"docker-ce": "docker", "nvidia-container-toolkit": "nvidia"}
        found = next((word for known, word in whose.items() if name.startswith(known)), None)
        return found is not None and f"clusterctl-{found}" in self._sources()

    def _sources(self) -> str:
        return "".join(
            f"{path}: {data.decode(errors='replace')}"
            for path, (data, _) in self._state.files.items()
            if path.endswith((".list", ".repo"))
        )

    def _dnf(self, argv: Sequence[str], words: list[str]) -> CommandResult:
        words = [word for word in words if not word.startswith("--")]
        if words[1] == "makecache":
            return _result(argv, "")
        if words[1] == "list":
            return _result(argv, "", 0 if self._has_source_of(words[2]) else 1)
        if words[1] == "remove" and "--assumeno" not in argv:
            self._purge(words[2:])
            return _result(argv, "")
        if words[1] == "remove":
            rows = "".join(f" {name}  x86_64  1.0-1  @repo  1 M\n" for name in words[2:])
            return _result(
                argv, f"Removing:\n{rows}\nTransaction Summary\n", 1, "Operation aborted."
            )
        names = [_name(word) for word in words[2:]]
        missing = [name for name in names if name not in self._state.packages]
        if "--assumeno" in argv:
            rows = "".join(f" {name}  x86_64  1.0-1  repo  1 M\n" for name in missing)
            return _result(
                argv, f"Installing:\n{rows}\nTransaction Summary\n", 1, "Operation aborted."
            )
        self._add(missing)
        return _result(argv, "")

    def _install_or_purge(self, words: list[str]) -> str:
        if "purge" in words:
            going = words[words.index("purge") + 1 :]
            if "-s" in words:
                needing = self._state.need_python & self._state.packages
                return "".join(f"Purg {name} [1.0]\n" for name in (*going, *needing))
            self._purge(going)
            return ""
        names = [word.partition("=") for word in words[words.index("install") + 1 :]]
        wanted = [name for name, _, _ in names]
        if wanted == ["docker.io"]:
            wanted = list(DOCKER_PACKAGES)
        missing = [name for name in wanted if name not in self._state.packages]
        if "-s" in words:
            return "".join(f"Inst {name} (1.0 stable)\n" for name in missing)
        versions = {name: version for name, _, version in names if version}
        self._add(missing, versions)
        return ""

    def _add(self, names: Sequence[str], versions: dict[str, str] | None = None) -> None:
        for name in names:
            self._state.about_to_change()
            self._state.packages.add(name)
        self._state.versions |= versions or {}
        if "nvidia-container-toolkit" in self._state.packages:
            self._state.gpus.toolkit = True

    def _purge(self, names: Sequence[str]) -> None:
        for name in names:
            self._state.about_to_change()
            self._state.packages.discard(name)

    def _python(self, *_: object) -> str:
        usable = {"python3", "python39"} & self._state.packages and not self._state.python_too_old
        return "python3\n" if usable else ""

    def _toolkit(self, names: list[str], _: bytes) -> str:
        there = [name for name in names if name in self._state.packages]
        versions = self._state.versions
        lines = [f"installed {name} {versions.get(name, '1.19.1-1')}\n" for name in there]
        running = [c.name for c in self._state.engine.containers.values() if c.running]
        return "".join(lines) + "".join(f"runs {name}\n" for name in running)

    def _index(self, words: list[str], _: bytes) -> str:
        path = f"{words[0]}/offline.list"
        if path not in self._state.files:
            self._state.about_to_change()
            self._state.files[path] = (b"offline", 0o644)
        return ""

    def _archived(self, words: list[str], _: bytes) -> str:
        data = self._state.files[words[0]][0]
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            names = [name.removeprefix("docker/") for name in tar.getnames() if "/" in name]
        return "".join(f"{name}\n" for name in names)

    def _unpack(self, words: list[str], _: bytes) -> str:
        for name in words[2:]:
            self._state.about_to_change()
            self._state.files[f"{words[1]}/{name}"] = (b"", 0o755)
        return ""

    def _remove(self, paths: list[str], _: bytes) -> str:
        for path in paths:
            self._state.about_to_change()
            self._state.files.pop(path, None)
        return ""

    def _left(self, words: list[str], _: bytes) -> str:
        marked = self._state.files.get(words[0], (b"", 0))[0].decode()
        return marked + ("/etc/docker/daemon.json\n" if self._state.gpus.kept else "")

    def _restore(self, *_: object) -> str:
        self._state.about_to_change()
        self._state.files.pop(nvidia_toolkit.MARKER, None)
        self._state.gpus.kept = False
        return ""


def _name(word: str) -> str:
    """`docker-ce`, `nvidia-container-toolkit-1.19.1-1`, `/cache/docker-ce-29.1.3-1.el9.rpm`."""
    file = word.rpartition("/")[2]
    known = (*DOCKERS_PACKAGES, *sorted(TOOLKIT, key=len, reverse=True))
    return next(
        (name for name in sorted(known, key=len, reverse=True) if file.startswith(name)), file
    )


def _result(argv: Sequence[str], stdout: str, status: int = 0, stderr: str = "") -> CommandResult:
    return CommandResult(tuple(argv), status, stdout, stderr)
