"""Readings of this host: memory, disks, NICs, TCP, the clock, stopped processes.

All of it is in /proc and /sys, which an unprivileged container may read. The kernel's own log is
not: it needs CAP_SYSLOG and a device. `diagnose` reads that on the host.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Container, Dict, Iterator, List, Mapping, Sequence, Tuple

MIB = 2**20

# Thresholds of `conditions`.
_LEAST_MEMORY = 0.03  # Of the host's memory
_LEAST_DISK = 0.01  # Of a file system, if that is also less than
_LEAST_FREE = 256  # MiB
_LOST_PACKETS = 100  # Between two readings, and 1 % of all
# TCP segments between two readings, and 2 % of all. In 453 readings of healthy hosts, some short of
# CPU, it was at most 3 of few, and 0.4 % of many.
_RESENT = 10
_CLOCK_STEP = 0.5  # Seconds
_OF_CONTAINERS = ("lo", "veth", "docker", "br-", "cni", "virbr")  # The loopback, too
_OOM_KILLS = (
    "/sys/fs/cgroup/memory.events",
    "/sys/fs/cgroup/memory/memory.oom_control",
    "/proc/vmstat",
)
_STOOD_STILL = 4.0  # Times the pause between two readings


@dataclass(frozen=True)
class NicReading:
    """Counters of a NIC since it came up."""

    carrier: bool
    losses: int  # Of the carrier
    packets: int
    errors: int
    drops: int


@dataclass(frozen=True)
class HostReading:
    """A host's readings at one moment."""

    time: float  # Unix seconds
    monotonic: float
    memory: Tuple[int, int] = (0, 0)  # MiB available, in all
    oom_kills: int = 0  # Of the container since it began, or of the host since boot
    disks: Dict[str, Tuple[int, int]] = field(default_factory=dict)  # MiB free, in all
    nics: Dict[str, NicReading] = field(default_factory=dict)
    sent: int = 0  # TCP segments
    resent: int = 0  # Without those that begin a connection
    stopped: Dict[int, str] = field(default_factory=dict)  # Names of stopped processes
    gpus: List[Dict[str, str]] = field(default_factory=list)  # By the columns of GpuListing


