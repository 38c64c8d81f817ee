"""An SSH target after ~/.ssh/config is applied, and the check of its host key, in terms of Fabric
and Paramiko."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fabric
import paramiko

from clusterctl.errors import HostKeyProblem
from clusterctl.transport import known_hosts
from clusterctl.transport.known_hosts import OfferedKey, UnknownHostKey, Verdict, fingerprint
from clusterctl.transport.ordered import GatheringPacketizer
from clusterctl.transport.target import SshTarget

GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


class SshEndpoint:
    """A target with values of ~/.ssh/config for fields that the inventory leaves unset.
    `connection` is not open yet."""

    def __init__(self, target: SshTarget, connection: fabric.Connection) -> None:
        self.target = target
        self.connection = connection

    @property
    def address(self) -> tuple[str, int]:
        return self.connection.host, self.connection.port

    @property
    def place(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def known_name(self) -> str:
        alias = self.option("hostkeyalias")
        return alias.lower() if alias else known_hosts.host_name(*self.address)

    def option(self, name: str) -> str | None:
        value = self.connection.ssh_config.get(name)
        return value if isinstance(value, str) else None

    def jump(self) -> str | None:
        jump = self.target.ssh.proxy_jump or self.option("proxyjump")
        return None if jump is None or jump.lower() == "none" else jump

    def identities(self) -> list[Path]:
        if self.target.ssh.identity_file:
            return [self.target.ssh.identity_file]
        return [Path(file) for file in self.connection.ssh_config.get("identityfile", [])]

    def known_hosts_files(self) -> list[Path]:
        """The known_hosts files; a new key is added to the first one."""
        if self.target.ssh.known_hosts:
            return [self.target.ssh.known_hosts.expanduser()]
        users = (self.option("userknownhostsfile") or "~/.ssh/known_hosts").split()
        return [Path(file).expanduser() for file in users] + [GLOBAL_KNOWN_HOSTS]

    def known_hosts(self) -> list[known_hosts.Entry]:
        return known_hosts.read(self.known_hosts_files())


class VerifyHostKey(paramiko.MissingHostKeyPolicy):
    """Checks every host key. Paramiko is given no known hosts, so that every key is "missing" and
    checked here; Fabric's default would accept any."""

    def __init__(self, endpoint: SshEndpoint, entries: Sequence[known_hosts.Entry]) -> None:
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


# It needs no separate hash: 1.7 s of CPU per GB sent, instead of 2.8 s for AES-CTR with HMAC-
# SHA2-256, which Paramiko 5.1 prefers. OpenSSH has had it since 6.2 (2013).
CHEAPEST_CIPHER = "aes128-gcm@openssh.com"


def preferring(types: Sequence[str]) -> Any:
    """Return a transport factory that prefers host keys of `types` and the cheapest cipher."""

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
    """Type of a key in known_hosts: RSA keys are ssh-rsa there and sign as rsa-sha2-*."""
    return "ssh-rsa" if algorithm.startswith("rsa-sha2-") else algorithm


def host_key_problem(verdict: Verdict, target: SshTarget, offered: OfferedKey) -> HostKeyProblem:
    """Return the error for the host's key; UnknownHostKey if the key is merely not known."""
    if verdict.kind == "unknown" or verdict.entry is None:
        unknown = UnknownHostKey(
            f"its host key is not in {offered.file}",
            host=target.name,
            hint=f"compare {offered} with the host's own, then add it by connecting once: "
            f"{target.command_line('true')}; or set `ssh: {{accept_new: true}}`",
        )
        unknown.offered = offered
        return unknown
    entry = verdict.entry
    word = "is revoked" if verdict.kind == "revoked" else "differs from the known one"
    return HostKeyProblem(
        f"its host key {word}: {entry.file}:{entry.line}",
        host=target.name,
        hint="someone may be intercepting the connection; if the host was reinstalled: "
        f"ssh-keygen -f {entry.file} -R '{offered.name}'",
        detail=f"shown: {offered}\nknown: {entry.key_type} {fingerprint(entry.key)}",
    )
