"""Machines to try the first command on: this one's files and programs, and all else of its own.

A machine has network, mounts, processes and control groups of its own, an empty /run, its own
lab directory, home, /tmp and resolv.conf. What it does to its sysctls, routes, iptables and
control groups ends with it. Packets to outside are swallowed, those to its name server too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.lab import cgroups
from clusterctl.lab.cgroups import hierarchies, unified_only
from clusterctl.lab.local import mounts_under
from clusterctl.lab.paths import DEFAULT_LAB_DIR
from tests.lab.cluster import Ran, until

NOBODY = 65534
START_LIMIT = 60.0

# "$1" the machine's directory, "$2" its group in each of the hierarchies that follow. The process
# becomes the machine's first, which reaps what has lost its parent.
BOOT = """\
set -e
directory=$1 group=$2
shift 2
mount --make-rprivate /
mount -t proc proc /proc
resolver=$(readlink -m /etc/resolv.conf)
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns /run/systemd
[ -e "$resolver" ] || { mkdir -p "${resolver%/*}" && touch "$resolver"; }
mount --bind "$directory/resolv.conf" "$resolver"
mount --bind "$directory/lab" "$LAB_DIRECTORY"
mount --bind "$directory/tmp" /tmp
ip link set lo up
echo 0 > /proc/sys/net/ipv4/ip_forward
# Where all packets to outside go: nobody answers, nobody refuses.
ip link add void arp off type veth peer name beyond
ip address add 192.0.2.1/24 dev void
ip link set beyond up
ip link set void up
ip route add default dev void
for hierarchy in "$@"; do
    mount --bind "$hierarchy/$group" "$hierarchy"
    mkdir -p "$hierarchy/init"
    for file in cpuset.cpus cpuset.mems; do
        [ ! -f "$hierarchy/init/$file" ] || cat "$hierarchy/$file" > "$hierarchy/init/$file" || true
    done
    echo $$ > "$hierarchy/init/cgroup.procs"
