"""Log in over SSH as OpenSSH's client does: with no credentials, with keys, then with what a user
types. Records what was tried, and what the server said."""

from __future__ import annotations

import copy
import re
import socket
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from paramiko.auth_strategy import (
    AuthFailure,
    AuthResult,
    AuthSource,
    AuthStrategy,
    SourceResult,
)

from clusterctl.transport.credentials import SSH_PASSPHRASE, SSH_PASSWORD, Credentials
from clusterctl.transport.host_key import AttentiveTransport, plain

# Raised for the content of a key file: by Paramiko, and by cryptography, which has the second line
# for some damaged ones
NOT_A_KEY = (
    *(ValueError, UnsupportedAlgorithm, paramiko.SSHException, paramiko.pkey.UnknownKeyType),
    *(NotImplementedError, AssertionError),
)

# Tried in ~/.ssh when no identity file is named.
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")

KEY, PASSWORD, QUESTIONS = "publickey", "password", "keyboard-interactive"

TYPING = 120.0  # Seconds for a user to answer what a server asks
FACTORS = 4  # Methods that one server may want one after another

# Prompts that want the login password, and no code
_FOR_PASSWORD = re.compile(r"passw", re.IGNORECASE)


@dataclass
class KeyRing:
    """Private keys by file, each read and unlocked once: key derivation is slow by design, and a
    hundred hosts share a key."""

    credentials: Credentials
    _keys: dict[Path, paramiko.PKey | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def is_locked(self, path: Path) -> bool:
        """Whether the file needs a passphrase. Raises OSError, and ValueError for an unusable
        file."""
        with self._lock:
            if path not in self._keys:
                try:
                    self._keys[path] = paramiko.PKey.from_path(path)
                except TypeError:  # raised by cryptography for an encrypted key
                    self._keys[path] = None
                except NOT_A_KEY as error:
                    raise _unusable(path, error) from error
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
                    except NOT_A_KEY as error:
                        raise _unusable(path, error) from error
                    self._keys[path] = key
        found = self._keys[path]
        if found is None:
            raise ValueError("it is encrypted, and no passphrase opened it")
        return found


class NeedsAgent(paramiko.AuthenticationException, ValueError):
    """The key is in a hardware token (FIDO), which this program cannot use for signing."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"in a hardware token, which only an agent can use: ssh-add {path}")
        self.path = path


def _unusable(path: Path, error: Exception) -> ValueError:
    """Return the error for a key file that cryptography cannot load."""
    text = f"{error} {' '.join(_public_words(path))}"
    if "sk-ssh-" in text or "sk-ecdsa-" in text:
        return NeedsAgent(path)
    return ValueError(str(error) or type(error).__name__)


def _public_words(path: Path) -> list[str]:
    """Return type, key and comment of a public key: the file itself, or the one next to it."""
    for file in (path, path.with_name(f"{path.name}.pub")):
        with suppress(OSError, UnicodeDecodeError):
            words = file.read_text().split()
            if len(words) > 1 and not words[0].startswith("---"):
                return words
    return []


class LoginFailed(AuthFailure):
    """Every way to log in failed; `transport` has what the server said."""

    def __init__(self, result: AuthResult, wanted: Sequence[str], said: Sequence[str]) -> None:
        """`wanted`: methods that the server still accepts; `said`: its banner and last words."""
        super().__init__(result)
        self.wanted, self.said = tuple(wanted), tuple(said)

    @property
    def accepted(self) -> list[str]:
        """What the server accepted as one of several factors."""
        return [str(source) for source, outcome in self.result if isinstance(outcome, list)]

    @property
    def prompts(self) -> list[str]:
        """The server's questions that were not answered."""
        outcomes = (outcome for _, outcome in self.result)
        return [outcome.prompt for outcome in outcomes if isinstance(outcome, Unanswered)]

    @property
    def tokens(self) -> list[Path]:
        """Key files whose keys are in hardware tokens."""
        return [outcome.path for _, outcome in self.result if isinstance(outcome, NeedsAgent)]


class Unanswered(paramiko.AuthenticationException):
    """The server asked `prompt`, but there is no terminal to answer on."""

    def __init__(self, prompt: str) -> None:
        super().__init__(f"the server asks {prompt!r}, but there is no terminal to answer on")
        self.prompt = prompt


def _said_by_server(transport: paramiko.Transport) -> list[str]:
    """Return the lines of the server's banner and of its reason to disconnect."""
    # Paramiko's get_banner() returns nothing once the connection is closed.
    handler: Any = transport.auth_handler
    banner = handler.banner if handler else None
    lines = [plain(line) for line in (banner or b"").decode(errors="replace").splitlines()]
    words = transport.words if isinstance(transport, AttentiveTransport) else None
    return [line for line in (*lines, *(words or ())) if line.strip()]


class _Source(AuthSource):
    """One way to log in by a method of SSH. `shown` names it in errors."""

    def __init__(
        self,
        username: str,
        shown: str,
        method: str,
        login: Callable[[paramiko.Transport], list[str]],
    ) -> None:
        super().__init__(username)
        self.method = method
        self._shown, self._login = shown, login

    def __repr__(self) -> str:
        return self._shown

    def authenticate(self, transport: paramiko.Transport) -> list[str]:
        return self._login(transport)


@dataclass(frozen=True)
class Identities:
    """The keys that ~/.ssh/config and the inventory name for a host."""

    files: Sequence[Path] = ()
    only: bool = False  # IdentitiesOnly: of an agent, only the keys whose files are named
    certificates: Sequence[Path] = ()
    agent: str | None = None  # The agent's socket


class SshLogin(AuthStrategy):
    """Tries, in this order: no credentials (`none`), named key files, the agent, named files that
    need a passphrase, default files in the same way, a password, the server's own questions."""

    def __init__(
        self,
        username: str,
        host: str,
        *,
        keys: KeyRing,
        identities: Identities,
        methods: Sequence[str] = (KEY, PASSWORD, QUESTIONS),
    ) -> None:
        """`methods`: those that ~/.ssh/config does not disable."""
        super().__init__(ssh_config=paramiko.SSHConfig())
        self._username, self._host, self._keys = username, host, keys
        self._identities, self._methods = identities, tuple(methods)

    def authenticate(self, transport: paramiko.Transport) -> list[SourceResult]:
        """Return the sources tried. Raises LoginFailed with all of them if none was accepted."""
        tried = AuthResult(self)
        wanted: list[str] = []
        after = self._offered(transport, tried)
        for _ in range(FACTORS):
            if after is None:
                break
            if not after:
                return tried
            wanted, after = after, self._one_factor(transport, tried, after)
        raise LoginFailed(tried, wanted, _said_by_server(transport))

    def _offered(self, transport: paramiko.Transport, tried: AuthResult) -> list[str] | None:
        """Return the methods that the server accepts; empty if it lets the user in without any, as
        Tailscale's server does; None if it does not answer."""
        nothing = _Source(self._username, "no key", "none", lambda it: it.auth_none(self._username))
        try:
            return nothing.authenticate(transport)
        except paramiko.BadAuthenticationType as error:
            return list(error.allowed_types)
        except (paramiko.SSHException, EOFError, OSError) as error:
            tried.append(SourceResult(nothing, error))
            answered = transport.is_active() and "timeout" not in str(error)
            return list(self._methods) if answered else None

    def _one_factor(
        self, transport: paramiko.Transport, tried: AuthResult, wanted: Sequence[str]
    ) -> list[str] | None:
        """Try all sources until the server accepts one, and return the further methods that it
        requires (empty if the login is complete); None if it accepts nothing."""
        accepted = {str(source) for source, outcome in tried if isinstance(outcome, list)}
        for source in self.get_sources():
            method = getattr(source, "method", "")
            # A password alone answers a server that takes either.
            asked_twice = method == QUESTIONS and PASSWORD in wanted
            if method not in wanted or asked_twice or str(source) in accepted:
                continue
            try:
                missing = source.authenticate(transport)
            except (paramiko.SSHException, EOFError, OSError) as error:
                tried.append(SourceResult(source, error))
            else:
                tried.append(SourceResult(source, missing))
                return missing
            if not transport.is_active():
                return None
        return None

    def get_sources(self) -> Iterator[AuthSource]:
        if KEY in self._methods:
            yield from self._by_keys()
        if PASSWORD in self._methods:
            yield _Source(self._username, "password", PASSWORD, self._by_password)
        if QUESTIONS in self._methods:
            yield _Source(self._username, QUESTIONS, QUESTIONS, self._by_answers)

    def _by_keys(self) -> Iterator[AuthSource]:
        files = [path.expanduser() for path in self._identities.files]
        # Judged once: another host's login may unlock a key meanwhile.
        locked = [path for path in files if self._locked(path)]
        yield from map(self._file, (path for path in files if path not in locked))
        yield from self._from_agent()
        yield from map(self._file, locked)
        if not files:
            home = Path("~/.ssh").expanduser()
            default = (home / name for name in DEFAULT_KEYS)
            yield from map(self._file, (path for path in default if path.is_file()))

    def _locked(self, path: Path) -> bool:
        try:
            return self._keys.is_locked(path)
        except (OSError, ValueError):
            return False  # trying the file lists its problem in the error

    def _file(self, path: Path) -> AuthSource:
        """Return the source for a key file. A passphrase is requested only when it is tried."""

        def login(transport: paramiko.Transport) -> list[str]:
            try:
                key = self._keys.key(path)
            except NeedsAgent:
                raise
            except (OSError, ValueError) as error:
                raise paramiko.AuthenticationException(str(error)) from error
            return self._by_key(self._certified(key), transport)

        return _Source(self._username, str(path), KEY, login)

    def _certified(self, key: paramiko.PKey) -> paramiko.PKey:
        """Return the key with the certificate that ~/.ssh/config names for it, if any."""
        for path in self._identities.certificates if key.public_blob is None else ():
            certified = copy.copy(key)
            with suppress(OSError, ValueError, paramiko.SSHException):
                certified.load_certificate(str(path.expanduser()))
                return certified
        return key

    def _from_agent(self) -> Iterator[AuthSource]:
        # paramiko.Agent reads SSH_AUTH_SOCK, and nothing else.
        agent: Any = paramiko.agent.AgentSSH()
        only = self._named_blobs() if self._identities.only else None
        try:
            with suppress(OSError):
                if self._identities.agent:
                    connection = socket.socket(socket.AF_UNIX)
                    connection.connect(self._identities.agent)
                    agent._connect(connection)  # noqa: SLF001
            for key in agent.get_keys():
                if only is None or key.asbytes() in only:
                    name = f"agent key {key.comment or key.name}"
                    yield _Source(self._username, name, KEY, partial(self._by_key, key))
        finally:
            agent._close()  # noqa: SLF001

    def _named_blobs(self) -> set[bytes]:
        """Return the public keys of the named files, else of the default ones."""
        found = set()
        default = [Path("~/.ssh") / name for name in DEFAULT_KEYS]
        for path in self._identities.files or default:
            words = _public_words(path.expanduser())
            with suppress(ValueError):
                found.add(b64decode(words[1]) if len(words) > 1 else b"")
        return found

    def _by_key(self, key: paramiko.PKey, transport: paramiko.Transport) -> list[str]:
        """Log in with the key's certificate if there is one next to its file, then without."""
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
        return transport.auth_password(self._username, password, fallback=False)

    def _by_answers(self, transport: paramiko.Transport) -> list[str]:
        """Answer the server's questions: with the password, or with what the user types."""
        self._keys.credentials.ensure_proven(self._host)
        transport.auth_timeout = TYPING
        return transport.auth_interactive(self._username, self._answers)

    def _answers(
        self, title: str, instructions: str, prompts: Sequence[tuple[str, bool]]
    ) -> list[str]:
        """Return an answer to each prompt. Raises Unanswered, which ends the connection."""
        answers = []
        for prompt, shown in prompts:
            words = plain(" ".join(filter(None, (title, instructions, prompt)))).strip()
            if _FOR_PASSWORD.search(prompt) and not shown:
                answer = self._keys.credentials.password(self._username, self._host)
            else:
                answer = self._keys.credentials.answer(f"{self._host} asks: {words} ")
            if answer is None:
                raise Unanswered(words)
            answers.append(answer)
        return answers
