"""~/.ssh/config applied to a target, as OpenSSH does: by asking `ssh -G`.

Only on a machine without `ssh` does Paramiko read the files, without `Include` and parts of
`Match`.
"""

from __future__ import annotations

import io
import os
import pwd
import re
import shutil
import socket
import subprocess
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fabric
import paramiko

from clusterctl import deadlines
from clusterctl.errors import UsageError
from clusterctl.transport import known_hosts
from clusterctl.transport.target import SshTarget

SYSTEM_SSH_CONFIG = Path("/etc/ssh/ssh_config")
GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")

# `ssh -G` prints defaults as well; these are OpenSSH's key files, of which it tries those that are
# there.
_DEFAULT_IDENTITY = re.compile(r"~/\.ssh/id_(rsa|dsa|xmss|(ecdsa|ed25519)(_sk)?|mldsa\w*)")


@dataclass(frozen=True)
class SshOptions:
    """Options of one target by lower-case name, each with its values in order: `identityfile` and
    `certificatefile` may have several, others have one."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def one(self, name: str) -> str | None:
        """Return the value; None if it is unset."""
        return next(iter(self.values.get(name, ())), None)

    def is_on(self, name: str) -> bool:
        """Whether a switch is set, which is off by default."""
        return (self.one(name) or "").lower() in ("yes", "true")


class SshConfig:
    """The user's file, then the system's: the first value found counts."""

    def __init__(
        self, file: Path = Path("~/.ssh/config"), *, limit: float = deadlines.SSH_CONFIG
    ) -> None:
        """`limit`: seconds for `ssh -G`, which may run commands of `Match exec`."""
        self._file, self._limit = file, limit
        self._answers: dict[tuple[str, ...], SshOptions] = {}

    def of(self, target: SshTarget) -> SshOptions:
        """Return the options for `target`. Raises UsageError when a file cannot be read."""
        words = (
            *(("-p", str(target.ssh.port)) if target.ssh.port else ()),
            *(("-l", target.ssh.user) if target.ssh.user else ()),
            "--",
            target.address,
        )
        if words not in self._answers:
            program = shutil.which("ssh")
            self._answers[words] = (
                self._ask(program, words) if program else self._read(target.address)
            )
        return self._answers[words]

    def _ask(self, program: str, words: tuple[str, ...]) -> SshOptions:
        """Run `ssh -G`, and return what it prints without OpenSSH's defaults for files."""
        home = Path(_home())
        argv, files = [program, "-G"], ""
        if self._file.expanduser() != home / ".ssh/config":
            # With -F alone, ssh would not read the system's file.
            argv += ["-F", "/dev/stdin"]
            files = "".join(
                f'Include "{file}"\n' for file in (self._file.expanduser(), SYSTEM_SSH_CONFIG)
            )
        try:
            done = subprocess.run(
                [*argv, *words],
                input=files,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._limit,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"`ssh -G {words[-1]}` did not answer within {self._limit:g} s",
                hint=f"look for a `Match exec` that hangs: ssh -vG {words[-1]}",
            ) from error
        if done.returncode != 0:
            raise bad_ssh_config(self._file, done.stderr.strip())

        found: dict[str, list[str]] = {}
        for line in done.stdout.splitlines():
            name, _, value = line.partition(" ")
            found.setdefault(name, []).append(value)
        known = [f"{home}/.ssh/known_hosts {home}/.ssh/known_hosts2"]
        if found.get("userknownhostsfile") == known:
            del found["userknownhostsfile"]
        identities = found.get("identityfile", [])
        if len(identities) > 1 and all(map(_DEFAULT_IDENTITY.fullmatch, identities)):
            del found["identityfile"]
        return SshOptions({name: tuple(values) for name, values in found.items()})

    def _read(self, address: str) -> SshOptions:
        """Read the files without OpenSSH."""
        config = paramiko.SSHConfig()
        for file in (self._file, SYSTEM_SSH_CONFIG):
            try:
                config.parse(io.StringIO(file.expanduser().read_text()))
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
                raise bad_ssh_config(file, str(error)) from error
        found: Mapping[str, Any] = config.lookup(address)
        return SshOptions(
            {name: (it,) if isinstance(it, str) else tuple(it) for name, it in found.items()}
        )


