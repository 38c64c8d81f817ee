"""ProxyCommand of ~/.ssh/config: a program that carries the connection."""

from __future__ import annotations

import socket
import subprocess
import threading


def open_proxy(command: str) -> socket.socket:
    """A socket whose other end is stdin and stdout of `command`, the user's own shell text.

    Paramiko's ProxyCommand spins for ever on a program that ended, and never reaps it.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, name="proxy", daemon=True).start()
    return ours
