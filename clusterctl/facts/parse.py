"""Convert a probe's output to facts. Pure; what cannot be read is named in `HostFacts.unknown`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace

from clusterctl.facts import docker_report, gpus, nics, rdma, system
from clusterctl.facts.gpu_probe import NVIDIA, GpuProbe
from clusterctl.facts.model import (
    ContainerFacts,
    Disk,
    EngineFacts,
    GpuReport,
    HostFacts,
    ImageFacts,
    Os,
)
from clusterctl.facts.sections import Answer, Section, read_files
from clusterctl.transport.python import OLDEST

# Only a unified hierarchy (cgroup v2) has this file at its root
CGROUP_V2 = "/sys/fs/cgroup/cgroup.controllers"

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


def parse_probe(
    answer: Answer, *, sudo_error: str | None, received: float, gpu_probe: GpuProbe = NVIDIA
) -> Probe:
    """Parse `answer`.

    `sudo_error`: why the probe could not run under sudo, if that was tried; `received`: Unix
    seconds on the operator's clock when the answer arrived.
    """
    containers = answer.read(
        "our containers", (), docker_report.parse_containers, answer.find("containers")
    )
    image = answer.read("the image", None, docker_report.parse_image, answer.find("image"))
    files, unreadable = _asked_files(answer)
    facts = _FactsReader(answer, sudo_error, gpu_probe).facts(received)
    clusters = {c.id: c.labels.get("clusterctl.cluster", "") for c in containers}
    facts = replace(facts, gpus=gpus.with_clusters(facts.gpus, clusters))
    return Probe(facts, files, unreadable, containers, image)


class _FactsReader:
    """Parses each field of HostFacts from its section; a failure affects that field only."""

    def __init__(self, answer: Answer, sudo_error: str | None, gpu_probe: GpuProbe) -> None:
        self._answer = answer
        self._gpu_probe = gpu_probe
        self._files = read_files(answer)
        self._paths = [path for path in answer.lines("paths") if not _PATTERN & set(path)]
        self._shell = answer.read("the shell", {}, system.parse_shell, answer.lines("shell"))
        self._uid = answer.read("the user id", -1, system.parse_uid, self._files)
        self._may_sudo, self._sudo_error = self._sudo(sudo_error)

    def facts(self, received: float) -> HostFacts:
        read, files, paths = self._answer.read, self._files, self._paths
        python, python_version, minimal = self._python()
        disks = self._disks()
        devices = read("RDMA devices", (), rdma.parse_rdma, files, paths)
        clock = read("the clock", 0.0, self._clock)
        return HostFacts(
            hostname=system.first_line(files, "/proc/sys/kernel/hostname"),
            hostname_addresses=read(
                "its own name", (), nics.parse_names, self._answer.lines("names")
            ),
            machine_id=system.first_line(files, "/etc/machine-id", "/var/lib/dbus/machine-id"),
            boot_id=system.first_line(files, "/proc/sys/kernel/random/boot_id"),
            os=self._os(),
            cpus=read("the number of CPUs", 0, system.parse_cpus, files),
            memory=read("memory", 0, system.parse_memory, files, "MemTotal"),
            shm=disks[_SHM].total if _SHM in disks else 0,
            disks=tuple(disk for path, disk in disks.items() if path != _SHM),
            nics=read("NICs", (), nics.parse_nics, files, self._section("addresses"), paths),
            default_nic=read("the default route", None, nics.parse_default_nic, files),
            rdma_devices=tuple(device.name for device in devices),
            gpus=self._gpus(),
            engine=self._engine(),
            cgroup_version=2 if CGROUP_V2 in files else 1,
            nofile_hard=read("the limit of open files", 0, self._nofile),
            clock=clock,
            clock_offset=clock - received if clock else 0.0,
            user=self._shell.get("user", ""),
            root=self._uid == 0 or self._may_sudo,
            sudo_error=self._sudo_error,
            python3=python,
            listening_ports=read("listening ports", (), nics.parse_listening, files),
            uid=self._uid,
            memory_available=read("free memory", None, system.parse_memory, files, "MemAvailable"),
            python3_version=python_version,
            python3_minimal=minimal,
            rdma=devices,
            rdma_nodes=tuple(path for path in paths if path.startswith("/dev/infiniband/")),
            memlock_hard=read("locked memory", None, system.parse_memlock, self._shell),
            peer_memory="/sys/module/nvidia_peermem" in paths,
            gpu_numa_nodes=read("the GPUs' place", (), nics.parse_gpu_numa_nodes, files),
            cdi_specs=tuple(path for path in paths if "/cdi/" in path),
            nvidia_ctk=self._shell.get("nvidia-ctk"),
            device_cgroup=CGROUP_V2 in files or "/sys/fs/cgroup/devices" in paths,
            runtimes=tuple(self._shell.get("runtimes", "").split()),
            ssh_ip=read("SSH's address", "", nics.parse_ssh_ip, self._shell.get("ssh", "")),
            unknown=tuple(self._answer.unknown),
        )

    def _python(self) -> tuple[str | None, str, bool]:
        """Return the path of a usable Python (or None), the version of the Python found, and
        whether that one lacks a part of its standard library."""
        path, version, minimal, *_ = [*self._shell.get("python3", "").split(), "", "", ""]
        major, _, minor = version.partition(".")
        new_enough = minor.isdecimal() and (int(major), int(minor)) >= OLDEST
        return (path if new_enough and not minimal else None), version, bool(minimal)

    def _section(self, name: str) -> Section | None:
        return self._answer.find(name)

    def _sudo(self, refusal: str | None) -> tuple[bool, str | None]:
        """Whether sudo works, and why not. A probe that ran under sudo has no such section."""
        section = self._section("sudo")
        if section is None or self._uid == 0:
            return False, refusal
        error = self._answer.read("sudo", "sudo said nothing", system.parse_sudo, section)
        return error is None, error

    def _clock(self) -> float:
        start, end = self._section("clock"), self._section("end")
        if start is None or end is None:
            raise ValueError("the probe did not say")
        return system.parse_clock(start, end)

    def _nofile(self) -> int:
        """Return the engine's limit if it runs and its limits can be read, else the session's."""
        return system.parse_nofile(self._shell.get("engine-nofile") or self._shell["nofile"])

    def _os(self) -> Os:
        machine = self._shell.get("machine", "")
        unread = Os("", (), "", "", "", machine, "")
        return self._answer.read(
            "the operating system", unread, system.parse_os, self._files, machine
        )

    def _gpus(self) -> GpuReport:
        return self._gpu_probe.read(self._answer, self._files, self._paths)

    def _engine(self) -> EngineFacts:
        return self._answer.read(
            "the container engine",
            docker_report.GARBLED,
            docker_report.parse_engine,
            self._section("engine"),
            self._section("api"),
        )

    def _disks(self) -> dict[str, Disk]:
        """Return the requested disks and that of the engine's image store, by path."""
        found: dict[str, Disk] = {}
        for section in self._answer.all("disks"):
            found.update(self._answer.read("disks", {}, system.parse_disks, section))
            self._answer.unknown.extend(system.df_complaints(section))
        return found


def _asked_files(answer: Answer) -> tuple[dict[str, bytes | None], tuple[str, ...]]:
    files: dict[str, bytes | None] = {}
    unreadable = []
    for section in answer.all("file"):
        try:
            files[section.argument] = _content(section)
        except ValueError:
            unreadable.append(section.argument)
    return files, tuple(unreadable)


def _content(section: Section) -> bytes | None:
    """Return the content, None if there is no such file. Raises ValueError if unreadable."""
    if "!missing" in section.lines:
        return None
    return base64.b64decode("".join(section.lines), validate=True)
