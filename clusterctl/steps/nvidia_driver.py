"""Step that installs NVIDIA's driver, only on request: from NVIDIA's .run file or from a package.

A package never replaces a working driver; a .run file does so only if its version differs, which
the plan shows for confirmation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from clusterctl import deadlines
from clusterctl.engine.step import Change, HostView
from clusterctl.errors import CommandFailed, RequirementsNotMet, StepFailed, UsageError
from clusterctl.facts.gpu_causes import without_nouveau
from clusterctl.steps.files import LOOK_AT_FILES, RemoteFile, make_private, root_script
from clusterctl.steps.package_manager import own_manager, target
from clusterctl.steps.package_sources import CACHE

_FILE_VERSION = re.compile(r"-(\d+\.\d+(?:\.\d+)?)[^/]*\.run$")

LOOK = """\
read -r loaded 2>/dev/null </sys/module/nvidia/version && echo "loaded=$loaded"
timeout 30 nvidia-smi -L >/dev/null 2>&1 && echo "works=yes"
on_disk=$(modinfo -F version nvidia 2>/dev/null) && echo "on_disk=$on_disk"
[ -d /sys/module/nouveau ] && echo "nouveau=yes"
command -v cc >/dev/null && command -v make >/dev/null && echo "compiler=yes"
[ -e "/lib/modules/$(uname -r)/build" ] && echo "headers=yes"
for pid in $(timeout 30 nvidia-smi --query-compute-apps=pid --format=csv,noheader 2>/dev/null); do
  case $pid in *[!0-9]*) ;; *) echo "runs=$pid" ;; esac
done
exit 0
"""

INSTALL = """\
file=$1
dkms=
command -v dkms >/dev/null && dkms=--dkms
log=/var/log/nvidia-installer.log
tools=$(mktemp -d) || exit 1
trap 'rm -rf "$tools"' EXIT
# The archive checks itself with dd, and uutils' reads it otherwise than GNU's (makeself #357).
uutils=
case $(dd --version 2>&1) in
  *uutils*) uutils=yes
    gnu=$(command -v gnudd) && ln -s "$gnu" "$tools/dd" && uutils= && PATH=$tools:$PATH ;;
esac
touch "$tools/began"
sh "$file" --silent $dkms && exit 0
if [ "$log" -nt "$tools/began" ]; then tail -n 15 "$log" >&2; fi
[ -z "$uutils" ] || echo "dd here is uutils', which breaks the check of NVIDIA's archive" >&2
exit 1
"""

GNU_DD = "sudo apt-get install gnu-coreutils (GNU's dd as gnudd), then run bootstrap again"

LOAD = "modprobe nvidia && modprobe nvidia-uvm; timeout 30 nvidia-smi -L"


@dataclass(frozen=True)
class DriverFound:
    """The parsed output of `LOOK`."""

    loaded: str  # Version of the loaded kernel module; empty without one
    on_disk: str
    works: bool
    nouveau: bool
    can_build: bool
    running: tuple[str, ...]  # Process IDs on the GPUs


class DriverSource(Protocol):
    def change(self, view: HostView, found: DriverFound) -> Change | None:
        """Return the change, if any. Raises RequirementsNotMet if the host must be
        prepared first."""

    def install(self, view: HostView) -> None:
        """Install the driver. Raises StepFailed."""


class NvidiaDriver:
    """Step: the driver is installed and works, on hosts with NVIDIA GPUs."""

    title = "NVIDIA driver"

    def __init__(self, source: DriverSource) -> None:
        self._source = source

    def check(self, view: HostView) -> Change | None:
        if not (view.facts.gpus.pci_devices or view.facts.gpus.gpus):
            return None
        return self._source.change(view, _look(view))

    def apply(self, view: HostView, _change: Change) -> None:
        if self._source.change(view, _look(view)) is None:
            return
        self._source.install(view)
        loaded = view.transport.run(["sh", "-c", LOAD], sudo=True, timeout=deadlines.GPUS_SET_UP)
        if not loaded.ok:
            raise StepFailed(
                "the driver is installed, but runs only after a reboot of the host",
                host=view.host.name,
                hint=f"clusterctl exec --limit {view.host.name} --sudo -- reboot; then run "
                "bootstrap again",
                detail=loaded.last_lines(),
            )


class DriverFile:
    """NVIDIA-Linux-ARCH-VERSION.run on the operator's machine, copied to each host."""

    def __init__(self, path: Path) -> None:
        """Raise UsageError if there is no such file, or its name has no version."""
        match = _FILE_VERSION.search(path.name)
        if not path.is_file() or match is None:
            raise UsageError(
                f"--install-driver {path}: not an NVIDIA driver file, such as "
                "NVIDIA-Linux-x86_64-580.95.05.run",
                hint="download it from NVIDIA's driver page; or name a package",
            )
        self._path = path
        self._version = match[1]

    def change(self, view: HostView, found: DriverFound) -> Change | None:
        if found.loaded == self._version and found.works:
            return None
        _require_ready(view, found, self._version)
        over = f", in place of {found.loaded}" if found.loaded else ""
        ends = f"; ends processes {', '.join(found.running)} on its GPUs" if found.running else ""
        return Change(
            f"install driver {self._version} from {self._path.name}{over}{ends}",
            before=found.loaded or "no driver",
            after=self._version,
            disruptive=bool(found.loaded),
        )

    def install(self, view: HostView) -> None:
        make_private(view, CACHE)
        file = RemoteFile(f"{CACHE}/{self._path.name}", self._path.read_bytes())
        seal = root_script(
            view, LOOK_AT_FILES, file.path,
            doing="comparing the driver", timeout=deadlines.GPUS_SET_UP,
        )  # fmt: skip
        if seal.strip() != file.seal:
            view.say(f"copying {self._path.name}, {len(file.data) / 2**20:.0f} MiB")
            view.transport.put(file.data, file.path, sudo=True)
        view.say(f"installing driver {self._version}: the host compiles its module")
        try:
            root_script(
                view, INSTALL, file.path,
                doing="installing the driver", timeout=deadlines.DRIVER_BUILD,
            )  # fmt: skip
        except CommandFailed as error:
            said = f"{error.summary} {error.detail}"
            if "dd here is uutils'" in said:
                error.hint = GNU_DD
            elif "MD5 checksums" in said:
                error.hint = (
                    "run dd --version on it. If it is GNU's, the file is damaged: download it "
                    f"again. If it is uutils': {GNU_DD}"
                )
            raise


