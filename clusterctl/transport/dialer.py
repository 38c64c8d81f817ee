"""Open authenticated SSH connections: ~/.ssh/config, jump hosts, host keys, login."""

from __future__ import annotations

import io
import logging
import random
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import fabric
import paramiko

from clusterctl import deadlines
from clusterctl.errors import (
    AuthenticationRejected,
    ClusterctlError,
    ConnectionFailed,
    Unreachable,
)
from clusterctl.transport import known_hosts
from clusterctl.transport.authentication import (
    QUESTIONS,
    Identities,
    KeyRing,
    LoginFailed,
    SshLogin,
)
from clusterctl.transport.credentials import Credentials, environment_of_children
from clusterctl.transport.host_key import VerifyHostKey, plain, preferring
from clusterctl.transport.known_hosts import UnknownHostKey
from clusterctl.transport.ssh_config import SshConfig, SshEndpoint
from clusterctl.transport.target import SshTarget, jump_target

TRIES = 3
_AUTH_FACTOR = 3  # times the time for a connection, for one answer about a login
_LONGEST_LINE = 1000  # bytes of a ProxyCommand's line on stderr
_LAST_WORDS = 0.5  # seconds after its end for its stderr, which its children may hold open
INTERVAL = 10.0  # seconds between requests of Pulse

# Without a handler, Python prints Paramiko's tracebacks to the terminal; the errors raised here
# contain their text.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


class Dialer:
    """Connects to targets. Holds what hosts share: ~/.ssh/config, unlocked keys, the user's
    answers, and one connection to each jump host."""

    def __init__(
        self, credentials: Credentials | None = None, ssh_config: Path = Path("~/.ssh/config")
    ) -> None:
        self.credentials = credentials or Credentials()
        self._keys = KeyRing(self.credentials)
        self._ssh_config = SshConfig(ssh_config)
        self._gateways: dict[tuple[str, str], Future[fabric.Connection]] = {}
        self._lock = threading.Lock()

    def resolve(self, target: SshTarget) -> SshEndpoint:
        """Apply ~/.ssh/config to `target`. Raises UsageError when the file cannot be parsed."""
        options = self._ssh_config.of(target)
        port = target.ssh.port or options.one("port")
        connection = fabric.Connection(
            host=options.one("hostname") or target.address,
            user=target.ssh.user or options.one("user"),
            port=int(port) if port else None,
            # Lazy, so that /etc/fabric.yml and FABRIC_* variables are ignored; ssh_config was read.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=False,
            forward_agent=False,
            connect_timeout=max(1, round(target.connect_timeout)),
        )
        return SshEndpoint(target, connection, options)

    def connect(self, target: SshTarget) -> fabric.Connection:
        """Return an authenticated connection. Raises ConnectionFailed."""
        deadline = time.monotonic() + target.connect_timeout
        for attempt in range(1, TRIES + 1):
            endpoint = self.resolve(target)
            try:
                self._open(endpoint, deadline)
            except (OSError, EOFError, paramiko.SSHException) as error:
                endpoint.connection.close()
                pause = random.uniform(0.2, 0.6) * attempt  # noqa: S311 - jitter
                last = attempt == TRIES or time.monotonic() + pause >= deadline
                if last or not is_passing(error):
                    place, words = endpoint.place, (endpoint.said, endpoint.heard)
                    raise explain(error, target, place, *words) from error
                time.sleep(pause)
            except ClusterctlError:
                endpoint.connection.close()
                raise
            else:
                return endpoint.connection
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """Close the connections to jump hosts."""
        with self._lock:
            gateways, self._gateways = self._gateways, {}
        for future in gateways.values():
            if future.done() and future.exception() is None:
                future.result().close()

    def _open(self, endpoint: SshEndpoint, deadline: float) -> None:
        known = endpoint.known_hosts()
        connection = endpoint.connection
        verify = VerifyHostKey(endpoint, known, self.credentials.key_accepted)
        connection.client.set_missing_host_key_policy(verify)
        connection.connect_kwargs = {
            "sock": self._socket(endpoint, deadline),
            "auth_timeout": _AUTH_FACTOR * endpoint.target.connect_timeout,
            "banner_timeout": max(0.1, deadline - time.monotonic()),
            "transport_factory": preferring(
                known_hosts.key_types(known, endpoint.known_name),
                endpoint.heard,
                certified=bool(known_hosts.authorities(known, endpoint.known_name)),
            ),
            "auth_strategy": SshLogin(
                connection.user,
                endpoint.target.name,
                keys=self._keys,
                identities=Identities(
                    endpoint.identities(),
                    endpoint.options.is_on("identitiesonly"),
                    endpoint.certificates(),
                    endpoint.agent_socket(),
                ),
                methods=endpoint.login_methods(),
            ),
        }
        try:
            connection.open()
        except paramiko.AuthenticationException:
            raise
        except (EOFError, paramiko.SSHException) as error:
            if time.monotonic() >= deadline:  # Paramiko has no error of its own for this
                raise TimeoutError(str(error)) from error
            raise

    def _socket(self, endpoint: SshEndpoint, deadline: float) -> Any:
        remaining = max(0.1, deadline - time.monotonic())
        jump = endpoint.jump()
        if jump:
            transport = self._gateway(jump, endpoint.target).transport
            here = ("127.0.0.1", 0)
            try:
                return transport.open_channel(
                    "direct-tcpip", endpoint.address, here, timeout=remaining
                )
            except paramiko.SSHException as error:
                raise Unreachable(
                    f"the jump host {jump} cannot reach {endpoint.place}",
                    host=endpoint.target.name,
                    hint=endpoint.target.command_line("true"),
                    detail=str(error),
                ) from error
        if proxy := endpoint.proxy_command():
            return open_proxy(proxy, endpoint.said.append)
        stream = socket.create_connection(endpoint.address, timeout=remaining)
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def _gateway(self, jump: str, behind: SshTarget) -> fabric.Connection:
        """Return the only connection to `jump`: the first thread opens it, the others wait for it.

        A failure is raised in all waiting threads, and the next call retries. sshd drops
        connections beyond ten unauthenticated ones (MaxStartups): one per host would exceed that.
        """
        key = (jump, str(behind.ssh.identity_file))
        with self._lock:
            future = self._gateways.get(key)
            mine = future is None or _is_lost(future)
            if future is None or mine:
                future = self._gateways[key] = Future()
        if mine:
            *before, last = jump.split(",")
            try:
                way = jump_target(last, behind.ssh, through=",".join(before) or None)
                connection = self.connect(way)
                Pulse(connection.transport)
                future.set_result(connection)
            except BaseException as error:
                with self._lock:
                    self._gateways = {k: f for k, f in self._gateways.items() if f is not future}
                future.set_exception(error)
        try:
            return future.result(timeout=deadlines.GATEWAY * behind.connect_timeout)
        except ConnectionFailed as error:
            raise _of_jump_host(error, behind) from error
        except TimeoutError as error:
            raise ConnectionFailed(
                f"its jump host {jump} did not connect within "
                f"{deadlines.GATEWAY * behind.connect_timeout:g} s: an earlier attempt is still "
                "waiting",
                host=behind.name,
                hint=f"ssh {jump.rpartition(',')[2]} true",
            ) from error


def _of_jump_host(error: ConnectionFailed, behind: SshTarget) -> ConnectionFailed:
    """Return the same error, reported for the host behind the jump host."""
    summary = f"{error.host}: {error.summary}"
    renamed = type(error)(summary, host=behind.name, hint=error.hint, detail=error.detail)
    if isinstance(error, UnknownHostKey) and isinstance(renamed, UnknownHostKey):
        renamed.offered = error.offered
    return renamed


def _is_lost(future: Future[fabric.Connection]) -> bool:
    return (
        future.done() and future.exception() is None and not future.result().transport.is_active()
    )


def is_passing(error: Exception) -> bool:
    """Whether a busy sshd may cause the error (MaxStartups closes or resets): worth a retry."""
    if isinstance(error, paramiko.AuthenticationException | ConnectionFailed):
        return False
    return isinstance(error, ConnectionError | EOFError | paramiko.SSHException)


def explain(
    error: Exception,
    target: SshTarget,
    place: str,
    said: Sequence[str] = (),
    heard: Sequence[str] = (),
) -> ConnectionFailed:
    """Return the error for `target`, whose resolved address is `place` (host:port).

    said   lines that the ProxyCommand wrote to stderr
    heard  what the server said outside of SSH's messages
    """
    if isinstance(error, ConnectionFailed):
        return error
    if isinstance(error, LoginFailed):
        return _login_failed(error, target, place)
    detail = str(error) or type(error).__name__
    if said:
        return Unreachable(
            f"its ProxyCommand failed: {said[-1]}",
            host=target.name,
            hint=target.command_line("true"),
            detail="\n".join((*said, detail)),
        )
    if isinstance(error, socket.gaierror):
        cause = f"the name {target.address!r} cannot be resolved"
    elif isinstance(error, ConnectionRefusedError):
        cause = f"{place} refused the connection: no sshd listens on it"
    elif isinstance(error, TimeoutError):
        cause = f"{place} did not answer within {target.connect_timeout:g} s"
    elif isinstance(error, OSError) and not isinstance(error, ConnectionError):
        cause = f"no route to {place}"
    elif isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        cause = f"{place} and clusterctl share no SSH algorithm"
    elif isinstance(error, ConnectionError | EOFError | paramiko.SSHException):
        cause = f"{place} closed the connection before SSH was set up"
        cause += f": {heard[-1]}" if heard else ""
    else:
        cause = f"no connection to {place}"
    hint = target.command_line("true")
    return Unreachable(cause, host=target.name, hint=hint, detail=detail)


