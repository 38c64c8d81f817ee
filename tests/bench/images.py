"""An image to several hosts over links of a known rate, against what every guide does: save, gzip,
ssh and load, host after host."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clusterctl.inventory.load import load
from clusterctl.lab import faults
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.paths import lab_paths
from tests.bench.source_link import sent_bytes
from tests.bench.synthetic_image import LAYERS, make_archive, make_layer, make_plain_archive
from tests.contract.containers.dockerd import Engine

REFERENCE = "bench/image:1"
MIDDLE = 0.4
"""Of the bytes: when a fault comes."""
DOWN = 6.0
"""Seconds that a link is down."""


@dataclass(frozen=True)
class Run:
    """One push, or what stands for one. Sizes in bytes, times in seconds."""

    wall: float
    sent: int
    """On this machine's link."""
    cpu: float
    """Of all processes that were started for it here."""
    status: int


@dataclass(frozen=True)
class Images:
    """Archives of an image, and of the same one with another top layer."""

    first: Path
    changed: Path
    plain: Path
    """The first one as `docker save` writes it."""
    size: int
    """Packed: what has to come to a host."""


def make_images(directory: Path) -> Images:
    """A quarter of a minute."""
    directory.mkdir(parents=True, exist_ok=True)
    layers = [make_layer(directory, size, f"layer{n}") for n, size in enumerate(LAYERS)]
    top = make_layer(directory, LAYERS[-1], "another-top")
    first, changed, plain = (directory / f"{name}.tar" for name in ("first", "changed", "plain"))
    size = make_archive(first, REFERENCE, layers)
    make_archive(changed, REFERENCE, [*layers[:-1], top])
    make_plain_archive(plain, REFERENCE, layers)
    return Images(first, changed, plain, size)


class ImageBench:
    """The runs of one measurement, on the lab's hosts."""

    def __init__(self, inventory: Path, work: Path, say: Callable[[str], None]) -> None:
        self._inventory, self._say = inventory, say
        self.hosts = tuple(host.name for host in load(inventory).hosts)
        self._environment = {
            **os.environ,
            "XDG_CACHE_HOME": str(work / "cache"),
            "XDG_STATE_HOME": str(work / "state"),
        }

    def install_engines(self) -> None:
        """From the lab's own package source."""
        script = "apt-get update && apt-get install -y --no-install-recommends docker.io python3"
        self.everywhere(f"command -v docker || {{ {script}; }}")
        self.start_engines()

    def start_engines(self) -> None:
        """With their data in memory. All hosts share the one disk of this machine: what one has
        written, the container that proves an image waits for on every host."""
        in_memory = "mount -t tmpfs -o size=4g engine /var/lib/docker"
        self.everywhere(
            f"findmnt --type tmpfs /var/lib/docker || {{ systemctl stop docker.socket docker; "
            f"{in_memory}; }} && systemctl start docker"
        )

    def forget(self) -> None:
        """No image, and nothing in caches."""
        ids = "docker images --quiet | sort -u"
        self.everywhere(
            f"{ids} | xargs --no-run-if-empty docker rmi -f; "
            "rm -rf /var/lib/clusterctl/blobs /var/lib/clusterctl/saved"
        )

    def push(self, archive: Path, hosts: int, *, fault: Callable[[], None] | None = None) -> Run:
        """Push to the first `hosts` hosts; `fault` is caused meanwhile, in a thread."""
        limit = ",".join(self.hosts[:hosts])
        argv = self._argv("image", "push", REFERENCE, "--from", str(archive), "--limit", limit)
        with _beside(fault):
            return _timed(lambda: self._status([*argv, "--json"]))

    def by_hand(self, engine: Engine) -> Run:
        """docker save, gzip, ssh, docker load; host after host."""
        return _timed(lambda: any(self._by_hand(engine, host) for host in self.hosts))

    def through_ssh(self, archive: Path) -> Run:
        """OpenSSH alone: the archive's bytes to the first host, which throws them away."""

        def send() -> int:
            with archive.open("rb") as file:
                argv = [*self._ssh(self.hosts[0]), "cat > /dev/null"]
                return subprocess.run(argv, stdin=file).returncode

        return _timed(send)

    def has_image(self, host: str) -> bool:
        start = "docker run --rm --network none --init --entrypoint /sbin/docker-init"
        argv = [*self._ssh(host), f"{start} {REFERENCE} --version"]
        return subprocess.run(argv, capture_output=True).returncode == 0

    def everywhere(self, script: str) -> None:
        """Run a shell script as root on all hosts at once."""
        self._status(self._argv("exec", "--sudo", "--timeout", "600", "--", "sh", "-c", script))

    def _by_hand(self, engine: Engine, host: str) -> int:
        pipe = 'image=$1 socket=$2; shift 2; docker -H "$socket" save "$image" | gzip | "$@"'
        socket = f"unix://{engine.home}/docker.sock"
        argv = ["sh", "-c", pipe, "by-hand", REFERENCE, socket, *self._ssh(host), "docker load"]
        return subprocess.run(argv, capture_output=True).returncode

    def _ssh(self, host: str) -> list[str]:
        """What a command line is appended to."""
        paths = lab_paths()
        options = ["-i", str(paths.identity), "-o", f"UserKnownHostsFile={paths.known_hosts}"]
        return ["ssh", "-F", "none", *options, f"root@{host_by_name(host).address}"]

    def _status(self, argv: list[str]) -> int:
        done = subprocess.run(argv, env=self._environment, capture_output=True, text=True)
        if done.returncode:
            self._say(f"exit {done.returncode}: {done.stdout[-600:]}{done.stderr[-600:]}")
        return done.returncode

    def _argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "clusterctl", "-i", str(self._inventory), *words]


def link_down(host: str, after: int) -> None:
    """Cut a host's link for DOWN seconds, once `after` bytes have left this machine."""
    nic = host_by_name(host).nics[0].name
    _await_sent(after)
    faults.pull_cable(host, nic)
    time.sleep(DOWN)
    faults.plug_cable(host, nic)


def lost(host: str, after: int) -> None:
    """Pull a host's plug, once `after` bytes have left this machine."""
    _await_sent(after)
    faults.power_off(host)


def _await_sent(count: int) -> None:
    goal = sent_bytes() + count
    deadline = time.monotonic() + 600
    while sent_bytes() < goal and time.monotonic() < deadline:
        time.sleep(0.1)  # a counter of the kernel: it cannot be waited for


@contextmanager
def _beside(fault: Callable[[], None] | None) -> Iterator[None]:
    if fault is None:
        yield
        return
    thread = threading.Thread(target=fault)
    thread.start()
    yield
    thread.join()


def _timed(work: Callable[[], int]) -> Run:
    sent, cpu, began = sent_bytes(), _cpu(), time.monotonic()
    status = work()
    return Run(time.monotonic() - began, sent_bytes() - sent, _cpu() - cpu, status)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
