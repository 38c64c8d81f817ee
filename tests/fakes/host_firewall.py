"""nftables, systemd's units and timers on a host in memory, as steps/firewall.py uses them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clusterctl.errors import CommandFailed, ConnectionFailed
from clusterctl.steps import firewall

if TYPE_CHECKING:
    from tests.fakes.host import FakeHost

Script = Callable[[list[str], bytes], str]


@dataclass
class FakeTables:
    """What the kernel holds, and what is not a file."""

    loaded: dict[str, str] = field(default_factory=dict)
    timers: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Name to the table, the rules that it restores, and those that it takes back."""
    wanted: set[str] = field(default_factory=set)
    """Units that the next boot starts."""
    shut: bool = False
    """The rules keep new connections of the operator out."""

    def fire(self, name: str, files: dict[str, tuple[bytes, int]]) -> None:
        """What a timer does when its time has come."""
        table, rules, new = self.timers.pop(name)
        files.pop(new, None)
        if rules in files:
            self.loaded[table] = files[rules][0].decode()
        else:
            self.loaded.pop(table, None)


class FirewallScripts:
    def __init__(self, state: FakeHost) -> None:
        self._state = state

    def scripts(self) -> dict[str, Script]:
        return {
            firewall.LOOK: self._look,
            firewall.TRY: self._try,
            firewall.CONFIRM: self._confirm,
            firewall.UNDO: self._undo,
            firewall.LOOK_FOR_LEFT: self._left,
            firewall.REMOVE: self._remove,
        }

    def connecting(self) -> None:
        """Raise what a new connection meets while the rules keep it out."""
        if self._state.tables.shut and self._state.tables.loaded:
            raise ConnectionFailed("did not answer", host=self._state.name)

    def _digest(self, path: str) -> str:
        data = self._state.files.get(path)
        return hashlib.sha256(data[0]).hexdigest() if data else "none"

    def _look(self, words: list[str], _: bytes) -> str:
        table, rules, listing, unit = words
        state, nft = self._state, "nftables" in self._state.packages
        live, kept = state.tables.loaded.get(table), state.files.get(listing)
        same = live is not None and kept is not None and kept[0].decode() == live
        told = "none" if live is None or not nft else "same" if same else "other"
        lines = [
            f"nft {'/usr/sbin/nft' if nft else ''}",
            "systemd yes" if state.systemd else "",
            "ssh 22",
            "range 32768-60999",
            f"file {self._digest(rules)}",
            f"file {self._digest(unit)}",
            f"live {told}",
            "wanted yes" if unit in state.tables.wanted else "",
        ]
        return "\n".join(lines)

    def _try(self, words: list[str], _: bytes) -> str:
        table, rules, new, _seconds, timer = words
        self._state.about_to_change()
        self._state.tables.timers[timer] = (table, rules, new)
        self._state.about_to_change()
        self._state.tables.loaded[table] = self._state.files[new][0].decode()
        return ""

    def _confirm(self, words: list[str], _: bytes) -> str:
        table, rules, new, listing, unit, timer, digest = words
        state = self._state
        state.about_to_change()
        if new in state.files:
            state.files[rules] = state.files.pop(new)
        elif self._digest(rules) != digest:
            raise CommandFailed("confirming the rules failed: the host rolled them back")
        state.about_to_change()
        state.files[listing] = (state.tables.loaded[table].encode(), 0o644)
        state.tables.wanted.add(unit)
        state.tables.timers.pop(timer, None)
        return ""

    def _undo(self, words: list[str], _: bytes) -> str:
        timer, new = words
        self._state.tables.fire(timer, self._state.files)
        self._state.files.pop(new, None)
        return ""

    def _left(self, words: list[str], _: bytes) -> str:
        table, *paths = words
        found = [path for path in paths if path in self._state.files]
        found += [f"table {table}"] if table in self._state.tables.loaded else []
        return "".join(f"{one}\n" for one in found)

    def _remove(self, words: list[str], _: bytes) -> str:
        table, rules, listing, unit, timer = words
        state = self._state
        state.about_to_change()
        state.tables.timers.pop(timer, None)
        state.tables.wanted.discard(unit)
        for path in (unit, rules, f"{rules}.new", listing):
            state.files.pop(path, None)
        state.about_to_change()
        state.tables.loaded.pop(table, None)
        return ""
