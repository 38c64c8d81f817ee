"""Log in over SSH: keys first, a password last, with a record of what was tried."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from paramiko.auth_strategy import (
    AuthFailure,
    AuthResult,
    AuthSource,
    AuthStrategy,
    InMemoryPrivateKey,
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
                self._keys[path] = _unlocked(path)
            return self._keys[path] is None

    def key(self, path: Path) -> paramiko.PKey:
        """Return the key of a file. Raises OSError, and ValueError for a bad file or passphrase."""
        if self.is_locked(path):
            passphrase = self.credentials.passphrase(path)
            if passphrase is None:
                raise ValueError(f"it is encrypted; set {SSH_PASSPHRASE} or add it to an agent")
            with self._lock:
                if self._keys[path] is None:
                    self._keys[path] = _load(path, passphrase)
        found = self._keys[path]
        if found is None:
            raise ValueError("it is encrypted, and no passphrase opened it")
        return found


def _unlocked(path: Path) -> paramiko.PKey | None:
    try:
        return paramiko.PKey.from_path(path)
    except TypeError:  # raised by cryptography for an encrypted key without a passphrase
        return None


def _load(path: Path, passphrase: str) -> paramiko.PKey:
    try:
        # Paramiko 5.1 passes this to cryptography, which takes only bytes.
        return paramiko.PKey.from_path(path, passphrase.encode())  # type: ignore[arg-type]
    except ValueError as error:
        raise ValueError("the passphrase is wrong") from error


class _PasswordLogin(AuthSource):
    """A password, requested only after all keys were refused."""

    def __init__(self, username: str, host: str, credentials: Credentials) -> None:
        super().__init__(username)
        self._host, self._credentials = host, credentials

    def __repr__(self) -> str:
        return "password"

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        password = self._credentials.password(self.username, self._host)
        if password is None:
            raise paramiko.AuthenticationException(f"none given; set {SSH_PASSWORD}")
        return transport.auth_password(self.username, password)


class _KeyLogin(InMemoryPrivateKey):
    def __init__(self, username: str, key: paramiko.PKey, origin: str) -> None:
        super().__init__(username, key)
        self._origin = origin

    def __repr__(self) -> str:
        return self._origin


class _Unusable(AuthSource):
    """A key file that cannot be used: it always fails, so that the error lists it."""

    def __init__(self, username: str, path: Path, problem: Exception) -> None:
        super().__init__(username)
        self._path, self._problem = path, problem

    def __repr__(self) -> str:
        return str(self._path)

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        _ = transport
        raise paramiko.AuthenticationException(str(self._problem))


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
        named = list(self._from_files(self._identities))
        yield from (source for source in named if not isinstance(source, _Locked))
        if not self._only_identities:
            yield from self._from_agent()
        yield from (source for source in named if isinstance(source, _Locked))
        if not self._identities:
            yield from self._from_files(_default_keys())
        yield _PasswordLogin(self._username, self._host, self._keys.credentials)

    def _from_files(self, paths: Sequence[Path]) -> Iterator[AuthSource]:
        for path in paths:
            try:
                locked = self._keys.is_locked(path)
                yield (
                    _Locked(self._username, path, self._keys)
                    if locked
                    else _KeyLogin(self._username, self._keys.key(path), str(path))
                )
            except (OSError, ValueError, paramiko.SSHException) as error:
                yield _Unusable(self._username, path, error)

    def _from_agent(self) -> Iterator[AuthSource]:
        agent = paramiko.Agent()
        try:
            for key in agent.get_keys():
                yield _KeyLogin(self._username, key, f"agent key {key.comment or key.name}")
        finally:
            agent.close()


class _Locked(AuthSource):
    """An encrypted key file; its passphrase is requested only when the file is tried."""

    def __init__(self, username: str, path: Path, keys: KeyRing) -> None:
        super().__init__(username)
        self._path, self._keys = path, keys

    def __repr__(self) -> str:
        return str(self._path)

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        try:
            key = self._keys.key(self._path)
        except ValueError as error:
            raise paramiko.AuthenticationException(str(error)) from error
        return transport.auth_publickey(self.username, key)


def _default_keys() -> list[Path]:
    home = Path("~/.ssh").expanduser()
    return [home / name for name in DEFAULT_KEYS if (home / name).is_file()]