def _has_passwd_entry() -> bool:
    try:
        return bool(pwd.getpwuid(os.getuid()))
    except KeyError:
        return False


def bad_ssh_config(file: Path, detail: str) -> UsageError:
    return UsageError(f"{file} cannot be read", hint="ssh -G localhost", detail=detail)


def _home() -> str:
    """The home directory that OpenSSH uses, whatever $HOME is."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return str(Path.home())


class SshEndpoint:
    """A target with values from ~/.ssh/config for fields that the inventory leaves unset.
    `connection` is not open yet."""

    def __init__(
        self, target: SshTarget, connection: fabric.Connection, options: SshOptions
    ) -> None:
        self.target = target
        self.connection = connection
        self.options = options
        self.heard: list[str] = []  # from the server, outside of SSH's messages
        self.said: deque[str] = deque(maxlen=20)  # lines of the ProxyCommand on stderr

    @property
    def address(self) -> tuple[str, int]:
        return self.connection.host, self.connection.port

    @property
    def place(self) -> str:
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def known_name(self) -> str:
        alias = self.options.one("hostkeyalias")
        return alias.lower() if alias else known_hosts.host_name(*self.address)

    @property
    def certified_name(self) -> str:
        """The name that the host's certificate must have as a principal."""
        return (self.options.one("hostkeyalias") or self.address[0]).lower()

    def jump(self) -> str | None:
        jump = self.target.ssh.proxy_jump or self.options.one("proxyjump")
        return None if jump is None or jump.lower() == "none" else jump

    def identities(self) -> list[Path]:
        if self.target.ssh.identity_file:
            return [self.target.ssh.identity_file]
        named = self.options.values.get("identityfile", ())
        return [self._path(file) for file in named if file.lower() != "none"]

    def certificates(self) -> list[Path]:
        return [self._path(file) for file in self.options.values.get("certificatefile", ())]

    def agent_socket(self) -> str | None:
        """The agent's socket; None for no agent."""
        named = self.options.one("identityagent") or "SSH_AUTH_SOCK"
        if named.lower() == "none":
            return None
        if named == "SSH_AUTH_SOCK" or named.startswith("$"):
            return os.environ.get(named.strip("${}"))
        return str(self._path(named))

    def login_methods(self) -> list[str]:
        """Methods of SSH that the options leave enabled."""
        switches = {
            "publickey": "pubkeyauthentication",
            "password": "passwordauthentication",
            "keyboard-interactive": "kbdinteractiveauthentication",
        }
        return [
            method
            for method, option in switches.items()
            if self.options.one(option) in (None, "yes", "true", "unbound", "host-bound")
        ]

    def proxy_command(self) -> str | None:
        command = self.options.one("proxycommand")
        return None if command is None or command.lower() == "none" else self._expanded(command)

    def known_hosts_files(self) -> list[Path]:
        """The known_hosts files; a new key is added to the first one."""
        if self.target.ssh.known_hosts:
            return [self.target.ssh.known_hosts.expanduser()]
        users = (self.options.one("userknownhostsfile") or "~/.ssh/known_hosts").split()
        everyones = (self.options.one("globalknownhostsfile") or str(GLOBAL_KNOWN_HOSTS)).split()
        return [self._path(file) for file in (*users, *everyones) if file.lower() != "none"]

    def _path(self, file: str) -> Path:
        return Path(self._expanded(file)).expanduser()

    def _expanded(self, text: str) -> str:
        """Replace the tokens of ssh_config(5) that `ssh -G` leaves in file names and commands."""
        host, port = self.address
        here = socket.gethostname()
        local = pwd.getpwuid(os.getuid()).pw_name if _has_passwd_entry() else str(os.getuid())
        tokens = {
            "%": "%",
            "d": _home(),
            "h": host,
            "i": str(os.getuid()),
            "k": self.options.one("hostkeyalias") or self.target.address,
            "L": here.partition(".")[0],
            "l": here,
            "n": self.target.address,
            "p": str(port),
            "r": str(self.connection.user),
            "u": local,
        }
        return re.sub(r"%(.)", lambda token: tokens.get(token[1], token[0]), text)

    def known_hosts(self) -> list[known_hosts.Entry]:
        return known_hosts.read(self.known_hosts_files())
