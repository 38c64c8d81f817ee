"""A real Docker engine of our own: private socket, private data, no bridge, no iptables."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.errors import ClusterctlError
from clusterctl.inventory.model import Host
from clusterctl.transport.local import LocalTransport
from tests.contract.containers.newer_engine import inside, newer_tree

START_LIMIT = 60.0


@dataclass(frozen=True)
class Engine:
    """A dockerd that runs on this machine."""

    name: str
    argv: tuple[str, ...]
    transport: LocalTransport
    home: Path

    @property
    def prefix(self) -> tuple[str, ...]:
        return ("env", f"DOCKER_HOST=unix://{self.home}/docker.sock")

    def driver(self, *environment: str) -> DockerDriver:
        return DockerDriver(self.transport, prefix=(*self.prefix, *environment))

    def docker(self, *words: str, stdin: bytes = b"") -> str:
        done = subprocess.run([*self.argv, *words], input=stdin, capture_output=True)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def clear(self) -> None:
        """No image is left. A nameless one that another was made from is listed only once that
        one is gone, by the containerd store too."""
        while found := set(self.docker("images", "-q", "--no-trunc").split()):
            for identifier in found:
                self.docker("rmi", "-f", identifier)


def _dockerd(home: Path) -> list[str]:
    return [
        "dockerd",
        f"--host=unix://{home}/docker.sock",
        f"--data-root={home}/data",
        f"--exec-root={home}/exec",
        f"--pidfile={home}/docker.pid",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
    ]


@contextlib.contextmanager
def _engine(name: str, command: Callable[[Path], list[str]] = _dockerd) -> Iterator[Engine]:
    # Short path: a Unix socket's may have 108 bytes at most. Not /tmp, which may be a tmpfs.
    home = Path(tempfile.mkdtemp(prefix="cctl-", dir="/var/tmp"))
    log = home / "log"
    with log.open("wb") as out:
        daemon = subprocess.Popen(
            command(home), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
    argv = ("docker", "-H", f"unix://{home}/docker.sock")
    try:
        _await_engine(argv, daemon, log)
        running = Engine(name, argv, LocalTransport(Host(name=name, address="localhost")), home)
        yield running
        for container in running.docker("ps", "-aq").split():
            running.docker("rm", "-f", container)
    finally:
        daemon.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        # The engine leaves the namespace of --network host mounted.
        subprocess.run(["umount", f"{home}/exec/netns/default"], capture_output=True)
        shutil.rmtree(home)


def _await_engine(argv: tuple[str, ...], daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while subprocess.run([*argv, "version"], capture_output=True).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"dockerd did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with _engine("gpu1") as running:
        yield running


@pytest.fixture(scope="session")
def second_engine() -> Iterator[Engine]:
    with _engine("gpu2") as running:
        yield running


@pytest.fixture(scope="session")
def newer_engine() -> Iterator[Engine]:
    """Docker 26 with the containerd image store, where this machine's own is 20.10 or like it."""
    try:
        tree = newer_tree()
    except ClusterctlError as error:
        pytest.skip(f"no newer Docker: {error}")
    with _engine("gpu3", lambda home: inside(tree, home, _dockerd(home))) as running:
        yield running


def _libraries(program: str) -> list[Path]:
    """What a program needs to run; nothing for a static one."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return [Path(word) for word in told.split() if word.startswith("/") and Path(word).is_file()]


@pytest.fixture(scope="session")
def import_busybox(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Engine, str], str]:
    """Makes an image of nothing but busybox; its ID."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.fail("busybox is not installed")
    root = tmp_path_factory.mktemp("busybox")
    for source in (Path(busybox), *_libraries(busybox)):
        into = root / ("bin" if source.name == "busybox" else str(source.parent).lstrip("/"))
        into.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, into / source.name)
    for name in ("sh", "sleep", "cat", "echo", "env", "true", "false"):
        (root / "bin" / name).symlink_to("busybox")
    tar = subprocess.run(["tar", "-C", str(root), "-c", "."], capture_output=True, check=True)

    def make(engine: Engine, reference: str) -> str:
        changes = ("--change", "ENV PATH=/bin", "--change", 'CMD ["/bin/sleep", "1000"]')
        return engine.docker("import", *changes, "-", reference, stdin=tar.stdout)

    return make


@pytest.fixture(scope="session")
def import_python() -> Callable[[Engine, str], str]:
    """Makes an image of nothing but this machine's own Python; its ID."""
    python = "/usr/bin/python3"
    ask = "import os, _hashlib; print(os.path.dirname(os.__file__), _hashlib.__file__)"
    told = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    library, extension = told.stdout.split()
    paths = {python, library, *map(str, _libraries(python)), *map(str, _libraries(extension))}
    # --dereference: /usr/bin/python3 and most libraries are symbolic links.
    tar = subprocess.run(
        [
            "tar",
            "--dereference",
            "--hard-dereference",
            "--exclude=*/test",
            "--exclude=*.pyc",
            "-c",
            *sorted(paths),
        ],
        capture_output=True,
    )

    def make(engine: Engine, reference: str) -> str:
        return engine.docker("import", "-", reference, stdin=tar.stdout)

    return make
