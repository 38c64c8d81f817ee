"""Why none of a host's NVIDIA GPUs can be used: the first cause for which the kernel, the PCI bus
or nvidia-smi show evidence. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from clusterctl.facts.gpu_faults import meaning, serious_xids
from clusterctl.facts.gpu_probe import NOT_FOUND
from clusterctl.facts.model import GpuReport, HostFacts


@dataclass(frozen=True)
class GpuCause:
    """`what` follows "none can be used: "; `evidence`: lines that show it, if `what` does not."""

    what: str
    fix: str
    evidence: str | None = None


def why_no_gpu(facts: HostFacts, file: str) -> GpuCause:
    """Return the cause. `file`: path of the inventory, for commands in fixes."""
    found = next(_by_kernel(facts), None) or _by_nvidia_smi(facts, file)
    if found.evidence is None and found.what != facts.gpus.error:
        return GpuCause(found.what, found.fix, facts.gpus.error)
    return found


@dataclass(frozen=True)
class _InLog:
    """A cause that a line matching `pattern` in the kernel's log points to."""

    pattern: str
    what: str
    fix: str

    def of(self, report: GpuReport) -> Iterator[GpuCause]:
        if line := _line(report, self.pattern):
            yield GpuCause(self.what, self.fix, line)


_UPGRADED = _InLog(
    r"API mismatch", "the driver was upgraded under the running kernel module", "sudo reboot"
)
_NOT_DRIVEN = (
    _InLog(
        r"is not supported by the \d",
        "the loaded driver does not support its GPU",
        "install a driver branch that does, for a new GPU a newer one; vLLM's images need driver "
        "525 or later",
    ),
    _InLog(
        r"supported through the NVIDIA .* Legacy drivers",
        "its GPU needs an older branch of NVIDIA's driver than the loaded one",
        "install the branch that the line names; vLLM's images need driver 525 or later",
    ),
    _InLog(
        r"necessary power cables",
        "a GPU has no power",
        "power the host off and connect the GPU's power cables",
    ),
    _InLog(
        r"obtained ownership of the NVIDIA device|probe routine was not called",
        "another driver holds them, or did when NVIDIA's was loaded",
        "see which: lspci -k -d 10de:; keep it from loading (/etc/modprobe.d); sudo reboot",
    ),
    _InLog(
        r"BAR\d is 0M|can't assign|I/O region .* is invalid",
        "the firmware gave the GPU no address space for its memory",
        'enable "Above 4G Decoding" in the firmware\'s setup, or boot with pci=realloc',
    ),
    _InLog(
        r"RmInitAdapter failed|rm_init_adapter failed",
        "the driver cannot initialize the GPU",
        "sudo reboot; if that does not help, power the host off and on; then try another driver "
        "branch, or check the GPU's seat and power",
    ),
)


def _by_kernel(facts: HostFacts) -> Iterator[GpuCause]:
    report = facts.gpus
    if report.nouveau:
        yield GpuCause("the kernel's nouveau driver holds them", without_nouveau(facts))
    if report.passed_through:
        yield GpuCause(
            f"vfio-pci holds {', '.join(report.passed_through)} for virtual machines",
            "find out what binds them to it: grep -r vfio /etc/modprobe.d /proc/cmdline; remove "
            "that, rebuild the initramfs and reboot; or remove the host from the inventory",
        )
    if report.error == NOT_FOUND:
        return

    if not report.module:
        yield from _not_loaded_by_kernel(facts)
    yield from _UPGRADED.of(report)
    if line := _line(report, r"requires use of the NVIDIA open kernel modules"):
        yield GpuCause(
            "its GPU needs NVIDIA's open kernel modules, but the proprietary ones are loaded",
            _packages(facts, "-open"),
            line,
        )
    if line := _line(report, r"is not supported by open( nvidia|$)"):
        yield GpuCause(
            "its GPU is too old for NVIDIA's open kernel modules, which are loaded",
            _packages(facts, ""),
            line,
        )
    if xids := serious_xids(report):
        words = ", ".join(f"Xid {xid.code} of {xid.bus} ({meaning(xid)})" for xid in xids)
        state = "nvidia-smi did not answer in time" if report.silent else report.error
        yield GpuCause(
            f"{state}, and the kernel's log has {words}",
            "sudo reboot; if it comes back, power the host off and on, then have the GPU checked",
            "\n".join(f"Xid {xid.code} ({xid.bus}): {xid.text}" for xid in xids),
        )
    if report.silent:
        yield _slow_or_hung(report)
    for cause in _NOT_DRIVEN:
        yield from cause.of(report)


def _not_loaded_by_kernel(facts: HostFacts) -> Iterator[GpuCause]:
    report, kernel = facts.gpus, facts.os.kernel
    if line := _line(report, r"is rejected|Key was rejected|module loading is restricted"):
        yield GpuCause(
            "the kernel refuses the driver's module, whose signature it does not trust",
            _enrol(facts),
            line,
        )
    if report.module_kernels and kernel not in report.module_kernels:
        yield GpuCause(
            f"the driver has no module for the running kernel {kernel}, only for "
            f"{', '.join(report.module_kernels)}",
            f"sudo {_headers(facts)}; sudo dkms autoinstall (or install the driver's package for "
            "this kernel); sudo modprobe nvidia",
        )


