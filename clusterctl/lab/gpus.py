"""This machine's NVIDIA GPUs, shared out among the lab's hosts.

A host gets the device nodes of its own GPUs, and this machine's driver libraries, nvidia-smi and
container toolkit, read-only. The kernel module is the machine's: a GPU belongs to one host, and MIG
instances cannot be given to hosts.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from clusterctl.errors import StepFailed
from clusterctl.lab.local import lab_environment, run
from clusterctl.lab.requirements import LabUnavailable

MODULE_VERSION = Path("/sys/module/nvidia/version")
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
_NODE = re.compile(r"nvidia(\d+)")

# The rest of the driver's and toolkit's programs: those that exist are shared.
SMI, TOOLKIT = "nvidia-smi", "nvidia-ctk"
_PROGRAMS = (
    SMI, "nvidia-modprobe", "nvidia-debugdump", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
    TOOLKIT, "nvidia-cdi-hook", "nvidia-container-cli", "nvidia-container-runtime",
    "nvidia-container-runtime-hook",
)  # fmt: skip

# NVIDIA's libraries create missing device nodes as root, also those of other hosts' GPUs, unless
# the driver's parameters say no. The host's view of these is covered at each boot.
SETUP_PATH = "/usr/local/sbin/lab-gpus"
SETUP = """\
#!/bin/sh
params=/proc/driver/nvidia/params
sed 's/^ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/' $params >/run/lab-gpus.params
mount --bind /run/lab-gpus.params $params
exec ldconfig
"""
UNIT_PATH = "/etc/systemd/system/lab-gpus.service"
UNIT = f"""\
[Unit]
Description=GPUs of this host of the lab
ConditionPathExists=/dev/nvidiactl
Before=ssh.service docker.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={SETUP_PATH}
"""
LIBRARY_DIRECTORIES_PATH = "/etc/ld.so.conf.d/lab-gpus.conf"


@dataclass(frozen=True)
class Driver:
    """Files of the driver and the toolkit on this machine, each with its path in the hosts."""

    version: str
    files: Mapping[Path, str]

    @property
    def library_directories(self) -> tuple[str, ...]:
        """Directories in which the hosts' linker has to look."""
        libraries = (Path(target) for target in self.files.values() if ".so." in target)
        return tuple(sorted({str(library.parent) for library in libraries}))