done
touch "$directory/booted"
trap : CHLD
while :; do sleep 3600 & wait "$!" || true; done
"""
# "$1" umask, "$2" directory to work in, then the command.
ENTER = """\
for group in /sys/fs/cgroup/*/init /sys/fs/cgroup/init; do
    [ ! -d "$group" ] || echo $$ > "$group/cgroup.procs"
done
umask "$1"
cd "$2"
shift 2
exec "$@"
"""


@dataclass
class Machine:
    """One of them, which runs until its block ends."""

    directory: Path
    pid: int
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.directory / "home"

    @property
    def lab(self) -> Path:
        return self.directory / "lab"

    def start(
        self,
        *argv: str | Path,
        cwd: Path = Path("/"),
        umask: str = "022",
        user: int = 0,
        ignoring: str = "",
        **environment: str,
    ) -> subprocess.Popen[str]:
        """Start a command, in a session of its own whose number is its process id. `ignoring`
        signals, as under nohup (HUP)."""
        variables = {**self.environment, **environment}
        words = [
            *("nsenter", f"--target={self.pid}", "--net", "--mount", "--cgroup", "--pid"),
            *("env", "-i", *(f"{name}={value}" for name, value in variables.items())),
            *("sh", "-c", ENTER, "sh", umask, cwd),
            *(("env", f"--ignore-signal={ignoring}") if ignoring else ()),
            *(("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()),
            *argv,
        ]
        return subprocess.Popen(
            list(map(str, words)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            start_new_session=True,
        )

    def run(
        self,
        *argv: str | Path,
        cwd: Path = Path("/"),
        umask: str = "022",
        user: int = 0,
        ignoring: str = "",
        timeout: float = 120,
        **environment: str,
    ) -> Ran:
        """Run a command to its end. Both of its outputs are in `stdout`, as on a terminal."""
        started = time.monotonic()
        process = self.start(
            *argv, cwd=cwd, umask=umask, user=user, ignoring=ignoring, **environment
        )
        try:
            seen, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            seen = process.communicate()[0] + f"\n(killed by the test after {timeout} s)"
        return Ran(process.returncode, seen, "", time.monotonic() - started)

    def limit(self, memory: int) -> None:
        """Bytes that all on the machine may take: the limit of a container, seen from inside."""
        unified = unified_only()
        hierarchy = cgroups.MOUNT if unified else cgroups.MOUNT / "memory"
        name = "memory.max" if unified else "memory.limit_in_bytes"
        (hierarchy / self.group / name).write_text(str(memory))

    def seed(self, caches: Path) -> None:
        """Give the machine's lab caches that were built before. Hard links: they are only read."""
        subprocess.run(["cp", "-al", str(caches), str(self.lab / "cache")], check=True)

    @property
    def group(self) -> str:
        return f"machine-{self.directory.name}"


@contextmanager
def machine() -> Iterator[Machine]:
    """A machine on which nothing ever ran: no lab, no caches, ip_forward 0, and a name server that
    never answers. Needs root."""
    # /tmp may be a tmpfs, on which no overlay's upper directory could be.
    directory = Path(tempfile.mkdtemp(prefix="m-", dir="/var/tmp"))
    directory.chmod(0o755)
    DEFAULT_LAB_DIR.mkdir(parents=True, exist_ok=True)
    for name in ("lab", "home", "tmp"):
        (directory / name).mkdir()
    (directory / "tmp").chmod(0o1777)
    (directory / "resolv.conf").write_text("nameserver 192.0.2.53\n")
    made = Machine(directory, 0, _environment(directory))
    groups = [_new_group(hierarchy, made.group) for hierarchy in hierarchies()]
    process = _boot(directory, made.group)
    try:
        until(lambda: _booted(process, directory), within=START_LIMIT, what="a machine", pause=0.05)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        made.pid = int(children[0])
        # A group of version 2 whose groups below it have controllers must have no process itself.
        for group in groups:
            (group / "init/cgroup.procs").write_text(str(process.pid))
        yield made
    finally:
        process.kill()  # and with it the machine's first process, and so all of them
        process.wait()
        for group in groups:
            _remove_group(group)
        assert not mounts_under(directory)
        shutil.rmtree(directory)


def _environment(directory: Path) -> dict[str, str]:
    """What a login leaves, and nothing of who runs the tests."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": str(directory / "home"),
        "LANG": "C.UTF-8",
        "PIP_CONFIG_FILE": "/dev/null",
    }


def _boot(directory: Path, group: str) -> subprocess.Popen[bytes]:
    """The process whose end is the machine's. It is in the machine's groups already, so that the
    namespace of control groups that it makes has them as its root."""
    files = [str(hierarchy / group / "cgroup.procs") for hierarchy in hierarchies()]
    enter = 'while [ "$1" != -- ]; do echo $$ > "$1"; shift; done; shift; exec "$@"'
    unshare = ("unshare", "--net", "--mount", "--cgroup", "--pid", "--fork", "--kill-child")
    boot = ("sh", "-c", BOOT, "machine", str(directory), group, *map(str, hierarchies()))
    with (directory / "boot.log").open("wb") as log:
        return subprocess.Popen(
            ["sh", "-ec", enter, "sh", *files, "--", *unshare, *boot],
            env={**os.environ, "LAB_DIRECTORY": str(DEFAULT_LAB_DIR)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _booted(process: subprocess.Popen[bytes], directory: Path) -> bool:
    assert process.poll() is None, (directory / "boot.log").read_text()
    return (directory / "booted").exists()


def _new_group(hierarchy: Path, name: str) -> Path:
    group = hierarchy / name
    group.mkdir()
    for file in ("cpuset.cpus", "cpuset.mems"):
        if (group / file).is_file() and not (group / file).read_text().strip():
            (group / file).write_text((hierarchy / file).read_text())
    return group


def _remove_group(group: Path) -> None:
    """With those below it, for as long as the kernel still counts what has just ended."""

    def gone() -> bool:
        for place, _, _ in os.walk(group, topdown=False):
            try:
                Path(place).rmdir()
            except OSError:
                return False
        return True

    until(gone, within=START_LIMIT, what=f"{group} is empty", pause=0.05)
