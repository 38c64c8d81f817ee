"""A real Docker engine of our own: private socket, private data, no bridge, no iptables, and
nothing left on the machine when it has ended."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from clusterctl.containers.docker_driver import DockerDriver
from clusterctl.inventory.model import Host
from clusterctl.lab.cgroups import hierarchies
from clusterctl.lab.local import remove_tree
from clusterctl.transport.local import LocalTransport

START_LIMIT = 120.0


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
        while found := self._images():
            for identifier in found:
                # One that another was made from goes only after it.
                subprocess.run([*self.argv, "rmi", "-f", identifier], capture_output=True)
            assert self._images() != found, f"{self.name} keeps {found}"

    def _images(self) -> set[str]:
        return set(self.docker("images", "-q", "--no-trunc").split())


# Plugins and containerd have fixed places below /run.
WITH_A_RUN_OF_ITS_OWN = 'mount -t tmpfs -o mode=755 tmpfs /run && exec "$@"'


def dockerd(home: Path) -> list[str]:
    """argv of one that touches nothing outside of `home`."""
    return [
        *("unshare", "--mount", "sh", "-c", WITH_A_RUN_OF_ITS_OWN, "engine"),
        "dockerd",
        f"--host=unix://{home}/docker.sock",
        f"--data-root={home}/data",
        f"--exec-root={home}/exec",
        f"--pidfile={home}/docker.pid",
        "--bridge=none",
        "--iptables=false",
        "--ip6tables=false",
        # Without it the machine forwards packets from then on, and hides what depends on that.
        "--ip-forward=false",
        f"--cgroup-parent=/{home.name}",
    ]


@contextlib.contextmanager
def running(name: str, command: Callable[[Path], list[str]] = dockerd) -> Iterator[Engine]:
    """An engine of our own, until the end of the block."""
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
        engine = Engine(name, argv, LocalTransport(Host(name=name, address="localhost")), home)
        yield engine
        for container in engine.docker("ps", "-aq").split():
            engine.docker("rm", "-f", container)
    finally:
        daemon.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        # The engine leaves the namespace of --network host mounted; one that was killed, more.
        remove_tree(home)
        for hierarchy in hierarchies():
            for group, _, _ in os.walk(hierarchy / home.name, topdown=False):
                Path(group).rmdir()


def _await_engine(argv: tuple[str, ...], daemon: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while subprocess.run([*argv, "version"], capture_output=True).returncode != 0:
        if daemon.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"dockerd did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.1)
