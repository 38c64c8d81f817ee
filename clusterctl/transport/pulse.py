"""Detect a dead peer on a connection that is silent."""

from __future__ import annotations

import threading

import paramiko

from clusterctl import deadlines

INTERVAL = 10.0


class Pulse:
    """Requests a reply every INTERVAL seconds, and closes a connection that does not reply.

    Paramiko's own keepalive requests no reply: with it, a vanished host is noticed only after the
    kernel's retransmissions, 15 minutes later. Closing wakes every reader of the connection.
    """

    def __init__(
        self,
        transport: paramiko.Transport,
        *,
        interval: float = INTERVAL,
        answer_limit: float = deadlines.PULSE,
    ) -> None:
        self._transport = transport
        self._interval, self._answer_limit = interval, answer_limit
        self._stopped = threading.Event()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval) and self._transport.is_active():
            given_up = threading.Timer(self._answer_limit, self._transport.close)
            given_up.daemon = True
            given_up.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, EOFError, OSError):
                return
            finally:
                given_up.cancel()