class DriverPackage:
    """A package from the host's own sources, such as nvidia-driver-580-server."""

    def __init__(self, name: str) -> None:
        self._name = name

    def change(self, view: HostView, found: DriverFound) -> Change | None:
        if found.works:
            return None
        if found.nouveau:
            raise _nouveau(view)
        return Change(f"install {self._name}", before="no working driver", after=self._name)

    def install(self, view: HostView) -> None:
        manager = own_manager(view)
        manager.prepare()
        view.say(f"installing {self._name}")
        manager.install([self._name])


def driver_source(wanted: str) -> DriverSource:
    """Return the source: a file if `wanted` is a path, else a package. Raises UsageError."""
    if wanted.endswith(".run") or "/" in wanted:
        return DriverFile(Path(wanted).expanduser())
    if not re.fullmatch(r"[a-z0-9][a-z0-9+.:_-]*", wanted):
        raise UsageError(f"--install-driver {wanted}: neither a .run file nor a package name")
    return DriverPackage(wanted)


def _look(view: HostView) -> DriverFound:
    text = root_script(view, LOOK, doing="looking at the driver", timeout=deadlines.GPUS_SET_UP)
    lines = [line.partition("=")[::2] for line in text.splitlines()]
    fields = dict(lines)
    return DriverFound(
        loaded=fields.get("loaded", ""),
        on_disk=fields.get("on_disk", ""),
        works="works" in fields,
        nouveau="nouveau" in fields,
        can_build="compiler" in fields and "headers" in fields,
        running=tuple(value for name, value in lines if name == "runs"),
    )


def _require_ready(view: HostView, found: DriverFound, wanted: str) -> None:
    """Raise RequirementsNotMet if the .run file would fail on the host."""
    if found.nouveau:
        raise _nouveau(view)
    if found.on_disk == wanted != found.loaded:
        raise RequirementsNotMet(
            f"driver {wanted} is installed and {found.loaded or 'none'} is loaded",
            host=view.host.name,
            hint="sudo reboot",
        )
    if not found.can_build:
        by_apt = target(view).family == "apt"
        raise RequirementsNotMet(
            "the driver's kernel module is compiled on it, but the compiler or the kernel's "
            "headers are missing",
            host=view.host.name,
            hint="sudo apt-get install gcc make linux-headers-$(uname -r)"
            if by_apt
            else "sudo dnf install gcc make kernel-devel-$(uname -r) kernel-headers",
        )


def _nouveau(view: HostView) -> RequirementsNotMet:
    return RequirementsNotMet(
        "the kernel's nouveau driver holds the GPUs, and NVIDIA's cannot be installed alongside it",
        host=view.host.name,
        hint=without_nouveau(view.facts),
    )