def _login_failed(error: LoginFailed, target: SshTarget, place: str) -> AuthenticationRejected:
    """Return the error for a refused login, according to what the server accepted and asked."""
    command = target.command_line("true")
    wanted = " or ".join(error.wanted)
    lines = [f"{source}: {_outcome(outcome)}" for source, outcome in error.result]
    detail = "tried\n" + "\n".join(f"  {line}" for line in lines)
    detail += f"\nthe server takes {wanted}" if wanted else ""
    detail += "".join(f"\nthe server says: {line}" for line in error.said)

    asked = f" (it asks {error.prompts[-1]!r})" if error.prompts else ""
    if error.accepted:
        summary = f"{place} accepted {', '.join(error.accepted)}, but requires {wanted} too{asked}"
        hint = f"run it on a terminal, where you are prompted; this has to work: {command}"
    elif address := next((url for line in error.said if (url := _URL.search(line))), None):
        summary = f"{place} waits for a confirmation in the browser"
        hint = f"open {address[0]}, then run it again"
    elif asked:
        summary = f"{place} accepted no key, but asks {error.prompts[-1]!r}"
        hint = f"run it in a terminal to be prompted; to avoid that: {target.copy_key_line()}"
    elif error.tokens:
        summary = f"{place} accepted no key, and {error.tokens[0]} is in a hardware token"
        hint = f"ssh-add {error.tokens[0]}; without an agent: docs/ssh.md, Hardware keys"
    else:
        summary = f"{place} accepted neither a key nor a password"
        # ssh-copy-id logs in by what the server takes besides keys.
        by_user = {"password", QUESTIONS} & set(error.wanted)
        copying = f"{target.copy_key_line()} copies your key to it; then this works: {command}"
        hint = copying if by_user else f"check that this works: {command}"
    return AuthenticationRejected(summary, host=target.name, hint=hint, detail=detail)


def _outcome(outcome: Exception | list[str]) -> str:
    return plain(str(outcome)) if isinstance(outcome, Exception) else "accepted"


# As Tailscale's server writes it in its banner, and others that log in by a browser
_URL = re.compile(r"https://[^\s'\"<>]+")


def open_proxy(command: str, said: Callable[[str], object]) -> socket.socket:
    """Return a socket connected to stdin and stdout of `command`, the user's own shell text; its
    lines on stderr go to `said`.

    Paramiko's ProxyCommand loops forever once the program has ended, and never reaps it.
    """
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        ["sh", "-c", f"exec {command}"],
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        stderr=subprocess.PIPE,
        start_new_session=True,
        env=environment_of_children(),
    )

    def listen() -> None:
        with process.stderr or io.BytesIO() as stderr:
            while line := stderr.readline(_LONGEST_LINE):
                if text := plain(line.decode(errors="replace")).strip():
                    said(text)

    listening = threading.Thread(target=listen, name="proxy-stderr", daemon=True)
    listening.start()

    def attend() -> None:
        process.wait()
        listening.join(_LAST_WORDS)
        theirs.close()  # only now, so that its last words are known when the connection ends

    threading.Thread(target=attend, name="proxy", daemon=True).start()
    return ours


class Pulse:
    """Requests a reply every INTERVAL seconds, and closes a connection that does not reply.

    Paramiko's own keepalive requests no reply: with it, a vanished host is noticed only after the
    kernel's retransmissions, 15 minutes later. Closing wakes every reader of the connection.
    """

    def __init__(
        self,
        transport: paramiko.Transport,
        *,
        interval: float = INTERVAL,
        answer_limit: float = deadlines.PULSE,
    ) -> None:
        self._transport = transport
        self._interval, self._answer_limit = interval, answer_limit
        self._stopped = threading.Event()
        threading.Thread(target=self._beat, name="pulse", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval) and self._transport.is_active():
            given_up = threading.Timer(self._answer_limit, self._transport.close)
            given_up.daemon = True
            given_up.start()
            try:
                self._transport.global_request("keepalive@openssh.com", wait=True)
            except (paramiko.SSHException, EOFError, OSError):
                return
            finally:
                given_up.cancel()