def machine_gpus(dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the device nodes of this machine's GPUs. Raises LabUnavailable if there is none, or if
    MIG divides one."""
    numbers = sorted(
        int(found[1]) for node in dev.iterdir() if (found := _NODE.fullmatch(node.name))
    )
    if not numbers or shutil.which(SMI, path=_path()) is None:
        raise LabUnavailable(
            "this machine has no NVIDIA GPU with a driver: "
            + (f"{SMI} is not installed" if numbers else f"{dev}/nvidia0 does not exist"),
            hint="nvidia-smi must list the GPUs; without --gpus, the lab's hosts use CPUs",
        )
    shown = run([SMI, "--query-gpu=index,mig.mode.current", "--format=csv,noheader"])
    rows = (line.split(",") for line in shown.splitlines())
    if divided := [index.strip() for index, *mode in rows if "Enabled" in "".join(mode)]:
        raise LabUnavailable(
            f"GPU {', '.join(divided)} is divided by MIG, but the lab gives hosts whole GPUs",
            hint="; ".join(f"nvidia-smi -i {index} -mig 0" for index in divided),
        )
    return tuple(f"/dev/nvidia{number}" for number in numbers)


def share_out(nodes: Sequence[str], hosts: int) -> tuple[tuple[str, ...], ...]:
    """Return the nodes of each host: adjacent GPUs, and one more for the first hosts if they do not
    divide evenly. Raises LabUnavailable if there are fewer GPUs than hosts."""
    if len(nodes) < hosts:
        raise LabUnavailable(
            f"{hosts} hosts need a GPU each, and this machine has {len(nodes)}: "
            "one GPU cannot belong to two hosts",
            hint=f"clusterctl lab up --gpus --hosts {len(nodes)}",
        )
    each, more = divmod(len(nodes), hosts)
    ends = [(each + 1) * min(host, more) + each * max(0, host - more) for host in range(hosts + 1)]
    return tuple(tuple(nodes[ends[host] : ends[host + 1]]) for host in range(hosts))


def machine_driver(version_file: Path = MODULE_VERSION) -> Driver:
    """Return the loaded driver's files. Raises LabUnavailable if it, its libraries or the container
    toolkit are missing."""
    if not version_file.is_file():
        raise LabUnavailable(
            "NVIDIA's driver is not loaded on this machine", hint="modprobe nvidia"
        )
    version = version_file.read_text().strip()
    programs = {name: shutil.which(name, path=_path()) for name in _PROGRAMS}
    if programs[TOOLKIT] is None:
        raise LabUnavailable(
            "NVIDIA's container toolkit, which hosts with GPUs share, is not installed here",
            hint="apt-get install nvidia-container-toolkit (from NVIDIA's package source)",
        )
    libraries = [
        library
        for directory in _library_directories(run(["ldconfig", "-p"]), programs[SMI])
        for pattern in (f"*.so.{version}", "libnvidia-container*.so.*")
        for library in sorted(directory.glob(pattern))
        if library.is_file() and not library.is_symlink()
    ]
    if not any(library.name == f"libcuda.so.{version}" for library in libraries):
        raise LabUnavailable(
            f"libcuda.so.{version}, of the loaded driver, is not found on this machine",
            hint="ldconfig -p | grep libcuda; restart the machine after an update of the driver",
        )
    files = {library: str(library) for library in libraries}
    files |= {Path(path).resolve(): f"/usr/bin/{name}" for name, path in programs.items() if path}
    return Driver(version, files)


def _library_directories(cache: str, smi: str | None) -> tuple[Path, ...]:
    """Return where the linker finds NVIDIA's libraries: its cache, LD_LIBRARY_PATH, and next to
    nvidia-smi, for a driver with its own prefix."""
    paths = [Path(line.rpartition(" => ")[2]) for line in cache.splitlines() if "nvidia" in line]
    found = [path.parent.resolve() for path in paths if path.is_absolute()]
    named = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    found += [Path(name).resolve() for name in named if name.startswith("/")]
    found += [Path(smi).resolve().parents[1] / "lib64"] if smi else []
    return tuple(place for place in dict.fromkeys(found) if place.is_dir())


def binds(nodes: Iterable[str], driver: Driver) -> list[str]:
    """Return nspawn's arguments for a host with these GPUs."""
    if not all(Path(node).exists() for node in _CONTROL_NODES):
        # CUDA's nodes are made by its first use, or by this; a machine without the program has them
        with suppress(StepFailed):
            run(["nvidia-modprobe", "-c", "0", "-u"])
    control = [node for node in _CONTROL_NODES if Path(node).exists()]
    return [
        *(f"--bind={node}" for node in (*nodes, *control)),
        *(f"--bind-ro={source}:{target}" for source, target in driver.files.items()),
    ]


def write_setup(root: Path, driver: Driver) -> None:
    """Write the unit that prepares a host's GPUs at each boot into its file tree."""
    wanted = root / "etc/systemd/system/multi-user.target.wants" / Path(UNIT_PATH).name
    texts = {
        SETUP_PATH: SETUP,
        UNIT_PATH: UNIT,
        LIBRARY_DIRECTORIES_PATH: "".join(f"{name}\n" for name in driver.library_directories),
    }
    for path, text in texts.items():
        file = root / path.removeprefix("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (root / SETUP_PATH.removeprefix("/")).chmod(0o755)
    wanted.parent.mkdir(parents=True, exist_ok=True)
    wanted.unlink(missing_ok=True)
    wanted.symlink_to(UNIT_PATH)


def _path() -> str:
    return lab_environment()["PATH"]
