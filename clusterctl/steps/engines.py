"""One container driver per host, created at first use."""

from __future__ import annotations

import threading
from collections.abc import Callable

from clusterctl.containers.driver import ContainerDriver
from clusterctl.engine.step import HostView
from clusterctl.transport.base import Transport


class Engines:
    """The drivers by host: one each, and therefore one open channel each."""

    def __init__(self, make: Callable[[Transport], ContainerDriver]) -> None:
        self._make = make
        self._made: dict[str, ContainerDriver] = {}
        self._making = threading.Lock()

    def __call__(self, view: HostView) -> ContainerDriver:
        with self._making:
            name = view.host.name
            if name not in self._made:
                self._made[name] = self._make(view.transport)
            return self._made[name]
