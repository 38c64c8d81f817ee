"""NVIDIA's toolkit beside the engine of a host in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.steps import gpu_access, nvidia_driver

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost

DRIVER = "580.159.04"


@dataclass
class FakeGpus:
    """`docker` is the engine's version; 28.1 knows CDI and has it switched off."""

    docker: str = "28.1.1"
    toolkit: bool = True
    specified_for: str = ""
    """The driver that the CDI specification is for."""
    moved: bool = False
    """The CDI specification is for other GPUs than the host has."""
    configured: bool = False
    """daemon.json has what the engine needs."""
    kept: bool = False
    """What daemon.json was before."""
    offered: bool = False
    """The engine has read it."""
    linked: bool = False
    live_restore: bool = False
    driver: str = ""
    """Version of the kernel module that is loaded."""
    nouveau: bool = False
    can_build: bool = True
    computing: tuple[str, ...] = ()
    """Process IDs on the GPUs."""
    deaf: bool = False
    """The engine does not take what daemon.json says."""


class GpuScripts:
    def __init__(self, state: FakeHost) -> None:
        self._state = state

    def scripts(self) -> dict[str, Callable[[list[str], bytes], str]]:
        return {
            gpu_access.LOOK: self._look,
            gpu_access.SPECIFY: self._specify,
            gpu_access.CONFIGURE: self._configure,
            gpu_access.LINK: self._link,
            gpu_access.RESTART: self._restart,
            nvidia_driver.LOOK: self._look_at_driver,
            nvidia_driver.INSTALL: self._install_driver,
            nvidia_driver.LOAD: lambda *_: "GPU 0: NVIDIA H200",
        }

    def _look(self, words: list[str], _: bytes) -> str:
        gpus = self._state.gpus
        lines = ["ctk=/usr/bin/nvidia-ctk" if gpus.toolkit else "ctk=", f"info={self._info()}"]
        lines += [f"runs={c.name}" for c in self._state.engine.containers.values() if c.running]
        if gpus.specified_for:
            lines.append("spec=/etc/cdi/nvidia.yaml")
        if gpus.specified_for == DRIVER:
            lines.append(f"{'other' if gpus.moved else 'fresh'}=/etc/cdi/nvidia.yaml")
        if not gpus.linked:
            lines.append("lost=/dev/nvidia0")
        if words[0] in self._state.files:
            lines.append("rule=yes")
        return "".join(f"{line}\n" for line in lines)

    def _info(self) -> str:
        gpus = self._state.gpus
        if not self._state.engine.running:
            return ""
        cdi = ["/etc/cdi"] if gpus.offered and not gpus.docker.startswith("20") else None
        info: dict[str, object] = {
            "ServerVersion": gpus.docker,
            "CDISpecDirs": cdi,
            "Runtimes": {"runc": {}, **({"nvidia": {}} if gpus.offered else {})},
            "LiveRestoreEnabled": gpus.live_restore,
        }
        return json.dumps(info)

    def _specify(self, *_: object) -> str:
        self._state.about_to_change()
        self._state.gpus.specified_for, self._state.gpus.moved = DRIVER, False
        return ""

    def _configure(self, words: list[str], _: bytes) -> str:
        by_cdi = not self._state.gpus.docker.startswith("20")
        assert words[1:] == (["--cdi.enabled"] if by_cdi else [])
        self._state.about_to_change()
        self._state.gpus.configured = self._state.gpus.kept = True
        return ""

    def _link(self, *_: object) -> str:
        self._state.about_to_change()
        self._state.gpus.linked = True
        return ""

    def _restart(self, *_: object) -> str:
        self._state.about_to_change()
        gpus = self._state.gpus
        gpus.offered = gpus.configured and not gpus.deaf
        return ""

    def _look_at_driver(self, *_: object) -> str:
        gpus = self._state.gpus
        lines = [f"runs={pid}" for pid in gpus.computing]
        if gpus.driver:
            lines += [f"loaded={gpus.driver}", "works=yes", f"on_disk={gpus.driver}"]
        if gpus.nouveau:
            lines.append("nouveau=yes")
        if gpus.can_build:
            lines += ["compiler=yes", "headers=yes"]
        return "".join(f"{line}\n" for line in lines)

    def _install_driver(self, words: list[str], _: bytes) -> str:
        self._state.about_to_change()
        self._state.gpus.driver = words[0].rpartition("-")[2].removesuffix(".run")
        return ""
