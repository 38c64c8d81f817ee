"""SSH target of a connection: the inventory's values, then ~/.ssh/config, then defaults."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.inventory.model import Host, Ssh


@dataclass(frozen=True)
class SshTarget:
    """One SSH target. Fields that are None are left to ~/.ssh/config or OpenSSH's defaults.

    `name` identifies it in errors: the host's name in the inventory.
    """

    name: str
    address: str
    ssh: Ssh

    @property
    def connect_timeout(self) -> float:
        return self.ssh.connect_timeout or deadlines.CONNECT

    def argv(self, *command: str, terminal: bool = False) -> list[str]:
        """OpenSSH's command line for the same connection. `terminal`: even for a command."""
        options = ["-t"] if terminal else []
        if self.ssh.port:
            options += ["-p", str(self.ssh.port)]
        if self.ssh.identity_file:
            options += ["-i", str(self.ssh.identity_file)]
        if self.ssh.proxy_jump:
            options += ["-J", self.ssh.proxy_jump]
        return ["ssh", *options, *self._known(), self._login, *command]

    def command_line(self, *command: str) -> str:
        """OpenSSH's command line for the same connection, quoted for a shell."""
        return shlex.join(self.argv(*command))

    def copy_key_line(self) -> str:
        """ssh-copy-id's command line, quoted for a shell, for the user's key."""
        options = ["-p", str(self.ssh.port)] if self.ssh.port not in (None, 22) else []
        if self.ssh.identity_file:
            options += ["-i", str(self.ssh.identity_file)]
        if self.ssh.proxy_jump:
            options += ["-o", f"ProxyJump={self.ssh.proxy_jump}"]
        return shlex.join(["ssh-copy-id", *options, *self._known(), self._login])

    @property
    def _login(self) -> str:
        return f"{self.ssh.user}@{self.address}" if self.ssh.user else self.address

    def _known(self) -> list[str]:
        """Return the options about host keys."""
        options = []
        if self.ssh.known_hosts:
            options += ["-o", f"UserKnownHostsFile={self.ssh.known_hosts}"]
        if self.ssh.accept_new:
            options += ["-o", "StrictHostKeyChecking=accept-new"]
        return options


def target_of(host: Host) -> SshTarget:
    return SshTarget(host.name, host.address, host.ssh)


def jump_target(jump: str, behind: Ssh, *, through: str | None = None) -> SshTarget:
    """Return the jump host `[user@]host[:port]`, with key file and known_hosts of `behind`.

    `through` names more jump hosts on the way to it.
    """
    user, _, place = jump.rpartition("@")
    address, port = split_port(place)
    ssh = Ssh(
        user=user or None,
        port=port,
        identity_file=behind.identity_file,
        known_hosts=behind.known_hosts,
        proxy_jump=through,
        accept_new=behind.accept_new,
        connect_timeout=behind.connect_timeout,
    )
    return SshTarget(f"jump host {address}", address, ssh)


def split_port(place: str) -> tuple[str, int | None]:
    """Split host, host:port, [v6], [v6]:port, or a bare IPv6 address into (host, port or None)."""
    if place.startswith("["):
        address, _, rest = place[1:].partition("]")
        return address, int(rest[1:]) if rest[1:].isdecimal() else None
    address, colon, port = place.partition(":")
    if colon and port.isdecimal():
        return address, int(port)
    return place, None
