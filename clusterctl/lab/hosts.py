"""One whole host of the lab: its disk, its power, its SSH keys."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from uuid import NAMESPACE_DNS, uuid5

from clusterctl import deadlines
from clusterctl.accelerators.names import LAB_DEVICE, LAB_SPECIFICATION
from clusterctl.errors import StepFailed, UsageError
from clusterctl.lab import gpus, network, nspawn
from clusterctl.lab.base import OPERATOR
from clusterctl.lab.layout import PREFIX, LabHost, lab_host
from clusterctl.lab.local import is_mounted, last_lines, mount_overlay, remove_tree, run
from clusterctl.lab.mirror import MIRROR_DEBIAN
from clusterctl.lab.paths import LabPaths

HOST_KEY_TYPES = ("ed25519", "ecdsa")
_NAME = re.compile(r"gpu([1-9][0-9]*)")
# File of a host's directory: the device nodes of its GPUs.
_GPUS = "gpus"
_NO_NAME_SERVER = "# No name server: the resolver asks 127.0.0.1, where nobody listens.\n"


def host_names(paths: LabPaths) -> tuple[str, ...]:
    """Return hosts that have a disk or a namespace here, including remains of interrupted runs."""
    on_disk = {entry.name for entry in paths.hosts.iterdir()} if paths.hosts.is_dir() else set()
    in_namespaces = {name.removeprefix(PREFIX) for name in network.namespaces()}
    named = {name for name in on_disk | in_namespaces if _NAME.fullmatch(name)}
    return tuple(sorted(named, key=lambda name: (len(name), name)))


def host_by_name(name: str) -> LabHost:
    """Return the lab host with a name such as gpu2. Raises UsageError for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise UsageError(f"{name!r} is not a host of the lab", hint="hosts: gpu1, gpu2, ...")
    return lab_host(int(match[1]))


def has_disk(host: LabHost, paths: LabPaths) -> bool:
    """Whether the host's disk was created completely."""
    return (paths.host(host.name) / "prepared").is_file()


def ensure_disk(
    host: LabHost, paths: LabPaths, base: Path, models: Path | None, *, devices: bool
) -> bool:
    """Mount the host's own writable disk over the common tree, and set up a new one with its names
    and keys. `devices`: its CPUs are CDI devices. Return whether it was created."""
    directory = paths.host(host.name)
    done = directory / "prepared"
    fresh = not has_disk(host, paths)
    if fresh:
        remove_tree(directory)
        ensure_host_keys(directory / "keys", host)
    else:
        # A disk stays on the tree that it was made on, even if a newer one has been built.
        base = Path(done.read_text())
    if not is_mounted(directory / "root"):
        mount_overlay((base,), directory / "disk", directory / "root")
    if fresh:
        _personalize(directory / "root", directory / "keys", host, paths)
        if devices:
            _write_devices(directory / "root")
        if models:
            shutil.copytree(models, directory / "root/data/models", dirs_exist_ok=True)
        done.write_text(str(base))
    return fresh


def power_on(host: LabHost, paths: LabPaths, *, wait: bool = True) -> bool:
    """Boot the host from its disk. Return whether it was off."""
    if nspawn.is_running(host):
        return False
    directory = paths.host(host.name)
    nspawn.halt(host, directory)
    nodes, devices = _gpus(directory), []
    if nodes:
        driver = gpus.machine_driver()
        gpus.write_setup(directory / "root", driver)
        devices = gpus.binds(nodes, driver)
    nspawn.boot(host, directory, devices)
    if wait:
        wait_for_ssh([host], paths)
    return True


def give_gpus(host: LabHost, paths: LabPaths, nodes: Sequence[str]) -> bool:
    """Plug exactly these GPUs into the host, which is powered off for that. Return whether it had
    different ones."""
    directory = paths.host(host.name)
    if _gpus(directory) == tuple(nodes):
        return False
    nspawn.halt(host, directory)
    (directory / _GPUS).write_text("".join(f"{node}\n" for node in nodes))
    return True


def _gpus(directory: Path) -> tuple[str, ...]:
    """Return the device nodes of the host's GPUs."""
    file = directory / _GPUS
    return tuple(file.read_text().split()) if file.is_file() else ()


