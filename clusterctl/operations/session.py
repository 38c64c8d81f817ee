"""What a command works with."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from clusterctl.engine.events import EventSink
from clusterctl.inventory.model import Host, Inventory
from clusterctl.survey.survey import connected
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials


@dataclass(frozen=True)
class Session:
    """A run of clusterctl on a cluster."""

    inventory: Inventory
    hosts: tuple[Host, ...]  # The hosts selected by --limit; without it, all
    progress: EventSink
    credentials: Credentials

    def connected(
        self, hosts: Iterable[Host] | None = None, *, connect_timeout: float | None = None
    ) -> AbstractContextManager[dict[str, Transport]]:
        """Yield a transport for each of `hosts`, as `survey.connected` does; default: to all hosts
        of the inventory."""
        chosen = self.inventory.hosts if hosts is None else hosts
        return connected(chosen, self.credentials, connect_timeout=connect_timeout)