def host_reading(disks: Sequence[str], gpus: List[Dict[str, str]]) -> HostReading:
    """Read the host. What cannot be read keeps its default. `disks`: directories."""
    memory = _named("/proc/meminfo")
    tcp = _tcp()
    return HostReading(
        time=time.time(),
        monotonic=time.monotonic(),
        memory=(memory.get("MemAvailable", 0) // 1024, memory.get("MemTotal", 0) // 1024),
        oom_kills=_oom_kills(),
        disks=dict(_disks(disks)),
        nics=dict(_nics(Path("/sys/class/net"))),
        sent=tcp.get("OutSegs", 0),
        # An attempt to connect to what does not answer, such as the internet, is no loss on a path.
        resent=tcp.get("RetransSegs", 0) - tcp.get("TCPSynRetrans", 0),
        stopped=stopped_processes(),
        gpus=gpus,
    )


def conditions(
    before: HostReading, now: HostReading, every: float, held: Container[Tuple[str, str]] = ()
) -> Dict[Tuple[str, str], str]:
    """Return what is wrong now, by kind and device, each in a sentence. `every`: usual seconds
    between two readings. `held`: what was wrong before."""
    found: Dict[Tuple[str, str], str] = {}
    free, most = now.memory
    if free < most * _LEAST_MEMORY:
        found["memory-low", ""] = f"{free} of {most} MiB of memory are available"
    if killed := now.oom_kills - before.oom_kills:
        found["oom-kill", ""] = f"the kernel ended {killed} processes for lack of memory"
    for path, text in full_disks(now.disks):
        found["disk-full", path] = text
    for name, nic in now.nics.items():
        old = before.nics.get(name)
        if old is None:
            continue
        if nic.losses > old.losses or (old.carrier and not nic.carrier):
            back = ", and has it again" if nic.carrier else ""
            found["link-lost", name] = f"{name} lost its link{back}"
        elif not nic.carrier and ("link-lost", name) in held:
            found["link-lost", name] = f"{name} lost its link"
        moved = nic.packets - old.packets
        for kind in ("errors", "drops"):
            count = getattr(nic, kind) - getattr(old, kind)
            if count >= _LOST_PACKETS and count * 100 > moved:
                found[f"nic-{kind}", name] = f"{name} counted {count} {kind}, {moved} packets"
    sent, resent = now.sent - before.sent, now.resent - before.resent
    if resent >= _RESENT and resent * 50 > sent:
        share = min(100.0, 100.0 * resent / max(1, sent + resent))
        found["tcp-resent", ""] = f"{share:.0f} % of TCP segments were sent again ({resent})"
    for pid, name in now.stopped.items():
        found["stopped", str(pid)] = f"{name} (process {pid}) is stopped by a signal"
    passed = now.monotonic - before.monotonic
    stepped = now.time - before.time - passed
    if abs(stepped) > _CLOCK_STEP:
        found["clock-step", ""] = f"the clock was set by {stepped:+.1f} s"
    if passed > _STOOD_STILL * every:
        found["stood-still", ""] = f"no reading for {passed:.0f} s: the host stood still"
    return {**found, **dict(_gpu_conditions(before.gpus, now.gpus))}


def full_disks(disks: Mapping[str, Tuple[int, int]]) -> Iterator[Tuple[str, str]]:
    """Yield the paths in `disks` (free and total MiB) that are full, each with a sentence."""
    for path, (left, size) in disks.items():
        if left < min(size * _LEAST_DISK, _LEAST_FREE):
            yield path, f"{path} has {left} of {size} MiB free"


def _gpu_conditions(
    before: Sequence[Mapping[str, str]], now: Sequence[Mapping[str, str]]
) -> Iterator[Tuple[Tuple[str, str], str]]:
    """Yield what is wrong with GPUs: uncorrected memory errors, and slowed clocks."""
    if len(now) < len(before) and now:
        text = f"{len(now)} GPUs answer, {len(before)} did"
        yield ("gpu-lost", ""), text
    old = {gpu.get("index"): gpu for gpu in before}
    for gpu in now:
        index = gpu.get("index", "")
        errors, last = gpu.get("uncorrected", ""), old.get(index, {}).get("uncorrected", "")
        if errors.isdigit() and last.isdigit() and int(errors) > int(last):
            count = int(errors) - int(last)
            yield ("gpu-ecc", index), f"GPU {index} has {count} uncorrected memory errors more"
        for column, value in gpu.items():
            if column.startswith("slowed") and value == "Active":
                why = column.partition(" ")[2]
                heat = gpu.get("temperature", "?")
                yield ("gpu-slowed", f"{index} {why}"), f"GPU {index} is slowed: {why} ({heat} C)"


def stopped_processes() -> Dict[int, str]:
    """Return this container's processes that a signal has stopped, by PID."""
    return {pid: process_name(pid) for pid in process_ids() if process_state(pid) in ("T", "t")}


def process_ids() -> List[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208


def process_state(pid: int) -> str:
    """Return R, S, D, T, ...; "" if there is no such process."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[0]


def process_name(pid: int) -> str:
    """Return the name of a process's program, or its own title: `raylet`, `ray::RayWorkerWrapper`,
    `VLLM::EngineCore`. Processes choose it freely, and the journal is printed."""
    name = _own_name(pid)[:40]
    return "".join(each if each.isprintable() else "?" for each in name) or "a process"


def _own_name(pid: int) -> str:
    with contextlib.suppress(OSError):
        line = Path("/proc", str(pid), "cmdline").read_bytes().decode("utf-8", "replace")
        words = line.split("\0")
        first = words[0].strip()
        if "::" in first:
            return first
        if first.rpartition("/")[2].startswith("python") and len(words) > 1:
            return Path(words[1]).name or "python"
        if first:
            return Path(first).name
        return Path("/proc", str(pid), "comm").read_text("utf-8", "replace").strip()
    return ""


def _disks(paths: Sequence[str]) -> Iterator[Tuple[str, Tuple[int, int]]]:
    for path in paths:
        with contextlib.suppress(OSError):
            found = os.statvfs(path)
            size = found.f_frsize
            if not found.f_flag & os.ST_RDONLY:
                yield path, (found.f_bavail * size // MIB, found.f_blocks * size // MIB)


def _nics(root: Path) -> Iterator[Tuple[str, NicReading]]:
    """Yield the NICs of the host, without loopback and container interfaces that come and go."""
    with contextlib.suppress(OSError):
        for path in sorted(root.iterdir()):
            if path.name.startswith(_OF_CONTAINERS):
                continue
            with contextlib.suppress(OSError, ValueError):
                packets, errors, drops = (
                    sum(_number(path / "statistics" / f"{way}_{kind}") for way in ("rx", "tx"))
                    for kind in ("packets", "errors", "dropped")
                )
                losses = _number(path / "carrier_down_count")
                yield path.name, NicReading(_has_carrier(path), losses, packets, errors, drops)


def _has_carrier(nic: Path) -> bool:
    try:
        return _number(nic / "carrier") == 1
    except OSError:
        return False  # EINVAL: it is switched off


def _number(path: Path) -> int:
    return int(path.read_text("ascii"))


def _named(path: str) -> Dict[str, int]:
    """Return the values of lines such as `MemTotal:   123 kB` and `oom_kill 0`."""
    found: Dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in Path(path).read_text("utf-8", "replace").splitlines():
            name, _, value = line.partition(" ")
            with contextlib.suppress(ValueError, IndexError):
                found[name.rstrip(":")] = int(value.split()[0])
    return found


def _oom_kills() -> int:
    """Return how many processes of this container the OOM killer has ended, according to its
    control group (version 2, then 1); those of the host if the group does not show it."""
    for path in _OOM_KILLS:
        kills = _named(path).get("oom_kill")
        if kills is not None:
            return kills
    return 0


def _tcp() -> Dict[str, int]:
    """Return the counters of TCP. Each group has a line of names, then one of values."""
    found: Dict[str, int] = {}
    for path, group in (("/proc/net/snmp", "Tcp:"), ("/proc/net/netstat", "TcpExt:")):
        with contextlib.suppress(OSError, ValueError):
            text = Path(path).read_text("utf-8", "replace")
            names, values = [line.split() for line in text.splitlines() if line.startswith(group)]
            pairs = zip(names[1:], values[1:])  # noqa: B905 - Python 3.9
            found.update({name: int(value) for name, value in pairs})
    return found