def ssh_answers(host: LabHost, timeout: float = deadlines.LAB_GREETING) -> bool:
    """Whether an SSH server sends its greeting at the host's address."""
    try:
        with socket.create_connection((host.address, 22), timeout=timeout) as connection:
            connection.settimeout(timeout)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait_for_ssh(
    hosts: Iterable[LabHost], paths: LabPaths, timeout: float = deadlines.LAB_SSH
) -> None:
    """Wait until all hosts answer. Raises StepFailed, with the console of one that does not."""
    deadline = time.monotonic() + timeout
    for host in hosts:
        while not ssh_answers(host):
            console = paths.host(host.name) / "console.log"
            if time.monotonic() > deadline or not nspawn.is_running(host):
                state = "its sshd does not answer" if nspawn.is_running(host) else "it went down"
                raise StepFailed(
                    f"did not start: {state}", host=host.name, detail=last_lines(console)
                )
            time.sleep(0.1)


def _personalize(root: Path, host_keys: Path, host: LabHost, paths: LabPaths) -> None:
    """Write names, keys and package source. The host's own name is on 127.0.1.1, as Debian's
    installer leaves it: a program that publishes that address must fail here, too."""
    (root / "etc/hostname").write_text(f"{host.name}\n")
    (root / "etc/hosts").write_text(f"127.0.0.1\tlocalhost\n127.0.1.1\t{host.name}\n")
    # debootstrap copied this machine's, whose name servers the hosts cannot reach.
    resolver = root / "etc/resolv.conf"
    resolver.unlink(missing_ok=True)
    resolver.write_text(_NO_NAME_SERVER)
    (root / "etc/machine-id").write_text(f"{uuid5(NAMESPACE_DNS, host.namespace).hex}\n")
    (root / "etc/apt/sources.list").write_text(f"deb [trusted=yes] {MIRROR_DEBIAN} ./\n")
    for key in host_keys.iterdir():
        shutil.copy2(key, root / "etc/ssh" / key.name)
    public = paths.identity.with_name(paths.identity.name + ".pub").read_text()
    for home in (root / "root", root / "home" / OPERATOR):
        directory = home / ".ssh"
        directory.mkdir(mode=0o700, exist_ok=True)
        (directory / "authorized_keys").write_text(public)
    run(["chroot", str(root), "chown", "-R", f"{OPERATOR}:", f"/home/{OPERATOR}/.ssh"])
    password = paths.password.read_text().strip()
    run(["chroot", str(root), "chpasswd"], stdin=f"{OPERATOR}:{password}\n")


def _write_devices(root: Path) -> None:
    """Write a CDI specification, whose device is only a variable in the container, and enable CDI
    for the engine that the host will get."""
    kind, _, name = LAB_DEVICE.partition("=")
    edits = {"env": ["CLUSTERCTL_LAB_DEVICE=all"]}
    specification = {
        "cdiVersion": "0.5.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": edits}],
    }
    contents = {
        LAB_SPECIFICATION: specification,
        "/etc/docker/daemon.json": {"features": {"cdi": True}},
    }
    for path, content in contents.items():
        file = root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))


def ensure_identity(paths: LabPaths) -> bool:
    """Create the user's key pair, and the password of OPERATOR, if they are missing. Return whether
    the key pair was created."""
    paths.keys.mkdir(parents=True, exist_ok=True)
    paths.keys.chmod(0o700)
    paths.password.touch(mode=0o600)
    if not paths.password.read_text().strip():
        paths.password.write_text(f"{secrets.token_urlsafe(12)}\n")
    return _ensure_key(paths.identity, "ed25519", "clusterctl-lab")


def ensure_host_keys(directory: Path, host: LabHost, types: Iterable[str] = HOST_KEY_TYPES) -> None:
    """Create the host's missing keys in `directory`, named as sshd names them."""
    directory.mkdir(parents=True, exist_ok=True)
    for kind in types:
        _ensure_key(directory / f"ssh_host_{kind}_key", kind, f"root@{host.name}")


def known_hosts_lines(directory: Path, host: LabHost) -> list[str]:
    """Return the host's lines for known_hosts: its name and address with each of its keys."""
    names = f"{host.name},{host.address}"
    keys = (file.read_text().split()[:2] for file in sorted(directory.glob("ssh_host_*.pub")))
    return [f"{names} {kind} {key}" for kind, key in keys]


def _ensure_key(file: Path, kind: str, comment: str) -> bool:
    public = file.with_name(file.name + ".pub")
    if file.is_file() and public.is_file():
        return False
    # ssh-keygen would ask before it overwrites the file of an interrupted run.
    file.unlink(missing_ok=True)
    run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", comment, "-f", str(file)])
    return True
