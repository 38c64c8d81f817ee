"""Create transports for hosts of the inventory."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from clusterctl.inventory.model import Host
from clusterctl.transport.base import Closing, Transport
from clusterctl.transport.credentials import Credentials

if TYPE_CHECKING:
    from clusterctl.transport.dialer import Dialer

# Addresses of the machine that clusterctl runs on. 127.0.0.1 is not one: it may be a forwarded
# port, or an sshd in a test.
LOCAL_ADDRESSES = ("local", "localhost")


class Connections(Closing):
    """The transports of one run of clusterctl: one per host, created at first use.

    They share the user's answers, ~/.ssh/config, and one connection to each jump host.
    """

    def __init__(
        self,
        credentials: Credentials | None = None,
        *,
        connect_timeout: float | None = None,
    ) -> None:
        """`connect_timeout` (seconds) overrides the inventory's: `status` cannot wait long."""
        self._credentials = credentials or Credentials()
        self._connect_timeout = connect_timeout
        self._transports: dict[str, Transport] = {}
        self._dialer: Dialer | None = None
        self._lock = threading.Lock()

    def to(self, host: Host) -> Transport:
        """Return the transport to `host`, which connects at first use."""
        with self._lock:
            if host.name not in self._transports:
                self._transports[host.name] = self._make(host)
            return self._transports[host.name]

    def close(self) -> None:
        with self._lock:
            transports, self._transports = self._transports, {}
            dialer, self._dialer = self._dialer, None
        for transport in transports.values():
            transport.close()
        if dialer:
            dialer.close()

    def _make(self, host: Host) -> Transport:
        if host.address in LOCAL_ADDRESSES:
            from clusterctl.transport.local import LocalTransport

            return LocalTransport(host, self._credentials)
        # Fabric takes 0.2 s to import: only if a host needs it.
        from clusterctl.transport.dialer import Dialer
        from clusterctl.transport.ssh import SshTransport

        if self._dialer is None:
            self._dialer = Dialer(self._credentials)
        if self._connect_timeout is not None:
            ssh = host.ssh.model_copy(update={"connect_timeout": self._connect_timeout})
            host = host.model_copy(update={"ssh": ssh})
        return SshTransport(host, self._dialer)
