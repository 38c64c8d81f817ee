"""A real sshd for tests: its own host key, configuration, port, and home directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.inventory.model import Host, Ssh
from clusterctl.transport.base import Transport
from tests.fakes.ports import port_of, reserved

SSHD = shutil.which("sshd") or "/usr/sbin/sshd"
START_LIMIT = 60.0

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
ListenAddress ::1
PidFile none
AuthorizedKeysFile {keys}
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication yes
MaxStartups 100
SetEnv HOME={home}
"""


@dataclass
class Sshd:
    """A running daemon: `folder` holds its keys, `home` is HOME for whoever logs in."""

    folder: Path
    port: int
    client_key: Path
    process: subprocess.Popen[bytes]
    home: Path
    known_hosts: Path = field(init=False)

    def __post_init__(self) -> None:
        self.known_hosts = self.folder / "known_hosts"
        self.known_hosts.write_text(self.known_line())

    def known_line(self, address: str = "127.0.0.1", key_type: str = "ed25519") -> str:
        public = (self.folder / f"host_{key_type}.pub").read_text().split()
        return f"[{address}]:{self.port} {public[0]} {public[1]}\n"

    def host(self, name: str = "gpu1", address: str = "127.0.0.1", **ssh: object) -> Host:
        options = {
            "user": "root",
            "port": self.port,
            "identity_file": self.client_key,
            "known_hosts": self.known_hosts,
            **ssh,
        }
        return Host(name=name, address=address, ssh=Ssh.model_validate(options))


def make_key(path: Path, key_type: str = "ed25519", passphrase: str = "") -> Path:
    command = ["ssh-keygen", "-q", "-t", key_type, "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextlib.contextmanager
def running_sshd(
    folder: Path, *, client_key: Path, options: Mapping[str, str] | None = None
) -> Iterator[Sshd]:
    """Start sshd in the foreground, and end it with its sessions."""
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation directory
    home = folder / "home"
    home.mkdir(parents=True)
    home.chmod(0o755)
    keys = folder / "authorized_keys"
    keys.write_text(Path(f"{client_key}.pub").read_text())
    keys.chmod(0o644)
    host_keys = [make_key(folder / f"host_{kind}", kind) for kind in ("ed25519", "ecdsa")]
    held = reserved()
    port = port_of(held)
    lines = [_CONFIG.format(port=port, keys=keys, home=home)]
    lines += [f"HostKey {key}\n" for key in host_keys]
    lines += [f"{name} {value}\n" for name, value in (options or {}).items()]
    # sshd takes the first value it reads for a keyword
    (folder / "sshd_config").write_text("".join(reversed(lines)))
    with held, (folder / "sshd.log").open("wb") as log:
        process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            _wait_for(port, process, folder / "sshd.log")
            yield Sshd(folder, port, client_key, process, home)
        finally:
            kill_tree(process.pid)
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise RuntimeError(f"sshd does not listen: {log.read_text()}")


def session_of(transport: Transport) -> int:
    """The process of sshd that serves this transport's connection."""
    script = (
        'p=$$; until case "$(cat /proc/$p/comm)" in sshd*) true;; *) false;; esac; '
        "do p=$(awk '/^PPid/ {print $2}' /proc/$p/status); done; echo $p"
    )
    return int(transport.run(["sh", "-c", script]).stdout)


def kill_tree(pid: int) -> None:
    for each in (pid, *descendants(pid)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, deepest last."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text().rsplit(")", 1)[1].split()
            children.setdefault(int(fields[1]), []).append(int(entry.parent.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def is_alive(pid: int) -> bool:
    """False for zombies too: they run nothing."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def eventually(condition: object, within: float = 30.0) -> bool:
    """True as soon as `condition()` is, False after `within` seconds."""
    assert callable(condition)
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())
