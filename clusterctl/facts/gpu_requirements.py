"""Compare the GPUs that the inventory declares with those present. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from operator import eq, ge, gt, le, lt

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.gpu_faults import CATALOG, describe_processes, foreign, gpu_faults
from clusterctl.facts.gpu_probe import NOT_FOUND
from clusterctl.facts.model import GpuFacts, HostFacts
from clusterctl.facts.network_requirements import usable_devices
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.units import GIB

# Driver branch to the newest CUDA that it supports: `CUDA Version` in nvidia-smi's heading, and the
# table of drivers in the CUDA toolkit's release notes
NEWEST_CUDA = {
    450: (11, 0), 455: (11, 1), 460: (11, 2), 465: (11, 3), 470: (11, 4), 495: (11, 5),
    510: (11, 6), 515: (11, 7), 520: (11, 8), 525: (12, 0), 530: (12, 1), 535: (12, 2),
    545: (12, 3), 550: (12, 4), 555: (12, 5), 560: (12, 6), 565: (12, 7), 570: (12, 8),
    575: (12, 9), 580: (13, 0), 590: (13, 1),
}  # fmt: skip

# Oldest driver for any minor version of a CUDA (minor version compatibility: CUDA Compatibility
# guide, table 1)
FIRST_DRIVER = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}

_CONDITION = re.compile(r"(cuda|driver)\s*(>=|<=|=|<|>)\s*([0-9.]+)")


def too_old(driver: str, env: Mapping[str, str]) -> str | None:
    """Return what the image requires, for the user, if `driver` cannot run it; None if it can, or
    if either is unknown. `env`: the image's environment."""
    ours = _numbers(driver)
    if not ours:
        return None
    if wanted := env.get("NVIDIA_REQUIRE_CUDA"):
        alternatives = [_CONDITION.findall(words) for words in wanted.split()]
        known = [conditions for conditions in alternatives if conditions]
        branches = [branch for branch in NEWEST_CUDA if branch <= ours[0]]
        # A driver that the table does not have is assumed to be good enough.
        if not known or not branches or ours[0] >= max(NEWEST_CUDA) + 5:
            return None
        cuda = NEWEST_CUDA[max(branches)]
        if any(_hold(conditions, ours, cuda) for conditions in known):
            return None
        named = [value for conditions in known for what, _, value in conditions if what == "cuda"]
        return f"CUDA {named[0]}" if named else wanted
    version = env.get("CUDA_VERSION", "")
    first = FIRST_DRIVER.get(_numbers(version)[0]) if _numbers(version) else None
    return f"CUDA {version}" if first and ours < _numbers(first) else None


