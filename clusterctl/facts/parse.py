"""Convert a probe's output to facts. Pure; `HostFacts.unknown` names what could not be read."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusterctl.facts import docker_report, nics, system
from clusterctl.facts.gpu_probe import NVIDIA, GpuProbe
from clusterctl.facts.model import ContainerFacts, Disk, HostFacts, ImageFacts, Os
from clusterctl.facts.sections import Answer, files_in, first_line

# Only a unified hierarchy (cgroup v2) has this file at its root
CGROUP_V2 = "/sys/fs/cgroup/cgroup.controllers"
_SELINUX = {"0": "permissive", "1": "enforcing"}

_PATTERN = frozenset("*[")  # Characters of a shell pattern that matched nothing

_SHM = "/dev/shm"  # noqa: S108  (measured on the host, not used here)


@dataclass(frozen=True)
class Probe:
    """Everything that one round trip returned."""

    facts: HostFacts
    # Content by path (by the pattern, if nothing matched it); None if there is no such file.
    # Existing files that cannot be read are in `unreadable` instead.
    files: Mapping[str, bytes | None]
    unreadable: tuple[str, ...]
    # Containers with the label `clusterctl.cluster`, of any cluster and in any state
    containers: tuple[ContainerFacts, ...]
    # The requested image; None if the host does not have it, or has no engine
    image: ImageFacts | None
    listed: bool = True  # The engine said which containers there are


def parse_probe(
    answer: Answer, *, sudo_error: str | None, received: float, gpu_probe: GpuProbe = NVIDIA
) -> Probe:
    """Parse `answer`.

    `sudo_error`: why the probe could not run under sudo, if that was tried; `received`: Unix
    seconds on the operator's clock when the answer arrived.
    """
    nothing: tuple[ContainerFacts, ...] | None = None
    listed = answer.read(
        "our containers", nothing, docker_report.parse_containers, answer.find("containers")
    )
    containers = listed or ()
    image = answer.read("the image", None, docker_report.parse_image, answer.find("image"))
    files: dict[str, bytes | None] = {}
    unreadable = []
    for section in answer.all("file"):
        missing = "!missing" in section.lines
        try:
            content = None if missing else base64.b64decode("".join(section.lines), validate=True)
            files[section.argument] = content
        except ValueError:
            unreadable.append(section.argument)
    facts = _host_facts(answer, sudo_error, received, gpu_probe)
    clusters = {c.id: c.labels.get("clusterctl.cluster", "") for c in containers}
    processes = tuple(
        replace(one, cluster=clusters.get(one.container, "")) for one in facts.gpus.processes
    )
    facts = replace(facts, gpus=replace(facts.gpus, processes=processes))
    return Probe(facts, files, tuple(unreadable), containers, image, listed is not None)


def _host_facts(
    answer: Answer, sudo_error: str | None, received: float, gpu_probe: GpuProbe
) -> HostFacts:
    """Parse each field of HostFacts from its section; a failure affects that field only."""
    read, find, files = answer.read, answer.find, files_in(answer)
    paths = [path for path in answer.lines("paths") if not _PATTERN & set(path)]
    shell = read("the shell", {}, system.parse_shell, answer.lines("shell"))
    uid = read("the user id", -1, system.parse_uid, files)
    may_sudo = False
    # A probe that ran under sudo has no such section.
    if uid != 0 and (section := find("sudo")):
        sudo_error = read("sudo", "sudo said nothing", system.parse_sudo, section)
        may_sudo = sudo_error is None
    python, python_version, minimal = read("Python", (None, "", False), system.parse_python, shell)
    disks: dict[str, Disk] = {}  # the requested ones, and that of the engine's image store
    for section in answer.all("disks"):
        disks.update(read("disks", {}, system.parse_disks, section))
        answer.unknown.extend(system.df_complaints(section))
    clock = read("the clock", 0.0, system.parse_clock, find("clock"), find("end"))
    machine = shell.get("machine", "")
    unread = Os("", (), "", "", "", machine, "")
    return HostFacts(
        hostname=first_line(files, "/proc/sys/kernel/hostname"),
        hostname_addresses=read("its own name", (), nics.parse_names, answer.lines("names")),
        machine_id=first_line(files, "/etc/machine-id", "/var/lib/dbus/machine-id"),
        boot_id=first_line(files, "/proc/sys/kernel/random/boot_id"),
        os=read("the operating system", unread, system.parse_os, files, machine),
        cpus=read("the number of CPUs", 0, system.parse_cpus, files),
        memory=read("memory", 0, system.parse_memory, files),
        shm=disks[_SHM].total if _SHM in disks else 0,
        disks=tuple(disk for path, disk in disks.items() if path != _SHM),
        nics=read("NICs", (), nics.parse_nics, files, find("addresses"), paths),
        default_nic=read("the default route", None, nics.parse_default_nic, files),
        gpus=gpu_probe.read(answer, files, paths),
        engine=read(
            "the container engine",
            docker_report.GARBLED,
            docker_report.parse_engine,
            find("engine"),
        ),
        cgroup_version=2 if CGROUP_V2 in files else 1,
        nofile_hard=read("the limit of open files", 0, system.parse_nofile, shell),
        clock=clock,
        clock_offset=clock - received if clock else 0.0,
        user=shell.get("user", ""),
        root=uid == 0 or may_sudo,
        sudo_error=sudo_error,
        python3=python,
        listening_ports=read("listening ports", (), nics.parse_listening, files),
        uid=uid,
        python3_version=python_version,
        python3_minimal=minimal,
        rdma=read("RDMA devices", (), nics.parse_rdma, files, paths),
        rdma_nodes=tuple(path for path in paths if path.startswith("/dev/infiniband/")),
        memlock_hard=read("locked memory", None, system.parse_memlock, shell),
        peer_memory="/sys/module/nvidia_peermem" in paths,
        gpu_numa_nodes=read("the GPUs' place", (), nics.parse_gpu_numa_nodes, files),
        cdi_specs=tuple(path for path in paths if "/cdi/" in path),
        device_cgroup=CGROUP_V2 in files or "/sys/fs/cgroup/devices" in paths,
        systemd="/run/systemd/system" in paths,
        selinux=_SELINUX.get(first_line(files, "/sys/fs/selinux/enforce"), ""),
        runtimes=tuple(shell.get("runtimes", "").split()),
        containerd_root=system.parse_containerd_root(files),
        ephemeral_ports=read("the range of ephemeral ports", (), system.parse_ephemeral, files),
        ssh_ip=read("SSH's address", "", nics.parse_ssh_ip, shell.get("ssh", "")),
        routes=read("routes", (), nics.parse_routes, files),
        firewall=nics.parse_firewall(files, paths),
        shm_free=disks[_SHM].free if _SHM in disks else None,
        unknown=tuple(answer.unknown),
    )
