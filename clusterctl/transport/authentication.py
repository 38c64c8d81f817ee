"""Log in over SSH: keys first, a password last, with a record of what was tried."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import paramiko
from paramiko.auth_strategy import (
    AuthFailure,
    AuthResult,
    AuthSource,
    AuthStrategy,
    SourceResult,
)

from clusterctl.transport.credentials import SSH_PASSPHRASE, SSH_PASSWORD, Credentials

# Tried in ~/.ssh when no identity file is named.
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass
class KeyRing:
    """Private keys by file, each read and unlocked once: key derivation is slow by design, and a
    hundred hosts share one key."""

    credentials: Credentials
    _keys: dict[Path, paramiko.PKey | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_locked(self, path: Path) -> bool:
        """Whether the file needs a passphrase. Raises OSError, ValueError for a broken file."""
        with self._lock:
            if path not in self._keys:
                try:
                    self._keys[path] = paramiko.PKey.from_path(path)
                except TypeError:  # raised by cryptography for an encrypted key
                    self._keys[path] = None
            return self._keys[path] is None

    def key(self, path: Path) -> paramiko.PKey:
        """Return the key of a file. Raises OSError, and ValueError for a bad file or passphrase."""
        if self.is_locked(path):
            passphrase = self.credentials.passphrase(path)
            if passphrase is None:
                raise ValueError(f"it is encrypted; set {SSH_PASSPHRASE} or add it to an agent")
            with self._lock:
                if self._keys[path] is None:
                    try:
                        # Paramiko 5.1 passes this to cryptography, which takes only bytes.
                        key = paramiko.PKey.from_path(path, passphrase.encode())  # type: ignore[arg-type]
                    except ValueError as error:
                        raise ValueError("the passphrase is wrong") from error
                    self._keys[path] = key
        found = self._keys[path]
        if found is None:
            raise ValueError("it is encrypted, and no passphrase opened it")
        return found


class _Source(AuthSource):
    """One way to log in. `shown` names it in errors."""

    def __init__(
        self, username: str, shown: str, login: Callable[[paramiko.Transport], list[str]]
    ) -> None:
        super().__init__(username)
        self._shown, self._login = shown, login

    def __repr__(self) -> str:
        return self._shown

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        return self._login(transport)


class SshLogin(AuthStrategy):
    """Tries, in this order: named key files, the agent, named files that need a passphrase, default
    files in the same way, a password."""

    def __init__(
        self,
        username: str,
        host: str,
        *,
        keys: KeyRing,
        identities: Sequence[Path],
        only_identities: bool = False,
    ) -> None:
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._username, self._host, self._keys = username, host, keys
        self._identities = [path.expanduser() for path in identities]
        self._only_identities = only_identities

    def authenticate(self, transport: paramiko.Transport) -> list[SourceResult]:
        """Return the sources tried. Raises AuthFailure with all of them if none was accepted."""
        tried = AuthResult(self)
        for source in self.get_sources():
            try:
                missing = source.authenticate(transport)
            except (paramiko.SSHException, EOFError, OSError) as error:
                tried.append(SourceResult(source, error))
            else:
                tried.append(SourceResult(source, missing))
                if not missing:
                    return tried
            if not transport.is_active():
                break
        raise AuthFailure(tried)

    def get_sources(self) -> Iterator[AuthSource]:
        # Judged once: another host's login may unlock a key meanwhile.
        locked = [path for path in self._identities if self._locked(path)]
        yield from map(self._file, (path for path in self._identities if path not in locked))
        if not self._only_identities:
            yield from self._from_agent()
        yield from map(self._file, locked)
        if not self._identities:
            home = Path("~/.ssh").expanduser()
            default = (home / name for name in DEFAULT_KEYS)
            yield from map(self._file, (path for path in default if path.is_file()))
        yield _Source(self._username, "password", self._by_password)

    def _locked(self, path: Path) -> bool:
        try:
            return self._keys.is_locked(path)
        except (OSError, ValueError, paramiko.SSHException):
            return False  # trying the file lists its problem in the error

    def _file(self, path: Path) -> AuthSource:
        """Return the source for a key file. A passphrase is requested only when it is tried."""

        def login(transport: paramiko.Transport) -> list[str]:
            try:
                key = self._keys.key(path)
            except (OSError, ValueError, paramiko.SSHException) as error:
                raise paramiko.AuthenticationException(str(error)) from error
            return self._by_key(key, transport)

        return _Source(self._username, str(path), login)

    def _from_agent(self) -> Iterator[AuthSource]:
        agent = paramiko.Agent()
        try:
            for key in agent.get_keys():
                login = partial(self._by_key, key)
                yield _Source(self._username, f"agent key {key.comment or key.name}", login)
        finally:
            agent.close()

    def _by_key(self, key: paramiko.PKey, transport: paramiko.Transport) -> list[str]:
        """Log in with the key's certificate if there is one beside its file, then without."""
        try:
            return transport.auth_publickey(self._username, key)
        except paramiko.AuthenticationException:
            if key.public_blob is None or not transport.is_active():
                raise
        plain = copy.copy(key)
        plain.public_blob = None
        return transport.auth_publickey(self._username, plain)

    def _by_password(self, transport: paramiko.Transport) -> list[str]:
        self._keys.credentials.ensure_proven(self._host)
        password = self._keys.credentials.password(self._username, self._host)
        if password is None:
            raise paramiko.AuthenticationException(f"none given; set {SSH_PASSWORD}")
        return transport.auth_password(self._username, password)
