"""Whether a host is the one it claims to be, in Paramiko's terms."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import paramiko

from clusterctl.transport import known_hosts
from clusterctl.transport.endpoint import Endpoint
from clusterctl.transport.failures import host_key_problem
from clusterctl.transport.gathered import GatheringPacketizer
from clusterctl.transport.offered_key import OfferedKey


class VerifyHostKey(paramiko.MissingHostKeyPolicy):
    """Judges every host key. Paramiko is given no known hosts of its own, so each key is
    "missing" to it; Fabric's default would accept any."""

    def __init__(self, endpoint: Endpoint, entries: Sequence[known_hosts.Entry]) -> None:
        self._endpoint, self._entries = endpoint, entries

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        _ = client, hostname
        shown = base64.b64encode(key.asbytes()).decode()
        name, key_type = self._endpoint.known_name, key.get_name()
        verdict = known_hosts.judge(self._entries, name, key_type, shown)
        if verdict.kind == "known":
            return
        file, *_rest = self._endpoint.known_hosts_files()
        target = self._endpoint.target
        hashed = self._endpoint.option("hashknownhosts") == "yes"
        offered = OfferedKey(file, name, key_type, shown, hashed)
        if verdict.kind == "unknown" and target.ssh.accept_new:
            offered.remember()
            return
        raise host_key_problem(verdict, target, offered)


CHEAPEST_CIPHER = "aes128-gcm@openssh.com"
"""It needs no separate hash: 1.7 s of CPU per GB sent, instead of 2.8 s for AES-CTR with
HMAC-SHA2-256, which Paramiko 5.1 would ask for first. OpenSSH has had it since 6.2 (2013)."""


def preferring(types: Sequence[str]) -> Any:
    """A transport factory that asks the host for a key of a known type first, and for the
    cheapest cipher."""

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, packetizer_class=GatheringPacketizer, **options)
        security = transport.get_security_options()
        offered = tuple(security.key_types)
        known = [name for name in offered if _key_type(name) in types]
        security.key_types = [*known, *(name for name in offered if name not in known)]
        others = [name for name in security.ciphers if name != CHEAPEST_CIPHER]
        security.ciphers = [CHEAPEST_CIPHER, *others]
        return transport

    return make


def _key_type(algorithm: str) -> str:
    """RSA keys are ssh-rsa in known_hosts and sign as rsa-sha2-*."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm
