"""keepalived on a host in memory, as steps/virtual_address.py sets it up."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.steps import virtual_address
from clusterctl.steps.virtual_address import KEEPALIVED

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost


class KeepalivedScripts:
    def __init__(self, state: FakeHost) -> None:
        self._state = state

    def scripts(self) -> dict[str, Callable[[list[str], bytes], str]]:
        return {
            virtual_address.LOOK: self._look,
            virtual_address.START: self._start,
            virtual_address.REMOVE: self._remove,
        }

    def _look(self, words: list[str], _: bytes) -> str:
        state, (unit, config, address, _nic) = self._state, words
        lines = ["systemd yes"] if state.systemd else []
        if KEEPALIVED in state.packages:
            lines.append("keepalived yes")
        active = state.shared_by.get(unit) is not None
        if active:
            lines.append("active yes")
        for path in (unit, config):
            data = state.files.get(path)
            lines.append(f"file {hashlib.sha256(data[0]).hexdigest() if data else 'none'}")
        if address in state.neighbours and not active:
            lines.append(f"taken {state.neighbours[address]}")
        return "".join(f"{line}\n" for line in lines)

    def _start(self, words: list[str], _: bytes) -> str:
        state, (unit, config) = self._state, words
        state.about_to_change()
        state.files[config] = state.files.pop(f"{config}.new")
        state.shared_by[unit] = state.files[config][0]
        return ""

    def _remove(self, words: list[str], _: bytes) -> str:
        state, (unit, config) = self._state, words
        for path in (unit, config, f"{config}.new"):
            state.about_to_change()
            state.files.pop(path, None)
        state.shared_by.pop(unit, None)
        return ""
