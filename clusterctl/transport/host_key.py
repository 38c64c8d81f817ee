"""Check of a host's key or certificate while Paramiko connects."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import paramiko
from paramiko.message import Message

from clusterctl.errors import HostKeyProblem
from clusterctl.transport import known_hosts
from clusterctl.transport.known_hosts import OfferedKey, UnknownHostKey, Verdict, fingerprint
from clusterctl.transport.ordered import GatheringPacketizer
from clusterctl.transport.ssh_config import SshEndpoint
from clusterctl.transport.target import SshTarget


def plain(text: str) -> str:
    """Return the text without control characters, which a terminal would interpret."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


CERTIFICATE = "-cert-v01@openssh.com"
_HOST = 2  # Type of a certificate for a host; 1 is for a user
_LATEST = 253402300799  # The end of the year 9999: Python formats no later time


class VerifyHostKey(paramiko.MissingHostKeyPolicy):
    """Checks every host key. Paramiko is given no known hosts, so that every key is "missing" and
    checked here; Fabric's default would accept any."""

    def __init__(
        self,
        endpoint: SshEndpoint,
        entries: Sequence[known_hosts.Entry],
        accepted: Callable[[str, str], None],
    ) -> None:
        """`accepted` is called with the host's name and key when `accept_new` accepts one."""
        self._endpoint, self._entries, self._accepted = endpoint, entries, accepted

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        _ = client, hostname
        shown = base64.b64encode(key.asbytes()).decode()
        name, key_type = self._endpoint.known_name, key.get_name()
        verdict = known_hosts.judge(self._entries, name, key_type, shown)
        certificate = key.public_blob
        if verdict.kind != "revoked" and certificate and self._certified(certificate.key_blob):
            return
        if verdict.kind == "known":
            return
        file, *_rest = self._endpoint.known_hosts_files()
        target = self._endpoint.target
        hashed = self._endpoint.options.is_on("hashknownhosts")
        offered = OfferedKey(file, name, key_type, shown, hashed)
        if verdict.kind == "unknown" and target.ssh.accept_new:
            offered.remember()
            self._accepted(target.name, str(offered))
            return
        raise host_key_problem(verdict, target, offered)

    def _certified(self, blob: bytes) -> bool:
        """Whether a known CA signed the certificate. Raises HostKeyProblem if it is invalid."""
        endpoint, host = self._endpoint, self._endpoint.target.name
        try:
            certificate = check_certificate(blob, endpoint.certified_name, time.time())
        except (paramiko.SSHException, ValueError) as error:
            raise HostKeyProblem("its host certificate cannot be read", host=host) from error
        lines = known_hosts.authorities(self._entries, endpoint.known_name)
        signed_by = [line for line in lines if line.key == certificate.authority]
        if revoked := next((line for line in signed_by if line.revoked), None):
            raise HostKeyProblem(
                f"the CA of its host certificate is revoked: {revoked.file}:{revoked.line}",
                host=host,
                hint="sign the host's key with a different CA",
            )
        if not signed_by:
            return False
        if certificate.problem:
            line = signed_by[0]
            raise HostKeyProblem(
                f"its host certificate is not valid: {certificate.problem}",
                host=host,
                hint="sign the host's key again: ssh-keygen -s CA -h -I ID "
                f"-n {endpoint.certified_name} /etc/ssh/ssh_host_ed25519_key.pub",
                detail=f"certificate {certificate.key_id!r}, CA {line.file}:{line.line}",
            )
        return True


@dataclass(frozen=True)
class HostCertificate:
    """Result of checking a certificate. `authority`: base64 key of its CA, which may be unknown;
    `problem`: why it does not prove the host, or None."""

    key_id: str
    authority: str
    problem: str | None


