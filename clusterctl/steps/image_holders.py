"""Which hosts have the image already, and may give it to others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.engine.step import HostView
from clusterctl.errors import StepFailed

RECEIVERS = 2
"""Hosts that one host serves at a time. Each takes a channel of its connection, of which there
are four; and more would only share its uplink."""

PATIENCE = 4 * 3600.0
"""Seconds to wait for a turn: the transfers waited for have limits of their own."""


class ImageHolders:
    """Hosts lend themselves as sources; one that got the image is a source from then on, so that
    the number of sources doubles with each round."""

    def __init__(self, first: HostView, *, receivers: int = RECEIVERS) -> None:
        self._free: dict[str, int] = {first.host.name: receivers}
        self._views: dict[str, HostView] = {first.host.name: first}
        self._receivers = receivers
        self._changed = threading.Condition()

    @contextmanager
    def lend(self, to: HostView, *, patience: float = PATIENCE) -> Iterator[HostView]:
        """A host that has the image and is not busy; waits for one."""
        with self._changed:
            if not self._idle():
                to.say(f"waiting for a turn: {', '.join(self._views)} are sending")
            if not self._changed.wait_for(self._idle, patience):
                raise StepFailed("no host came free to send the image", host=to.host.name)
            name = self._idle()[0]
            self._free[name] -= 1
        try:
            yield self._views[name]
        finally:
            with self._changed:
                self._free[name] += 1
                self._changed.notify_all()

    def add(self, view: HostView) -> None:
        """`view` has the image now."""
        with self._changed:
            self._views[view.host.name] = view
            self._free.setdefault(view.host.name, self._receivers)
            self._changed.notify_all()

    def _idle(self) -> list[str]:
        """Least busy first."""
        free = [name for name, slots in self._free.items() if slots > 0]
        return sorted(free, key=lambda name: -self._free[name])
