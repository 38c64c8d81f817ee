"""SSH servers and agents that behave as those of public reports. What sshd can do, tests do with
sshd."""

from __future__ import annotations

import base64
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from paramiko.common import (
    AUTH_FAILED,
    AUTH_PARTIALLY_SUCCESSFUL,
    AUTH_SUCCESSFUL,
    OPEN_SUCCEEDED,
)
from paramiko.server import InteractiveQuery


@dataclass
class Factors(paramiko.ServerInterface):
    """A server that wants `factors` one after another, and asks `prompts` by
    keyboard-interactive. It accepts every key."""

    factors: Sequence[str] = ("publickey",)
    prompts: Sequence[tuple[str, bool]] = (("Verification code: ", False),)
    right: Sequence[str] = ("123456",)
    banner: str = ""
    holds: bool = False  # It decides nothing, as one that waits for a browser
    asked: list[str] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def get_banner(self) -> tuple[str | None, str | None]:
        return (self.banner or None, "en-US" if self.banner else None)

    def get_allowed_auths(self, username: str) -> str:
        return self.factors[0] if self.factors else "none"

    def _took(self, method: str) -> int:
        self.asked.append(method)
        if not self.factors or self.factors[0] != method:
            return AUTH_FAILED
        self.factors = self.factors[1:]
        return AUTH_PARTIALLY_SUCCESSFUL if self.factors else AUTH_SUCCESSFUL

    def check_auth_none(self, username: str) -> int:
        if self.holds:
            self.asked.append("none")
            self.released.wait()
        return self._took("none")

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return self._took("publickey")

    def check_auth_password(self, username: str, password: str) -> int:
        return self._took("password") if password == self.right[0] else AUTH_FAILED

    def check_auth_interactive(self, username: str, submethods: str) -> int | InteractiveQuery:
        if self.factors[0] != "keyboard-interactive":
            return AUTH_FAILED
        return InteractiveQuery("", "", *self.prompts)

    def check_auth_interactive_response(self, responses: list[str]) -> int | InteractiveQuery:
        if list(responses) != list(self.right):
            return AUTH_FAILED
        return self._took("keyboard-interactive")

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED


@contextmanager
def serving(server: paramiko.ServerInterface, known_hosts: Path) -> Iterator[int]:
    """Serve one connection; its port. The host's key goes to `known_hosts`."""
    key = paramiko.ECDSAKey.generate()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        known_hosts.write_text(f"[127.0.0.1]:{port} {key.get_name()} {key.get_base64()}\n")
        transports: list[paramiko.Transport] = []

        def serve() -> None:
            with suppress(OSError, EOFError, paramiko.SSHException):
                connection, _ = listening.accept()
                transport = paramiko.Transport(connection)
                transports.append(transport)
                transport.add_server_key(key)
                transport.start_server(server=server)

        threading.Thread(target=serve, daemon=True).start()
        yield port
        for transport in transports:
            transport.close()


_APPLICATION = b"ssh:"
_SK = b"sk-ssh-ed25519@openssh.com"


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class TokenAgent:
    """An agent that holds one FIDO key, whose token is this program."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._key = Ed25519PrivateKey.generate()
        raw = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.blob = _string(_SK) + _string(raw) + _string(_APPLICATION)
        self.public = f"{_SK.decode()} {base64.b64encode(self.blob).decode()} token"
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def private_file(self) -> str:
        """The key file that ssh-keygen writes beside the public one: it holds no secret."""
        check = b"\1\2\3\4"
        handle = b"\1" + _string(b"handle") + _string(b"")
        body = check + check + self.blob + handle + _string(b"token")
        body += bytes(range(1, 1 + -len(body) % 8))
        head = b"openssh-key-v1\0" + _string(b"none") * 2 + _string(b"") + struct.pack(">I", 1)
        text = base64.encodebytes(head + _string(self.blob) + _string(body)).decode()
        return f"-----BEGIN OPENSSH PRIVATE KEY-----\n{text}-----END OPENSSH PRIVATE KEY-----\n"

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        """Speak draft-ietf-sshm-ssh-agent: list the key, sign."""
        with connection, connection.makefile("rb") as stream:
            while header := stream.read(4):
                request = stream.read(struct.unpack(">I", header)[0])
                if request[0] == 11:
                    listed = _string(self.blob) + _string(b"token")
                    answer = b"\x0c" + struct.pack(">I", 1) + listed
                else:
                    start = 1 + 4 + len(self.blob)
                    (length,) = struct.unpack(">I", request[start : start + 4])
                    answer = b"\x0e" + _string(self._sign(request[start + 4 : start + 4 + length]))
                connection.sendall(_string(answer))

    def _sign(self, message: bytes) -> bytes:
        """Sign as a token does (OpenSSH's PROTOCOL.u2f), with the flag for a touch."""
        flags, counter = b"\1", struct.pack(">I", 7)
        hashed = hashlib.sha256(_APPLICATION).digest() + flags + counter
        signature = self._key.sign(hashed + hashlib.sha256(message).digest())
        return _string(_SK) + _string(signature) + flags + counter