def check_certificate(blob: bytes, host: str, now: float) -> HostCertificate:
    """Check that the certificate (OpenSSH's PROTOCOL.certkeys) is valid for `host` at the time
    `now` (Unix seconds). Raises ValueError or SSHException when it cannot be parsed."""
    message = Message(blob)
    key_type = message.get_text().removesuffix(CERTIFICATE)
    for _ in range(2 if key_type == "ssh-ed25519" else 3):  # nonce, fields of the public key
        message.get_string()
    message.get_int64()  # serial number
    kind, key_id = message.get_int(), message.get_text()
    names, principals = Message(message.get_string()), []
    while names.get_remainder():
        principals.append(names.get_text())
    after, before = message.get_int64(), message.get_int64()
    critical_options = message.get_string()
    message.get_string()  # extensions, which hosts may ignore
    message.get_string()  # reserved
    authority = message.get_string()
    signed = blob[: len(blob) - len(message.get_remainder())]
    length, signature = message.get_int(), message.get_remainder()
    if len(signature) != length:
        raise ValueError("the certificate is truncated or too long")
    try:
        ca = paramiko.PKey.from_type_string(Message(authority).get_text(), authority)
        genuine = ca.verify_ssh_sig(signed, Message(signature))
    except Exception:
        genuine = False
    problem = None
    if not genuine:
        problem = "the CA's signature is wrong"
    elif kind != _HOST:
        problem = "it is a user's certificate"
    elif critical_options:
        problem = "it has a critical option, but hosts have none"
    elif not any(known_hosts.covers(pattern.lower(), host) for pattern in principals):
        problem = f"it is for {', '.join(principals) or 'no host'}, not for {host}"
    elif not after <= now < before:
        word, at = ("is valid only from", after) if now < after else ("expired on", before)
        moment = time.gmtime(min(at, _LATEST))
        problem = f"it {word} {time.strftime('%Y-%m-%d %H:%M:%S UTC', moment)}"
    return HostCertificate(key_id, base64.b64encode(authority).decode(), problem)


# It needs no separate hash: 1.7 s of CPU per GB sent, instead of 2.8 s for AES-CTR with HMAC-
# SHA2-256, which Paramiko 5.1 prefers. OpenSSH has had it since 6.2 (2013).
CHEAPEST_CIPHER = "aes128-gcm@openssh.com"


class AttentiveTransport(paramiko.Transport):
    """Keeps what a server says before SSH starts and when it disconnects, which Paramiko only logs:
    `Not allowed at this time`, `Too many authentication failures`."""

    words: list[str] | None = None  # Where to keep it

    def _parse_disconnect(self, message: Message) -> None:
        message.get_int()  # RFC 4253's code
        self._keep(message.get_text())

    def _log(self, level: int, message: str, *details: Any) -> None:
        if isinstance(message, str) and message.startswith("Banner: "):
            self._keep(message.removeprefix("Banner: "))
        super()._log(level, message, *details)  # type: ignore[misc]  # not in the stubs

    def _keep(self, text: str) -> None:
        text = plain(text).strip()
        if text and self.words is not None:
            self.words.append(text)


class _CertifiedTransport(AttentiveTransport):
    """Asks for a host's certificate before its plain key."""

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        offered = super().preferred_keys
        return tuple(sorted(offered, key=lambda name: not name.endswith(CERTIFICATE)))


def preferring(types: Sequence[str], words: list[str], *, certified: bool) -> Any:
    """Return a transport factory that prefers host keys of `types` and the cheapest cipher.

    words      gets what the server says outside of SSH's messages
    certified  prefer certificates to keys, since a CA is known for the host
    """

    def make(sock: Any, **options: Any) -> paramiko.Transport:
        kind = _CertifiedTransport if certified else AttentiveTransport
        transport = kind(sock, packetizer_class=GatheringPacketizer, **options)
        transport.words = words
        security = transport.get_security_options()
        offered = tuple(security.key_types)
        # RSA keys are ssh-rsa in known_hosts, and sign as rsa-sha2-*.
        shown = {name: "ssh-rsa" if name.startswith("rsa-sha2-") else name for name in offered}
        known = [name for name in offered if shown[name] in types]
        security.key_types = [*known, *(name for name in offered if name not in known)]
        others = [name for name in security.ciphers if name != CHEAPEST_CIPHER]
        security.ciphers = [CHEAPEST_CIPHER, *others]
        return transport

    return make


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
