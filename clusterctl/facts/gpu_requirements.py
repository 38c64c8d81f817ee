"""Compare the GPUs that the inventory declares with those present. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.gpu_faults import CATALOG, describe_processes, foreign, gpu_faults
from clusterctl.facts.gpus import NOT_FOUND
from clusterctl.facts.model import GpuFacts, GpuReport, HostFacts
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
        cuda = _newest_cuda(ours)
        if not known or cuda is None or any(_holds(a, ours, cuda) for a in known):
            return None
        return _first_cuda(known) or wanted
    version = env.get("CUDA_VERSION", "")
    first = FIRST_DRIVER.get(_numbers(version)[0]) if _numbers(version) else None
    return f"CUDA {version}" if first and ours < _numbers(first) else None


def needed_driver(env: Mapping[str, str]) -> str | None:
    """The oldest branch that supports the image's CUDA, such as `570`; None if unknown."""
    words = re.search(r"cuda>=([0-9.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    version = _numbers(words[1] if words else env.get("CUDA_VERSION", ""))[:2]
    if not version:
        return None
    if not words and version[0] in FIRST_DRIVER:
        return FIRST_DRIVER[version[0]]
    return next((str(branch) for branch, cuda in NEWEST_CUDA.items() if cuda >= version), None)


def _newest_cuda(driver: Sequence[int]) -> tuple[int, ...] | None:
    """None for a driver that the table does not have, which is assumed to be good enough."""
    branches = [branch for branch in NEWEST_CUDA if branch <= driver[0]]
    if driver[0] >= max(NEWEST_CUDA) + 5 or not branches:
        return None
    return NEWEST_CUDA[max(branches)]


def _holds(
    conditions: Sequence[tuple[str, str, str]], driver: Sequence[int], cuda: Sequence[int]
) -> bool:
    """Whether all conditions hold. Brands are ignored: images list the same drivers for each."""
    return all(
        _compare(driver if what == "driver" else cuda, operator, _numbers(value))
        for what, operator, value in conditions
    )


def _compare(ours: Sequence[int], operator: str, wanted: Sequence[int]) -> bool:
    """Compare as many numbers as `wanted` has: 535.161 equals 535."""
    left, right = tuple(ours[: len(wanted)]), tuple(wanted)
    return {
        ">=": left >= right,
        "<=": left <= right,
        "=": left == right,
        "<": left < right,
        ">": left > right,
    }[operator]


def _first_cuda(alternatives: Sequence[Sequence[tuple[str, str, str]]]) -> str | None:
    return next(
        (f"CUDA {value}" for conditions in alternatives for what, _, value in conditions
         if what == "cuda"),
        None,
    )  # fmt: skip


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
    """Yield nothing for a host with no declared GPU. `image_env`: the image's environment, if some
    host has the image."""
    if not host.gpus:
        return
    yield from _promise_problems(inventory, host, facts)
    yield from _driver_problems(inventory, host, facts.gpus.gpus, image_env or {})
    yield from gpu_faults(host, facts.gpus)


def _promise_problems(
    inventory: Inventory, host: Host, facts: HostFacts
) -> Iterator[RequirementsNotMet]:
    promised, report = host.gpus, facts.gpus
    if not report.gpus:
        why = "the kernel's nouveau driver holds them" if report.nouveau else report.error
        yield RequirementsNotMet(
            f"the inventory declares {_count(len(promised))}, but none can be used: {why}",
            host=host.name,
            hint=_driver_hint(inventory, facts),
            detail=report.error if report.nouveau else None,
        )
    elif len(report.gpus) < min(len(promised), report.pci_devices):
        yield RequirementsNotMet(
            f"the inventory declares {_count(len(promised))}, but nvidia-smi shows "
            f"{len(report.gpus)} of the {report.pci_devices} on its PCI bus: one fell off the bus",
            host=host.name,
            hint="sudo dmesg | grep -i xid; then sudo reboot, or power it off and on",
            detail=report.error,
        )
    elif len(report.gpus) < len(promised):
        yield RequirementsNotMet(
            f"the inventory declares {_count(len(promised))}, but the host has {len(report.gpus)}: "
            f"{describe(report.gpus)}",
            host=host.name,
            hint=f"set gpus: {len(report.gpus)} in the inventory; on the host: nvidia-smi -L",
            detail=report.error,
        )
    elif broken := _unfulfilled(promised, report.gpus):
        yield RequirementsNotMet(
            f"the inventory declares {', '.join(_promise(gpu) for gpu in broken)}, but the host "
            f"has {describe(report.gpus)}",
            host=host.name,
            hint="correct gpus in the inventory; on the host: nvidia-smi -L",
        )


def _driver_problems(
    inventory: Inventory, host: Host, gpus: Sequence[GpuFacts], image_env: Mapping[str, str]
) -> Iterator[RequirementsNotMet]:
    driver = gpus[0].driver if gpus else ""
    if wanted := too_old(driver, image_env):
        branch = needed_driver(image_env)
        yield RequirementsNotMet(
            f"its driver {driver} is too old for the image, which needs {wanted}",
            host=host.name,
            hint=f"clusterctl bootstrap {inventory.file} --install-driver FILE.run with driver "
            f"{branch or 'newer'} or later; or an image for an older CUDA",
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
    yield from _condition(report)
    yield from _memory_notes(report.gpus)


def _condition(report: GpuReport) -> Iterator[str]:
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


def _memory_notes(gpus: Sequence[GpuFacts]) -> Iterator[str]:
    if any(gpu.unified for gpu in gpus):
        yield "its GPU has no memory of its own: the host's memory is counted as the GPU's"
    if any(gpu.memory is None for gpu in gpus):
        yield "nvidia-smi does not say how much memory a GPU has: not compared with the inventory"


def describe(gpus: Sequence[GpuFacts]) -> str:
    """Format `2 x NVIDIA L4 (22.5 GiB), 1 x ...`, in the order in which models first appear."""
    counts: dict[str, int] = {}
    for gpu in gpus:
        memory = f" ({_gib(gpu.memory)})" if gpu.memory is not None else ""
        counts[f"{gpu.model}{memory}"] = counts.get(f"{gpu.model}{memory}", 0) + 1
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


def _unfulfilled(promised: Sequence[Gpu], found: Sequence[GpuFacts]) -> list[Gpu]:
    """Return declared GPUs without a GPU of their own; the most specific ones are matched first."""
    free = list(found)
    broken = []
    for promise in sorted(promised, key=lambda gpu: (gpu.model is None) + (gpu.memory is None)):
        fitting = (
            gpu
            for gpu in free
            if _is_model(promise.model, gpu.model) and _has_memory(promise.memory, gpu.memory)
        )
        keeper = next(fitting, None)
        if keeper is None:
            broken.append(promise)
        else:
            free.remove(keeper)
    return broken


def _is_model(promise: str | None, found: str) -> bool:
    """`H800` matches `NVIDIA H800 PCIe`, which has all its words and no further telling one."""
    if promise is None:
        return True
    wanted, there = _words(promise), _words(found)
    return wanted <= there and not (there - wanted) & TELLING_WORDS


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower()))


def _has_memory(promise: int | None, found: int | None) -> bool:
    if promise is None or found is None:
        return True
    return abs(found - promise) <= promise * MEMORY_TOLERANCE


def _promise(gpu: Gpu) -> str:
    name = gpu.model or "a GPU"
    return f"{name} ({_gib(gpu.memory)})" if gpu.memory is not None else name


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
    ours = f"clusterctl bootstrap {inventory.file} --install-driver FILE.run"
    return f"{_install_driver(facts)}; or: {ours}"


def _install_driver(facts: HostFacts) -> str:
    if facts.os.id == "ubuntu":
        return "install the driver: sudo ubuntu-drivers install --gpgpu; sudo reboot"
    if "debian" in (facts.os.id, *facts.os.like):
        return "install the driver: sudo apt-get install nvidia-driver; sudo reboot"
    return "install the NVIDIA driver, then: sudo reboot; nvidia-smi -L"


def without_nouveau(facts: HostFacts) -> str:
    """Commands that keep nouveau from loading."""
    debian = {"debian", "ubuntu"} & {facts.os.id, *facts.os.like}
    rebuild = "sudo update-initramfs -u" if debian else "sudo dracut --force"
    return NOUVEAU_GONE.format(rebuild=rebuild)
