"""Passwords and passphrases: the user is prompted once for each, for all hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from clusterctl.errors import HostKeyProblem

SSH_PASSWORD = "CLUSTERCTL_SSH_PASSWORD"  # noqa: S105 - the name of a variable
SSH_PASSPHRASE = "CLUSTERCTL_SSH_PASSPHRASE"  # noqa: S105
SUDO_PASSWORD = "CLUSTERCTL_SUDO_PASSWORD"  # noqa: S105


def environment_of_children() -> dict[str, str]:
    """Return this process's environment without passwords, for programs that it starts."""
    secrets = {SSH_PASSWORD, SSH_PASSPHRASE, SUDO_PASSWORD}
    return {name: value for name, value in os.environ.items() if name not in secrets}


# Shows a question and reads the answer without echo; None when there is no user to ask.
Ask = Callable[[str], str | None]


def nobody(question: str) -> None:
    """Return None without asking: for runs without a terminal."""
    _ = question


@dataclass(frozen=True)
class Credentials:
    """Passwords from the environment, or from the user through `ask`.

    `environment` is read at every use. Threads that need the same answer share one prompt.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    ask: Ask = nobody
    _answers: dict[str, str | None] = field(default_factory=dict, repr=False)
    # By host: a key that was accepted in this run as the first one seen, which proves nothing
    _accepted: dict[str, str] = field(default_factory=dict, repr=False)
    _asking: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def password(self, user: str, host: str) -> str | None:
        """Return the login password. One password is used for every host that `user` logs in to."""
        return self.environment.get(SSH_PASSWORD) or self._answer(
            f"ssh {user}", f"SSH password of {user} (first asked for by {host}): "
        )

    def passphrase(self, key: Path) -> str | None:
        return self.environment.get(SSH_PASSPHRASE) or self._answer(
            f"key {key}", f"Passphrase of {key}: "
        )

    def answer(self, question: str) -> str | None:
        """Ask for what only one login needs, such as a one-time code."""
        with self._asking:
            return self.ask(question)

    def known_sudo_password(self) -> str | None:
        """Return the password if it is known, without asking."""
        with self._asking:
            return self.environment.get(SUDO_PASSWORD) or self._answers.get("sudo")

    def ask_sudo_password(self, user: str, host: str) -> str | None:
        return self.known_sudo_password() or self._answer(
            "sudo", f"sudo password of {user} (first asked for by {host}): "
        )

    def key_accepted(self, host: str, key: str) -> None:
        """Remember that `host` presented a new key, which `accept_new` accepted."""
        with self._asking:
            self._accepted[host] = key

    def is_unproven(self, host: str) -> bool:
        with self._asking:
            return host in self._accepted

    def ensure_proven(self, host: str) -> None:
        """Raise HostKeyProblem if a password could reach an impostor of `host`, unless the user
        confirms its key."""
        with self._asking:
            key = self._accepted.get(host)
            if key is None:
                return
            question = f"{host} is new and presented {key}. Type yes to send it the password: "
            if (self._answer(f"key of {host}", question) or "").strip().lower() == "yes":
                del self._accepted[host]
                return
        raise HostKeyProblem(
            "its key was accepted in this run but not verified, so no password was sent to it",
            host=host,
            hint=f"compare {key} with the host's own (ssh-keygen -lf "
            "/etc/ssh/ssh_host_ed25519_key.pub), then run the command again",
        )

    def _answer(self, topic: str, question: str) -> str | None:
        with self._asking:
            if topic not in self._answers:
                self._answers[topic] = self.ask(question)
            return self._answers[topic]
