"""A target with ~/.ssh/config applied to it."""

from __future__ import annotations

from pathlib import Path

import fabric

from clusterctl.transport import known_hosts
from clusterctl.transport.target import Target

GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")


class Endpoint:
    """What the inventory leaves open, ~/.ssh/config says; `connection` is not open yet."""

    def __init__(self, target: Target, connection: fabric.Connection) -> None:
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
        """The first one is where a new key would be added."""
        if self.target.ssh.known_hosts:
            return [self.target.ssh.known_hosts.expanduser()]
        users = (self.option("userknownhostsfile") or "~/.ssh/known_hosts").split()
        return [Path(file).expanduser() for file in users] + [GLOBAL_KNOWN_HOSTS]

    def known_hosts(self) -> list[known_hosts.Entry]:
        return known_hosts.read(self.known_hosts_files())
