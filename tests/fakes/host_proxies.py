"""Docker's proxy on a host in memory, as steps/host_proxy.py sets it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.steps import host_proxy
from clusterctl.steps.package_manager import PROXIES

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost


class ProxyScripts:
    def __init__(self, state: FakeHost) -> None:
        self._state = state

    def scripts(self) -> dict[str, Callable[[list[str], bytes], str]]:
        return {
            host_proxy.LOOK_AT_FILES: self._look_at_files,
            host_proxy.LOOK: self._look,
            host_proxy.RESTART: self._restart,
            host_proxy.REMOVE: self._remove,
        }

    def _look_at_files(self, paths: list[str], _: bytes) -> str:
        files = self._state.files
        return "".join(
            f"file={hashlib.sha256(files[path][0]).hexdigest() if path in files else 'none'}\n"
            for path in paths
        )

    def _look(self, paths: list[str], _: bytes) -> str:
        engine, lines = self._state.engine, self._look_at_files(paths, b"").splitlines()
        if self._state.systemd:
            lines.append("systemd=yes")
        told = {"ServerVersion": "20.10.24", **self._state.engine_proxy}
        lines.append(f"info={json.dumps(told) if engine.running else ''}")
        lines += [f"runs={one.name}" for one in engine.containers.values() if one.running]
        return "".join(f"{line}\n" for line in lines)

    def _restart(self, *_: object) -> str:
        self._state.about_to_change()
        own = (data for path, (data, _) in self._state.files.items() if path.startswith(PROXIES))
        lines = [line for data in own for line in data.decode().splitlines()]
        said = {"http_proxy": "HttpProxy", "https_proxy": "HttpsProxy", "no_proxy": "NoProxy"}
        pairs = [line.partition("=")[::2] for line in lines]
        self._state.engine_proxy = {said[name]: value.strip("'") for name, value in pairs}
        return ""

    def _remove(self, paths: list[str], _: bytes) -> str:
        for path in paths:
            self._state.about_to_change()
            self._state.files.pop(path, None)
        return ""
