"""Steps that install, each with work to do on one host: apt, dnf, files, the static archive."""

from __future__ import annotations

import io
import tarfile
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from clusterctl.engine.step import HostView
from clusterctl.facts.model import Os
from clusterctl.inventory.model import Gpu, Packages, PackageSource
from clusterctl.packages.bundle import Bundle, open_bundles
from clusterctl.packages.target import TOOLKIT
from clusterctl.steps.container_engine import ContainerEngine
from clusterctl.steps.files import ENGINE_PACKAGES
from clusterctl.steps.gpu_access import GpuAccess
from clusterctl.steps.host_python import MARKER as PYTHON_MARKER
from clusterctl.steps.host_python import HostPython, PackagesAbsent
from clusterctl.steps.nvidia_driver import DriverFile, NvidiaDriver
from clusterctl.steps.nvidia_toolkit import MARKER as TOOLKIT_MARKER
from clusterctl.steps.nvidia_toolkit import NvidiaToolkit, ToolkitAbsent
from tests.fakes.host_facts import gpus
from tests.unit.steps.stage import Case, Cluster, facts

ROCKY = Os("rocky", ("rhel", "centos", "fedora"), "9.5", "", "Rocky Linux 9.5", "x86_64", "5.14")
DEBS = ("docker.io_20.10.24_amd64.deb", "runc_1.1.5_amd64.deb",
        *(f"{name}_1.19.1-1_amd64.deb" for name in TOOLKIT))  # fmt: skip
PYTHON = ("python3_3.11.2-1_amd64.deb", "libpython3-stdlib_3.11.2-1_amd64.deb", *DEBS)
RPMS = ("docker-ce-29.1.3-1.el9.x86_64.rpm", "containerd.io-2.2.0-1.el9.x86_64.rpm",
        "docker-ce-cli-29.1.3-1.el9.x86_64.rpm")  # fmt: skip

KEY = """\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawG+UhYJKwYBBAHaRw8BAQdAKJ0GLk6cdHvzH0ilGxo/TP+cxv/uSzBzcuZX
Hc8pqsG0JGNsdXN0ZXJjdGwgdGVzdHMgPHRlc3RzQGV4YW1wbGUub3JnPoiQBBMW
CAA4FiEEJSaJ0eEt84Gwg/VHnjL7qxv3+98FAmsBvlICGwMFCwkIBwIGFQoJCAsC
BBYCAwECHgECF4AACgkQnjL7qxv3+98roQD/bLCEsa8gZms3yjr7UDUs8oLFHM+G
piett2RPQUHVHpsBANqrnsGfWJRc4AzDovQgMSE/jUkdyPJk9vNtDCNNN/wO
=ZmPr
-----END PGP PUBLIC KEY BLOCK-----
"""
"""Made for these tests; nothing is signed with it."""


@cache
def directory() -> Path:
    """For files that cases bring along; they are read, and never written to."""
    return Path(tempfile.mkdtemp(prefix="clusterctl-tests-"))


@cache
def bundle(*names: str) -> tuple[Bundle, ...]:
    path = directory() / f"bundle-{len(names)}-{names[0]}"
    path.mkdir()
    for name in names:
        (path / name).write_bytes(static_archive() if name.endswith(".tgz") else name.encode())
    return open_bundles(path)


def static_archive() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name in ("docker/", "docker/docker", "docker/dockerd", "docker/runc"):
            tar.addfile(tarfile.TarInfo(name))
    return data.getvalue()


@cache
def own_key() -> PackageSource:
    path = directory() / "key.asc"
    path.write_text(KEY)
    return PackageSource(key=path)


def with_gpus(view: HostView) -> HostView:
    """A host that has what it promises: one GPU."""
    host = view.host.model_copy(update={"gpus": (Gpu(),)})
    return replace(view, host=host, facts=replace(view.facts, gpus=gpus(1)))


def bare(made: Cluster) -> None:
    made.head.packages.clear()
    made.head.engine.running = False


def bare_rocky(made: Cluster) -> None:
    bare(made)
    made.head_view = replace(made.head_view, facts=replace(facts(), os=ROCKY))


def without_python(made: Cluster) -> None:
    lacking = replace(made.head_view.facts, python3=None, python3_version="3.11")
    made.head_view = replace(made.head_view, facts=replace(lacking, python3_minimal=True))


