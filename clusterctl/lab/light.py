"""Light hosts: a network namespace and an sshd each, by the hundred, to test how commands fan out.

They share this machine's files and processes, so they can only be probed and run commands; use
whole hosts for anything that changes a host.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.lab import network
from clusterctl.lab.hosts import (
    ensure_host_keys,
    ensure_identity,
    known_hosts_lines,
    ssh_answers,
)
from clusterctl.lab.inventories import light_inventory
from clusterctl.lab.layout import LIGHT, PREFIX, LabHost, light_hosts
from clusterctl.lab.local import last_lines, remove_tree, run
from clusterctl.lab.network import NAMESPACES
from clusterctl.lab.paths import LabPaths, exclusive, lab_paths
from clusterctl.lab.requirements import check_machine

_WORKERS = 8

# SetEnv HOME: the start-up files in root's own home belong to this machine, and may take seconds.
_SSHD_CONFIG = """\
ListenAddress {address}
HostKey {directory}/ssh_host_ed25519_key
AuthorizedKeysFile {authorized}
PidFile none
UsePAM no
UseDNS no
PasswordAuthentication no
PermitRootLogin prohibit-password
StrictModes no
MaxStartups 100
SetEnv HOME={directory}/home
Subsystem sftp internal-sftp
"""


def light_up(count: int) -> Path:
    """Ensure that exactly `count` light hosts accept SSH. Return the path of their inventory."""
    hosts = light_hosts(count)
    check_machine()
    paths = lab_paths()
    with exclusive(paths.lock):
        ensure_identity(paths)
        network.ensure_network(LIGHT)
        network.ensure_neighbours(len(hosts))
        surplus = _light_namespaces() - {host.namespace for host in hosts}
        for name in surplus:
            _end_processes(name)
        network.remove_namespaces(surplus)
        with ThreadPoolExecutor(_WORKERS) as pool:
            for _ in pool.map(lambda host: _ensure_light(host, paths), hosts):
                pass
        deadline = time.monotonic() + deadlines.LAB_LIGHT_SSH
        for host in hosts:
            while not ssh_answers(host):
                if time.monotonic() > deadline:
                    log = last_lines(paths.light / host.name / "log")
                    raise StepFailed("its sshd does not respond", host=host.name, detail=log)
                time.sleep(0.05)
        lines = [line for host in hosts
                 for line in known_hosts_lines(paths.light / host.name, host)]  # fmt: skip
        (paths.light / "known_hosts").write_text("\n".join(lines) + "\n")
        paths.light_inventory.write_text(light_inventory(hosts, paths))
    return paths.light_inventory


def light_down() -> bool:
    """Remove the light hosts and keep the others. Return whether there were any."""
    check_machine()
    paths = lab_paths()
    with exclusive(paths.lock):
        return stop(paths)


def stop(paths: LabPaths) -> bool:
    """Kill and remove all light hosts; return whether there were any. The caller holds the lock."""
    names = _light_namespaces()
    for name in names:
        _end_processes(name)
    network.remove_namespaces(names)
    network.remove_network(LIGHT)
    remove_tree(paths.light)
    paths.light_inventory.unlink(missing_ok=True)
    return bool(names)


def light_count() -> int:
    """Number of light hosts."""
    return len(_light_namespaces())


def _light_namespaces() -> frozenset[str]:
    return frozenset(name for name in network.namespaces() if name.startswith(f"{PREFIX}light"))


def _ensure_light(host: LabHost, paths: LabPaths) -> None:
    network.ensure_host_network(host)
    if ssh_answers(host):
        return
    _end_processes(host.namespace)
    directory = paths.light / host.name
    (directory / "home").mkdir(parents=True, exist_ok=True)
    ensure_host_keys(directory, host, types=("ed25519",))
    public = paths.identity.with_name(paths.identity.name + ".pub")
    config = directory / "sshd_config"
    config.write_text(
        _SSHD_CONFIG.format(address=host.address, directory=directory, authorized=public)
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    # sshd becomes a daemon once it listens; it must be started by an absolute path.
    search = f"{os.environ.get('PATH', '')}:/usr/sbin"
    program = shutil.which("sshd", path=search) or "/usr/sbin/sshd"
    sshd = [program, "-f", str(config), "-E", str(directory / "log")]
    run(["nsenter", f"--net={NAMESPACES / host.namespace}", "--", *sshd])


def _end_processes(namespace: str) -> None:
    """Kill all processes in a namespace, and wait until they are gone."""
    deadline = time.monotonic() + deadlines.LAB_LIGHT_SSH
    while pids := run(["ip", "netns", "pids", namespace]).split():
        for pid in map(int, pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            raise StepFailed(f"processes {', '.join(pids)} in {namespace} do not end")
        time.sleep(0.02)
