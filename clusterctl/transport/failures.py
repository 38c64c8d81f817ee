"""Foreign exceptions of a connect, each turned once into what a user can act on."""

from __future__ import annotations

import socket
from pathlib import Path

import paramiko
from paramiko.auth_strategy import AuthFailure

from clusterctl.errors import (
    AuthenticationRejected,
    ConnectionFailed,
    HostKeyProblem,
    Unreachable,
    UsageError,
)
from clusterctl.transport.known_hosts import Verdict, fingerprint
from clusterctl.transport.offered_key import OfferedKey, UnknownHostKey
from clusterctl.transport.target import Target


def is_passing(error: Exception) -> bool:
    """True for what a busy sshd does (MaxStartups closes or resets); worth another try."""
    if isinstance(error, paramiko.AuthenticationException | ConnectionFailed):
        return False
    return isinstance(error, ConnectionError | EOFError | paramiko.SSHException)


def explain(error: Exception, target: Target, place: str) -> ConnectionFailed:
    """The error for `target`, whose resolved address is `place` (host:port)."""
    if isinstance(error, ConnectionFailed):
        return error
    if isinstance(error, paramiko.AuthenticationException):
        return _rejected(error, target, place)
    return Unreachable(
        _cause(error, target, place),
        host=target.name,
        hint=target.command_line("true"),
        detail=_detail(error),
    )


def _cause(error: Exception, target: Target, place: str) -> str:
    if isinstance(error, socket.gaierror):
        return f"the name {target.address!r} cannot be resolved"
    if isinstance(error, ConnectionRefusedError):
        return f"{place} refused the connection: no sshd listens there"
    if isinstance(error, TimeoutError):
        return f"{place} did not answer within {target.connect_timeout:g} s"
    if isinstance(error, OSError) and not isinstance(error, ConnectionError):
        return f"no route to {place}"
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return f"{place} and clusterctl share no SSH algorithm"
    if isinstance(error, ConnectionError | EOFError | paramiko.SSHException):
        return f"{place} closed the connection before SSH was set up"
    return f"no connection to {place}"


def _detail(error: Exception) -> str:
    return str(error) or type(error).__name__


def _rejected(
    error: paramiko.AuthenticationException, target: Target, place: str
) -> AuthenticationRejected:
    tried = error.result if isinstance(error, AuthFailure) else []
    lines = [f"{source}: {result}" for source, result in tried] or [_detail(error)]
    return AuthenticationRejected(
        f"{place} accepted no key and no password",
        host=target.name,
        hint=f"see that this works: {target.command_line('true')}",
        detail="tried\n" + "\n".join(f"  {line}" for line in lines),
    )


def host_key_problem(verdict: Verdict, target: Target, offered: OfferedKey) -> HostKeyProblem:
    """What is wrong with the key that the host offered; UnknownHostKey when nothing but that
    nobody knows it."""
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
        hint="someone may stand between you and the host; if it was set up anew: "
        f"ssh-keygen -f {entry.file} -R '{offered.name}'",
        detail=f"shown: {offered}\nknown: {entry.key_type} {fingerprint(entry.key)}",
    )


def bad_ssh_config(file: Path, error: Exception) -> UsageError:
    return UsageError(f"{file} cannot be read", hint="ssh -G localhost", detail=str(error))
