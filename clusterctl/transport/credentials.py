"""Passwords and passphrases: the user is asked once for each, for all hosts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SSH_PASSWORD = "CLUSTERCTL_SSH_PASSWORD"  # noqa: S105 - the name of a variable
SSH_PASSPHRASE = "CLUSTERCTL_SSH_PASSPHRASE"  # noqa: S105
SUDO_PASSWORD = "CLUSTERCTL_SUDO_PASSWORD"  # noqa: S105

# Shows a question and reads the answer without echo; None when there is no user to ask.
Ask = Callable[[str], str | None]


def nobody(question: str) -> None:
    """Return None without asking: for runs without a terminal."""
    _ = question


@dataclass(frozen=True)
class Credentials:
    """Passwords from the environment, or from the user through `ask`.

    `environment` is read at every use. Threads that need the same answer wait for one question.
    """

    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    ask: Ask = nobody
    _answers: dict[str, str | None] = field(default_factory=dict, repr=False)
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

    def known_sudo_password(self) -> str | None:
        """Return the password if it is known, without asking."""
        with self._asking:
            return self.environment.get(SUDO_PASSWORD) or self._answers.get("sudo")

    def ask_sudo_password(self, user: str, host: str) -> str | None:
        return self.known_sudo_password() or self._answer(
            "sudo", f"sudo password of {user} (first asked for by {host}): "
        )

    def _answer(self, topic: str, question: str) -> str | None:
        with self._asking:
            if topic not in self._answers:
                self._answers[topic] = self.ask(question)
            return self._answers[topic]