def _rocky_8_without_python(made: Cluster) -> None:
    without_python(made)
    rocky = replace(ROCKY, version="8.10")
    made.head_view = replace(made.head_view, facts=replace(made.head_view.facts, os=rocky))


def python_is_ours(made: Cluster) -> None:
    made.head.packages |= {"python3"}
    made.head.files[PYTHON_MARKER] = (b"python3\n", 0o644)


def _units(made: Cluster) -> None:
    bare(made)
    made.head.directories |= {"/etc/systemd/system": 0o755}


def gpu_host(made: Cluster) -> None:
    made.head_view = with_gpus(made.head_view)
    made.head.gpus.toolkit = False


def _gpu_host_ready(made: Cluster) -> None:
    made.head_view = with_gpus(made.head_view)


def _old_engine(made: Cluster) -> None:
    _gpu_host_ready(made)
    made.head.gpus.docker = "20.10.24"


def _stale(made: Cluster) -> None:
    _gpu_host_ready(made)
    made.head.gpus.configured = made.head.gpus.offered = True
    made.head.gpus.specified_for = "570.1"


def _gpu_rocky(made: Cluster) -> None:
    gpu_host(made)
    changed = replace(made.head_view.facts, os=ROCKY)
    made.head_view = replace(made.head_view, facts=changed)


def _toolkit_is_ours(made: Cluster) -> None:
    made.head.packages |= set(TOOLKIT)
    made.head.files[TOOLKIT_MARKER] = ("\n".join(TOOLKIT).encode(), 0o644)
    made.head.files[ENGINE_PACKAGES] = (b"docker.io\n", 0o644)


def gpus_on_the_bus(made: Cluster) -> None:
    report = replace(made.head_view.facts.gpus, pci_devices=1)
    made.head_view = replace(made.head_view, facts=replace(made.head_view.facts, gpus=report))


@cache
def driver_file() -> Path:
    path = directory() / "NVIDIA-Linux-x86_64-580.95.05.run"
    path.write_bytes(b"#!/bin/sh")
    return path


def _engine(packages: Packages | None = None, *names: str) -> ContainerEngine:
    brought = bundle(*names) if names else ()
    return ContainerEngine(packages, brought, pause=lambda _: None)


def _toolkit(packages: Packages | None = None, *names: str) -> NvidiaToolkit:
    brought = bundle(*names) if names else ()
    return NvidiaToolkit(packages, brought, pause=lambda _: None)


def _access(_: Cluster) -> GpuAccess:
    return GpuAccess(pause=lambda _: None)


INSTALL_CASES = (
    Case("Python by apt", without_python, lambda _: HostPython()),
    Case("Python by dnf", _rocky_8_without_python, lambda _: HostPython()),
    Case("Python from brought .deb files", without_python, lambda _: HostPython(bundle(*PYTHON))),
    Case(
        "Python gone",
        python_is_ours,
        lambda _: PackagesAbsent("Python", PYTHON_MARKER, "/etc/clusterctl/demo"),
    ),
    Case("engine by dnf", bare_rocky, lambda _: _engine(Packages(docker=own_key()))),
    Case("engine from Docker, by apt", bare, lambda _: _engine(Packages(docker=own_key()))),
    Case("engine from brought .deb files", bare, lambda _: _engine(None, *DEBS)),
    Case("engine from brought .rpm files", bare_rocky, lambda _: _engine(None, *RPMS)),
    Case("engine from the static archive", _units, lambda _: _engine(None, "docker-29.1.3.tgz")),
    Case("toolkit by apt", gpu_host, lambda _: _toolkit(Packages(nvidia=own_key()))),
    Case("toolkit by dnf", _gpu_rocky, lambda _: _toolkit(Packages(nvidia=own_key()))),
    Case("toolkit from brought files", gpu_host, lambda _: _toolkit(None, *DEBS)),
    Case("toolkit gone", _toolkit_is_ours, lambda _: ToolkitAbsent("/etc/clusterctl/demo")),
    Case("driver", gpus_on_the_bus, lambda _: NvidiaDriver(DriverFile(driver_file()))),
    Case("GPUs by CDI, switched off", _gpu_host_ready, _access),
    Case("GPUs by NVIDIA's runtime", _old_engine, _access),
    Case("CDI specification for another driver", _stale, _access),
)
