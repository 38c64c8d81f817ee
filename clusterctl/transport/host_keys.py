"""Whether a host is the one it claims to be, in Paramiko's terms."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import paramiko

from clusterctl.transport import known_hosts
from clusterctl.transport.endpoint import Endpoint
from clusterctl.transport.failures import host_key_problem


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
        if verdict.kind == "unknown" and target.ssh.accept_new:
            hashed = self._endpoint.option("hashknownhosts") == "yes"
            known_hosts.append(file, name, key_type, shown, hashed=hashed)
            return
        raise host_key_problem(
            verdict, target, name=name, key_type=key_type, key=shown, file=str(file)
        )


def preferring(types: Sequence[str]) -> Any:
    """A transport factory that asks the host for a key of a known type first."""

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        transport = paramiko.Transport(sock, **options)
        security = transport.get_security_options()
        offered = tuple(security.key_types)
        known = [name for name in offered if _key_type(name) in types]
        security.key_types = [*known, *(name for name in offered if name not in known)]
        return transport

    return make


def _key_type(algorithm: str) -> str:
    """RSA keys are ssh-rsa in known_hosts and sign as rsa-sha2-*."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm
