"""The store of trusted CAs on a host in memory, as steps/trusted_ca.py uses it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.steps import trusted_ca

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost

STORE = "/usr/local/share/ca-certificates"
SEARCHED = (STORE, trusted_ca.DOCKER_CERTIFICATES)


class TrustScripts:
    def __init__(self, state: FakeHost) -> None:
        self._state = state

    def scripts(self) -> dict[str, Callable[[list[str], bytes], str]]:
        return {
            trusted_ca.LOOK: self._look,
            trusted_ca.MAKE: self._make,
            trusted_ca.UPDATE: self._update,
        }

    def _make(self, paths: list[str], _: bytes) -> str:
        for path in paths:
            self._state.about_to_change()
            self._state.directories.setdefault(path, 0o755)
        return ""

    def _look(self, words: list[str], stdin: bytes) -> str:
        prefix, pending = words
        bodies = stdin.decode().splitlines()
        state = self._state
        lines = [f"store={STORE}"] if state.has_store else []
        lines += [f"trusted={'yes' if body in state.trusted else 'no'}" for body in bodies]
        for path, (data, _mode) in sorted(state.files.items()):
            directory, _, name = path.rpartition("/")
            if name.startswith(prefix) and directory.startswith(SEARCHED):
                lines.append(f"own={hashlib.sha256(data).hexdigest()} {path}")
        if pending in state.files:
            lines.append("pending=yes")
        return "".join(f"{line}\n" for line in lines)

    def _update(self, words: list[str], _: bytes) -> str:
        pending, *gone = words
        state = self._state
        state.about_to_change()
        if pending:
            state.files[pending] = (b"", 0o600)
        for path in gone:
            state.files.pop(path, None)
        if not pending:
            return ""
        state.about_to_change()
        own = (data for path, (data, _) in state.files.items() if path.startswith(STORE))
        state.trusted = {"".join(pem.decode().strip().splitlines()[1:-1]) for pem in own}
        state.files.pop(pending)
        return ""
