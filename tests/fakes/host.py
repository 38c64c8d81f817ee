"""A host in memory: files, packages, a container engine. It understands exactly the commands
that the steps send; any other is an AssertionError.

`cut_at` ends the connection just before the n-th change, as a cable would.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, cast

from clusterctl import deadlines
from clusterctl.engine.step import HostView
from clusterctl.errors import CommandFailed, ConnectionFailed
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host
from clusterctl.steps import container_engine, engine_restart, files, service_documents
from clusterctl.steps import secrets as secret_files
from clusterctl.steps.package_manager import RUN
from clusterctl.transport.base import ABSENT, Channel, CommandResult
from tests.fakes.container_engine import FakeDriver, FakeEngine
from tests.fakes.host_firewall import FakeTables, FirewallScripts
from tests.fakes.host_gpus import FakeGpus, GpuScripts
from tests.fakes.host_keepalived import KeepalivedScripts
from tests.fakes.host_packages import DOCKER_PACKAGES as DOCKER_PACKAGES
from tests.fakes.host_packages import ManagedPackages
from tests.fakes.host_proxies import ProxyScripts
from tests.fakes.host_trust import TrustScripts


@dataclass
class FakeHost:
    """State. A directory is a path to its mode, a file to its bytes and mode."""

    name: str
    files: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    directories: dict[str, int] = field(default_factory=dict)
    packages: set[str] = field(default_factory=lambda: set(DOCKER_PACKAGES))
    engine: FakeEngine = field(default_factory=FakeEngine)
    mirror: str = ""
    """What apt-get says when it fails; empty: it works."""
    lists: str = ""
    """What `apt-get update` complains about, without failing."""
    locked: int = 0
    """So many times apt-get finds its lock taken."""
    toolkit_offered: str = ""
    """Version of NVIDIA's toolkit that the host's own sources have."""
    versions: dict[str, str] = field(default_factory=dict)
    """Of installed packages, where they matter."""
    python_too_old: bool = False
    """Whatever package of it is installed."""
    need_python: set[str] = field(default_factory=set)
    """Names of packages that would go with python3."""
    gpus: FakeGpus = field(default_factory=FakeGpus)
    wanted: dict[str, bytes] = field(default_factory=dict)
    """Units that docker.service pulls in, each with its text as systemd has read it."""
    tables: FakeTables = field(default_factory=FakeTables)
    systemd: bool = True
    engine_proxy: dict[str, str] = field(default_factory=dict)
    has_store: bool = True
    trusted: set[str] = field(default_factory=set)
    """Base64 of the certificates in the store."""
    shared_by: dict[str, bytes] = field(default_factory=dict)
    """What keepalived runs with, by its unit."""
    neighbours: dict[str, str] = field(default_factory=dict)
    """MAC addresses of machines that answer, by IP address."""
    snap: bool = False
    changes: int = 0
    cut_at: int | None = None

    def about_to_change(self) -> None:
        self.changes += 1
        if self.changes == self.cut_at:
            raise ConnectionFailed("the connection was lost", host=self.name)

    @property
    def has_docker(self) -> bool:
        ours = {"docker.io", "docker-ce"} & self.packages
        return bool(ours) or "/usr/bin/dockerd" in self.files

    def picture(self) -> str:
        """All of its state, to see whether anything changed."""
        state = (self.files, self.directories, sorted(self.packages), self.engine, self.gpus,
                 self.tables, sorted(self.trusted), self.engine_proxy, self.wanted,
                 self.shared_by)  # fmt: skip
        return repr(state)


class FakeTransport:
    """The Transport protocol over a FakeHost."""

    def __init__(self, state: FakeHost) -> None:
        self.state = state
        self.host = Host(name=state.name, address=f"{state.name}.example")
        self.seen: list[tuple[str, ...]] = []
        self._managed = ManagedPackages(state)
        self._firewall = FirewallScripts(state)
        self._scripts: dict[str, Callable[[list[str], bytes], str]] = {
            **self._managed.scripts(),
            **GpuScripts(state).scripts(),
            **self._firewall.scripts(),
            **TrustScripts(state).scripts(),
            **ProxyScripts(state).scripts(),
            **KeepalivedScripts(state).scripts(),
            files.LOOK_AT_DIRECTORIES: self._look_at_directories,
            files.MAKE_DIRECTORIES: self._make_directories,
            files.LOOK_AT_FILES: self._look_at_files,
            secret_files.LOOK: self._look_at_secrets,
            secret_files.MAKE: self._make_secrets,
            files.LOOK_FOR_PATHS: self._look_for_paths,
            files.LOOK_BESIDE: self._other_clusters,
            files.REMOVE: self._remove_paths,
            service_documents.REMOVE_FILE: self._remove_paths,
            container_engine.LOOK: self._look_for_engine,
            container_engine.START: self._start_engine,
            container_engine.WHY_NOT: lambda *_: "",
            files.REMEMBER: self._remember,
            container_engine.REMOVE_FILES: self._remove_paths,
            files.FORGET: self._unmark,
            container_engine.LEFT: self._container_names,
            container_engine.STOP: self._stop_engine,
            container_engine.FORGET_ENGINE: self._forget,
            engine_restart.LOOK: self._look_at_unit,
            engine_restart.ENABLE: self._enable,
            engine_restart.REMOVE: self._remove_unit,
        }

    def connect(self) -> None:
        return None

    @property
    def breaks(self) -> int:
        return 0

    def another(self) -> FakeTransport:
        self._firewall.connecting()
        return FakeTransport(self.state)

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        sudo: bool = False,
        timeout: float = deadlines.COMMAND,
    ) -> CommandResult:
        if list(argv[:3]) == ["sh", "-c", RUN]:
            argv = argv[4:]
        self.seen.append(tuple(argv))
        if list(argv[:2]) == ["sh", "-c"]:
            return self._result(argv, self._scripts[argv[2]](list(argv[4:]), stdin))
        if list(argv) == ["date", "+%s"]:
            return CommandResult(tuple(argv), 0, "0\n", "")
        return self._managed.run(argv)

    def put(
        self,
        data: bytes,
        path: str,
        *,
        mode: int = 0o644,
        sudo: bool = False,
        before: str | None = None,
    ) -> None:
        self.state.about_to_change()
        directory = path.rpartition("/")[0]
        if directory not in self.state.directories:
            raise CommandFailed(f"{directory} does not exist", host=self.host.name)
        there = self.state.files.get(path)
        if before not in (None, hashlib.sha256(there[0]).hexdigest() if there else ABSENT):
            raise CommandFailed(f"someone else changed {path} meanwhile", host=self.host.name)
        self.state.files[path] = (data, mode)

    def read_file(self, path: str, *, sudo: bool = True) -> bytes | None:
        self.seen.append(("cat", path))
        return self.state.files[path][0] if path in self.state.files else None

    def open_channel(self, argv: Sequence[str], *, sudo: bool = False) -> Channel:
        raise AssertionError(f"steps stream through drivers only: {argv}")

    def open_tcp(self, address: str, port: int) -> NoReturn:
        raise AssertionError(f"no step opens {address}:{port}")

    def close(self) -> None:
        return None

    def _result(
        self, argv: Sequence[str], stdout: str, status: int = 0, stderr: str = ""
    ) -> CommandResult:
        return CommandResult(tuple(argv), status, stdout, stderr)

    def _look_at_directories(self, paths: list[str], _: bytes) -> str:
        known = self.state.directories
        return "".join(f"{known[p]:o} 0\n" if p in known else "none\n" for p in paths)

    def _make_directories(self, pairs: list[str], _: bytes) -> str:
        for mode, path in zip(pairs[::2], pairs[1::2], strict=True):
            self.state.about_to_change()
            self.state.directories[path] = int(mode, 8)
        return ""

    def _look_at_files(self, paths: list[str], _: bytes) -> str:
        return "".join(self._seal(path) + "\n" for path in paths)

    def _seal(self, path: str) -> str:
        if path not in self.state.files:
            return "none"
        data, mode = self.state.files[path]
        return f"{mode:o} {hashlib.sha256(data).hexdigest()}"

    def _look_at_secrets(self, paths: list[str], _: bytes) -> str:
        files = self.state.files
        return "".join(
            f"{files[p][1]:o} 0 {hashlib.sha256(files[p][0]).hexdigest()}\n"
            if p in files and files[p][0].strip()
            else "none\n"
            for p in paths
        )

    def _make_secrets(self, paths: list[str], _: bytes) -> str:
        for path in paths:
            self.state.about_to_change()
            value = hashlib.sha256(f"{self.host.name}{path}".encode()).hexdigest().encode()
            self.state.files[path] = (self.state.files.get(path, (value, 0))[0], 0o600)
        return ""

    def _look_for_paths(self, paths: list[str], _: bytes) -> str:
        return "".join(f"{path}\n" for path in paths if self._below(path))

    def _other_clusters(self, arguments: list[str], _: bytes) -> str:
        parent, _slash, own = arguments[0].rpartition("/")
        below = [path.removeprefix(f"{parent}/") for path in self._below(parent)]
        inside = [path for path in below if not path.startswith("/")]
        found = {path.partition("/")[0] for path in inside} - {
            path for path in inside if f"{parent}/{path}" in self.state.files
        }
        return "".join(f"{name}\n" for name in sorted(found - {own}))

    def _remove_paths(self, paths: list[str], _: bytes) -> str:
        for path in paths:
            self.state.about_to_change()
            for found in self._below(path):
                self.state.files.pop(found, None)
                self.state.directories.pop(found, None)
        return ""

    def _below(self, path: str) -> list[str]:
        everything = (*self.state.files, *self.state.directories)
        return [found for found in everything if f"{found}/".startswith(f"{path}/")]

    def _look_for_engine(self, _: list[str], __: bytes) -> str:
        state = self.state
        told = {"packages": "yes"}
        if state.systemd:
            told["systemd"] = "yes"
        if state.has_docker or state.snap:
            told["client"] = "/snap/bin/docker" if state.snap else "/usr/bin/docker"
            told["unit"] = "yes"
            running = state.engine.running
            told["server" if running else "refusal"] = "20.10.24" if running else "no daemon"
        return "".join(f"{name}={value}\n" for name, value in told.items())

    def _start_engine(self, _: list[str], __: bytes) -> str:
        self.state.about_to_change()
        self.state.engine.running = self.state.has_docker
        return ""

    def _stop_engine(self, _: list[str], __: bytes) -> str:
        self.state.about_to_change()
        self.state.engine.running = False
        return ""

    def _container_names(self, _: list[str], __: bytes) -> str:
        containers = self.state.engine.containers.values()
        return "".join(f"{c.cluster or ''}={c.name}\n" for c in containers)

    def _remember(self, arguments: list[str], stdin: bytes) -> str:
        self.state.about_to_change()
        (path,) = arguments
        lines = {*(self.read_file(path) or b"").decode().split(), *stdin.decode().split()}
        self.state.files[path] = ("".join(f"{line}\n" for line in sorted(lines)).encode(), 0o644)
        return ""

    def _look_at_unit(self, arguments: list[str], _: bytes) -> str:
        lines = []
        for path in arguments:
            text = self.read_file(path)
            known = "wanted" if self.state.wanted.get(path, b"") == text else "unknown"
            digest = hashlib.sha256(text).hexdigest() if text else "none"
            lines.append(f"{known if self.state.systemd else 'other'} {digest}\n")
        return "".join(lines)

    def _enable(self, arguments: list[str], _: bytes) -> str:
        self.state.about_to_change()
        for path in arguments:
            self.state.wanted[path] = self.state.files[path][0]
        return ""

    def _remove_unit(self, arguments: list[str], _: bytes) -> str:
        for path in arguments:
            self.state.about_to_change()
            self.state.wanted.pop(path, None)
            self.state.about_to_change()
            self.state.files.pop(path, None)
        return ""

    def _forget(self, arguments: list[str], _: bytes) -> str:
        self.state.about_to_change()
        self.state.files.pop(arguments[0], None)
        return ""

    def _unmark(self, arguments: list[str], _: bytes) -> str:
        path, gone = arguments
        kept = [line for line in (self.read_file(path) or b"").decode().split() if line != gone]
        if path in self.state.files:
            self.state.about_to_change()
            self.state.files[path] = ("".join(f"{line}\n" for line in kept).encode(), 0o644)
            if not kept:
                del self.state.files[path]
        return ""


def fake_view(state: FakeHost, facts: HostFacts) -> HostView:
    transport = FakeTransport(state)
    return HostView(transport.host, facts, transport)


def fake_driver(transport: object) -> FakeDriver:
    """For Engines: the driver of the transport's host."""
    state = cast("FakeTransport", transport).state
    return FakeDriver(state.name, state.engine, state.about_to_change)
