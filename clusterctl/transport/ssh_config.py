"""~/.ssh/config applied to a target, as OpenSSH does.

Paramiko's reader ignores `Include` and parts of `Match`. Where a file has them and this machine has
an `ssh`, the options are read from `ssh -G`.
"""

from __future__ import annotations

import io
import os
import pwd
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import fabric
import paramiko

from clusterctl import deadlines
from clusterctl.errors import UsageError
from clusterctl.transport import known_hosts
from clusterctl.transport.target import SshTarget

SYSTEM_SSH_CONFIG = Path("/etc/ssh/ssh_config")
GLOBAL_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")

_BEYOND_PARAMIKO = re.compile(
    r"^[ \t]*(include|match|canonicalizehostname)[ \t=]+(.*)$", re.IGNORECASE | re.MULTILINE
)
# `ssh -G` prints every option; these are read here.
_USED = (
    "hashknownhosts", "hostkeyalias", "hostname", "identitiesonly", "identityfile", "port",
    "proxycommand", "proxyjump", "user", "userknownhostsfile",
)  # fmt: skip
_DEFAULT_IDENTITY = re.compile(
    r"identityfile ~/\.ssh/id_(rsa|dsa|xmss|(ecdsa|ed25519)(_sk)?|mldsa\w*)"
)


class SshConfig:
    """The user's file, then the system's: the first value found counts."""

    def __init__(
        self, file: Path = Path("~/.ssh/config"), *, limit: float = deadlines.SSH_CONFIG
    ) -> None:
        """`limit`: seconds for `ssh -G`, which may run commands of `Match exec`."""
        self._file, self._limit = file, limit
        self._lock = threading.Lock()
        self._parsed: paramiko.SSHConfig | None = None
        self._program: str | None = None
        self._answers: dict[tuple[str, ...], paramiko.SSHConfig] = {}

    def of(self, target: SshTarget) -> paramiko.SSHConfig:
        """Return the options for `target`. Raises UsageError when a file cannot be read."""
        with self._lock:
            if self._parsed is None and self._program is None:
                files = (self._file, SYSTEM_SSH_CONFIG)
                texts = [_read(file) for file in files]
                if any(map(_is_beyond_paramiko, texts)):
                    self._program = shutil.which("ssh")
                if self._program is None:
                    self._parsed = _parsed(dict(zip(files, texts, strict=True)))
        if self._parsed is not None:
            return self._parsed
        words = (
            *(("-p", str(target.ssh.port)) if target.ssh.port else ()),
            *(("-l", target.ssh.user) if target.ssh.user else ()),
            "--",
            target.address,
        )
        if words not in self._answers:
            self._answers[words] = self._ask(words)
        return self._answers[words]

    def _ask(self, words: tuple[str, ...]) -> paramiko.SSHConfig:
        """Run `ssh -G`, and return what it prints without OpenSSH's defaults for files."""
        home = Path(_home())
        argv, files = [self._program or "ssh", "-G"], ""
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
        lines = [line for line in done.stdout.splitlines() if line.partition(" ")[0] in _USED]
        identities = [line for line in lines if line.startswith("identityfile ")]
        unset = {f"userknownhostsfile {home}/.ssh/known_hosts {home}/.ssh/known_hosts2"}
        if len(identities) > 1 and all(map(_DEFAULT_IDENTITY.fullmatch, identities)):
            unset.update(identities)
        return paramiko.SSHConfig.from_text("\n".join(line for line in lines if line not in unset))


def bad_ssh_config(file: Path, detail: str) -> UsageError:
    return UsageError(f"{file} cannot be read", hint="ssh -G localhost", detail=detail)


def _home() -> str:
    """The home directory that OpenSSH uses, whatever $HOME says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return str(Path.home())


def _read(file: Path) -> str:
    try:
        return file.expanduser().read_text()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise bad_ssh_config(file, str(error)) from error


def _parsed(texts: Mapping[Path, str]) -> paramiko.SSHConfig:
    config = paramiko.SSHConfig()
    for file, text in texts.items():
        try:
            config.parse(io.StringIO(text))
        except paramiko.SSHException as error:
            raise bad_ssh_config(file, str(error)) from error
    return config


def _is_beyond_paramiko(text: str) -> bool:
    """Whether the text has `Match`, or an `Include` of any file. Debian's includes an empty
    directory, and `ssh -G` takes some milliseconds for each host."""
    for keyword, rest in _BEYOND_PARAMIKO.findall(text):
        if keyword.lower() != "include":
            return True
        for word in rest.replace('"', " ").split():
            for folder in ("~/.ssh", "/etc/ssh"):
                with suppress(ValueError, RuntimeError, OSError):  # not a pattern; no such user
                    pattern = Path(folder).expanduser() / Path(word).expanduser()
                    if any(Path("/").glob(str(pattern)[1:])):
                        return True
    return False


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

    @property
    def certified_name(self) -> str:
        """The name that the host's certificate must have as a principal."""
        return (self.option("hostkeyalias") or self.address[0]).lower()

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