def _slow_or_hung(report: GpuReport) -> GpuCause:
    gpus = max(report.pci_devices, 1)
    # The log is empty for a user who may not read it.
    seen = "no Xid" if report.log else "nothing of the driver, or may not be read"
    return GpuCause(
        f"nvidia-smi did not answer in time, and the kernel's log has {seen}: it is slow without "
        f"persistence mode ({gpus} GPU{'s' if gpus > 1 else ''} to initialize), or hangs",
        "to find out: time sudo nvidia-smi -L. If it ends: sudo systemctl enable --now "
        "nvidia-persistenced (or: sudo nvidia-smi -pm 1). If not: sudo reboot",
    )


def _line(report: GpuReport, pattern: str) -> str:
    """Return the last line of the kernel's log that matches `pattern`, or ""."""
    return next((line for line in reversed(report.log) if re.search(pattern, line)), "")


# Part of nvidia-smi's message, in lower case, and the fix
_COMPLAINTS = (
    ("version mismatch", "the driver was upgraded under the running kernel module: sudo reboot"),
    (
        "unknown error",
        "NVML may not open /dev/nvidia*: sudo systemctl restart nvidia-persistenced; if that does "
        "not help: sudo reboot (a host that is a container itself must be created again)",
    ),
    ("insufficient permissions", "run as root: set ssh.user: root, or give the user sudo"),
    (
        "no devices were found",
        "the driver is loaded but drives no GPU; to see why: sudo dmesg | grep -i nvrm; then "
        "sudo reboot",
    ),
)


def _by_nvidia_smi(facts: HostFacts, file: str) -> GpuCause:
    report = facts.gpus
    error = report.error or ""
    if fix := next((fix for words, fix in _COMPLAINTS if words in error.lower()), None):
        return GpuCause(error, fix)
    if error == NOT_FOUND:
        return GpuCause(error, _install(facts, file))
    if report.module:
        return GpuCause(error, "see what the driver says: sudo dmesg | grep -i nvrm")
    return _not_loaded(facts)


def _not_loaded(facts: HostFacts) -> GpuCause:
    """Return the cause and fix if nothing shows why the module is not loaded."""
    refused = "" if facts.gpus.secure_boot is not False else " (but Secure Boot is off)"
    on = (
        "Secure Boot is on"
        if facts.gpus.secure_boot
        else "mokutil --sb-state shows whether it is on"
    )
    return GpuCause(
        "the driver's kernel module is not loaded",
        "sudo modprobe nvidia shows why. 'Key was rejected': Secure Boot does not trust its "
        f"signature{refused}; {on}; {_enrol(facts)}. 'not found': no module for this kernel; "
        f"sudo {_headers(facts)}; sudo dmesg | tail shows any other reason",
    )


def _enrol(facts: HostFacts) -> str:
    """Commands that make Secure Boot trust the key that the module was signed with."""
    key = "/var/lib/shim-signed/mok/MOK.der" if facts.os.id == "ubuntu" else "/var/lib/dkms/mok.pub"
    return (
        f"enrol its key: sudo mokutil --import {key} (it is there if DKMS signed the module); sudo "
        "reboot, and choose Enroll MOK on the console; or disable Secure Boot in the firmware"
    )


def _headers(facts: HostFacts) -> str:
    kernel = facts.os.kernel
    if facts.os.debian_like:
        return f"apt-get install linux-headers-{kernel}"
    return f"dnf install kernel-devel-{kernel}"


def _packages(facts: HostFacts, flavour: str) -> str:
    """Return how to install the other kernel modules: `-open`, or "" for the proprietary ones."""
    branch = facts.gpus.module.partition(".")[0] or "BRANCH"
    kind = "open" if flavour else "proprietary"
    if facts.os.id == "ubuntu":
        return f"sudo apt-get install nvidia-driver-{branch}{flavour}; sudo reboot"
    if facts.os.debian_like:
        package = "nvidia-open" if flavour else "cuda-drivers"
        return f"sudo apt-get install {package} (NVIDIA's repository); sudo reboot"
    return (
        f"sudo dnf install nvidia-open-dkms (open) or kmod-nvidia-latest-dkms (proprietary): here "
        f"the {kind} one, in place of the other; sudo reboot. By .run file: -M {kind}"
    )


def _install(facts: HostFacts, file: str) -> str:
    if facts.gpus.pci_devices == 0:
        return "no NVIDIA GPU is on its PCI bus: lspci -d 10de:; set gpus: 0 in the inventory"
    install = "install the NVIDIA driver, then: sudo reboot; nvidia-smi -L"
    if facts.os.id == "ubuntu":
        install = "install the driver: sudo ubuntu-drivers install --gpgpu; sudo reboot"
    elif "debian" in (facts.os.id, *facts.os.like):
        install = "install the driver: sudo apt-get install nvidia-driver; sudo reboot"
    return f"{install}; or: clusterctl bootstrap {file} --install-driver FILE.run"


_NOUVEAU_GONE = (
    "printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' | "
    "sudo tee /etc/modprobe.d/blacklist-nouveau.conf; {rebuild}; sudo reboot"
)


def without_nouveau(facts: HostFacts) -> str:
    """Commands that keep nouveau from loading."""
    rebuild = "sudo update-initramfs -u" if facts.os.debian_like else "sudo dracut --force"
    return _NOUVEAU_GONE.format(rebuild=rebuild)