def needed_driver(env: Mapping[str, str]) -> str | None:
    """The oldest driver branch that supports the image's CUDA, such as `570`; None if unknown."""
    words = re.search(r"cuda>=([0-9.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    version = _numbers(words[1] if words else env.get("CUDA_VERSION", ""))[:2]
    if not version:
        return None
    if not words and version[0] in FIRST_DRIVER:
        return FIRST_DRIVER[version[0]]
    return next((str(branch) for branch, cuda in NEWEST_CUDA.items() if cuda >= version), None)


_OPERATORS = {">=": ge, "<=": le, "=": eq, "<": lt, ">": gt}


def _hold(
    conditions: Sequence[tuple[str, str, str]], driver: Sequence[int], cuda: Sequence[int]
) -> bool:
    """Whether all conditions hold. Brands are ignored: images list the same drivers for each."""
    for what, operator, value in conditions:
        wanted = _numbers(value)
        # Compare as many numbers as are wanted: 535.161 equals 535.
        ours = tuple(driver if what == "driver" else cuda)[: len(wanted)]
        if not _OPERATORS[operator](ours, wanted):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", version))


# Fraction by which memory may differ from the declared: names are rounded, the driver keeps some.
# An L4 of "24 GiB" shows 23034 MiB (6 % less), an H200 of "141 GB" 143771 MiB.
MEMORY_TOLERANCE = 0.10

# Words that distinguish models: an RTX 3090 is not an RTX 3090 Ti
TELLING_WORDS = frozenset({"ti", "super", "laptop", "max", "mobile", "ada", "d"})

NOUVEAU_GONE = (
    "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | "
    "sudo tee /etc/modprobe.d/blacklist-nouveau.conf; {rebuild}; sudo reboot"
)


def gpu_problems(
    inventory: Inventory,
    host: Host,
    facts: HostFacts,
    image_env: Mapping[str, str] | None = None,
) -> Iterator[RequirementsNotMet]:
    """Yield problems, without the host's name; none for a host with no declared GPU. `image_env`:
    the image's environment, if some host has the image."""
    if not host.gpus:
        return
    yield from _declared_problems(inventory, host, facts)
    driver = facts.gpus.gpus[0].driver if facts.gpus.gpus else ""
    if wanted := too_old(driver, image_env or {}):
        branch = needed_driver(image_env or {})
        yield RequirementsNotMet(
            f"its driver {driver} is too old for the image, which needs {wanted}",
            hint=f"clusterctl bootstrap {inventory.file} --install-driver FILE.run with driver "
            f"{branch or 'newer'} or later; or an image for an older CUDA",
        )
    yield from gpu_faults(facts.gpus)


def _declared_problems(
    inventory: Inventory, host: Host, facts: HostFacts
) -> Iterator[RequirementsNotMet]:
    """Yield a problem if the host lacks GPUs that the inventory declares."""
    report = facts.gpus
    declared, seen = f"the inventory declares {_count(len(host.gpus))}", len(report.gpus)
    if not seen:
        why = "the kernel's nouveau driver holds them" if report.nouveau else report.error
        yield RequirementsNotMet(
            f"{declared}, but none can be used: {why}",
            hint=_driver_hint(inventory, facts),
            detail=report.error if report.nouveau else None,
        )
    elif seen < min(len(host.gpus), report.pci_devices):
        yield RequirementsNotMet(
            f"{declared}, but nvidia-smi shows {seen} of the {report.pci_devices} on its PCI bus: "
            "one fell off the bus",
            hint="sudo dmesg | grep -i xid; then sudo reboot, or power it off and on",
            detail=report.error,
        )
    elif seen < len(host.gpus):
        yield RequirementsNotMet(
            f"{declared}, but the host has {seen}: {describe(report.gpus)}",
            hint=f"set gpus: {seen} in the inventory; on the host: nvidia-smi -L",
            detail=report.error,
        )
    elif missing := _missing(host.gpus, report.gpus):
        names = (
            f"{gpu.model or 'a GPU'}{f' ({_gib(gpu.memory)})' if gpu.memory is not None else ''}"
            for gpu in missing
        )
        yield RequirementsNotMet(
            f"the inventory declares {', '.join(names)}, but the host has {describe(report.gpus)}",
            hint="correct gpus in the inventory; on the host: nvidia-smi -L",
        )


def driver_notes(facts: Mapping[str, HostFacts]) -> Iterator[str]:
    """Note drivers that differ between hosts: NCCL and CUDA work, but behave differently."""
    found: dict[str, list[str]] = {}
    for name, of in facts.items():
        for driver in {gpu.driver for gpu in of.gpus.gpus}:
            found.setdefault(driver, []).append(name)
    if len(found) > 1:
        each = "; ".join(f"{driver} on {', '.join(names)}" for driver, names in found.items())
        yield f"NVIDIA drivers differ: {each}"


def gpu_notes(inventory: Inventory, host: Host, facts: HostFacts) -> Iterator[str]:
    report = facts.gpus
    if report.gpus and usable_devices(inventory, host, facts) and not facts.peer_memory:
        yield (
            "nvidia_peermem is not loaded: RDMA reaches the GPUs' memory only with NVIDIA's open "
            "kernel modules; with the others: sudo modprobe nvidia_peermem"
        )
    if not host.gpus:
        if report.gpus:
            yield (
                f"has {describe(report.gpus)}, but the inventory declares none: they will not "
                "be used"
            )
        return
    if report.gpus and report.error:
        yield f"nvidia-smi says: {report.error}"
    if len(report.gpus) > len(host.gpus):
        yield f"has {_count(len(report.gpus))}, but the inventory declares {len(host.gpus)}"
    if any(gpu.persistence is False for gpu in report.gpus):
        yield (
            "persistence mode is off: each program that finds the GPUs idle initializes them again "
            "(sudo systemctl enable --now nvidia-persistenced)"
        )
    if strangers := foreign(report):
        yield f"other processes use its GPUs: {describe_processes(strangers)}"
    for xid in report.xids:
        if xid.code in CATALOG and CATALOG[xid.code].waits:
            yield f"the GPU at {xid.bus} reported Xid {xid.code}: {CATALOG[xid.code].what}"
    if any(gpu.unified for gpu in report.gpus):
        yield "its GPU has no memory of its own: the host's memory is counted as the GPU's"
    if any(gpu.memory is None for gpu in report.gpus):
        yield "nvidia-smi does not say how much memory a GPU has: not compared with the inventory"


def describe(gpus: Sequence[GpuFacts]) -> str:
    """Format `2 x NVIDIA L4 (22.5 GiB), 1 x ...`, in the order in which models first appear."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        memory = f" ({_gib(gpu.memory)})" if gpu.memory is not None else ""
        counts[f"{gpu.model}{memory}"] = counts.get(f"{gpu.model}{memory}", 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _missing(declared: Sequence[Gpu], found: Sequence[GpuFacts]) -> list[Gpu]:
    """Return declared GPUs without a GPU of their own; the most specific ones are matched first."""
    free = list(found)
    missing = []
    for wanted in sorted(declared, key=lambda gpu: (gpu.model is None) + (gpu.memory is None)):
        match = next((gpu for gpu in free if _fits(wanted, gpu)), None)
        if match is None:
            missing.append(wanted)
        else:
            free.remove(match)
    return missing


def _fits(declared: Gpu, found: GpuFacts) -> bool:
    """Return whether `found` has the declared model and memory, as far as both are known. `H800`
    matches `NVIDIA H800 PCIe`: every declared word must occur, and no other word may be one of
    TELLING_WORDS."""
    if declared.memory is not None and found.memory is not None:
        off = abs(found.memory - declared.memory)
        if off > declared.memory * MEMORY_TOLERANCE:
            return False
    if declared.model is None:
        return True
    wanted, there = (
        set(re.findall(r"[a-z0-9]+", name.lower())) for name in (declared.model, found.model)
    )
    return wanted <= there and not (there - wanted) & TELLING_WORDS


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}".removesuffix(".0") + " GiB"


def _count(number: int) -> str:
    return "1 GPU" if number == 1 else f"{number} GPUs"


# Part of nvidia-smi's message, in lower case, and the fix
_COMPLAINTS = (
    ("version mismatch", "the driver was upgraded under the running kernel module: sudo reboot"),
    ("does not answer", "a GPU hangs: sudo dmesg | grep -i xid; then sudo reboot"),
    (
        "unknown error",
        "NVML may not open /dev/nvidia*: sudo systemctl restart nvidia-persistenced; if that does "
        "not help: sudo reboot (a host that is a container itself must be created again)",
    ),
    ("insufficient permissions", "run as root: set ssh.user: root, or give the user sudo"),
    ("no devices were found", "sudo dmesg | grep -i nvrm; then sudo reboot"),
)


def _driver_hint(inventory: Inventory, facts: HostFacts) -> str:
    error = facts.gpus.error or ""
    if facts.gpus.nouveau:
        return without_nouveau(facts)
    if hint := next((hint for words, hint in _COMPLAINTS if words in error.lower()), None):
        return hint
    if error != NOT_FOUND:
        return "sudo modprobe nvidia; if that fails: sudo dmesg | grep -i nvrm"
    if facts.gpus.pci_devices == 0:
        return "no NVIDIA GPU is on its PCI bus: lspci -d 10de:; set gpus: 0 in the inventory"
    install = "install the NVIDIA driver, then: sudo reboot; nvidia-smi -L"
    if facts.os.id == "ubuntu":
        install = "install the driver: sudo ubuntu-drivers install --gpgpu; sudo reboot"
    elif "debian" in (facts.os.id, *facts.os.like):
        install = "install the driver: sudo apt-get install nvidia-driver; sudo reboot"
    return f"{install}; or: clusterctl bootstrap {inventory.file} --install-driver FILE.run"


def without_nouveau(facts: HostFacts) -> str:
    """Commands that keep nouveau from loading."""
    rebuild = "sudo update-initramfs -u" if facts.os.debian_like else "sudo dracut --force"
    return NOUVEAU_GONE.format(rebuild=rebuild)
