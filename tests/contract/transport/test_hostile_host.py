"""Every command against a host whose every answer is hostile: nothing that a terminal obeys comes
out of it, no traceback, and it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract.transport.conftest import StartSshd
from tests.contract.transport.sshd import Sshd, kill_tree

pytestmark = [pytest.mark.sshd, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[3]
SHELL = ROOT / "tests/fakes/host_programs/hostile_shell.py"
CAPTURE = ROOT / "tests/unit/facts/captures/ubuntu-24.04-2-gpus.txt"

# Our own sequences: rich moves the cursor over its live rows, and colours them.
OURS = re.compile(
    r"\x1b\[(?:\d+A|2K|\?25[lh]|(?:0|1|2|3[1-6]|1;3[1-6])m)|\r(?=\x1b\[2K|\x1b\[\d+A|\n)|\r\n"
)
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

COMMANDS = {
    "status": ["status"],
    "check": ["check"],
    "plan": ["bootstrap", "{inventory}", "--dry-run"],
    "bootstrap": ["bootstrap", "{inventory}", "--yes"],
    "logs": ["logs"],
    "logs of a service": ["logs", "chat"],
    "exec": ["exec", "--", "uname", "-a"],
    "exec in the node": ["exec", "--node", "--", "uname", "-a"],
    "models": ["model", "ls"],
    "push a model": ["model", "push", "{model}"],
    "push from a host": ["model", "push", "tiny", "--from", "host:gpu1"],
    "serve": ["serve", "/models/tiny", "--tp", "1", "--dry-run"],
    "fit": ["fit", "/models/tiny", "--tp", "1"],
    "stop": ["stop", "chat"],
    "down": ["down", "--yes"],
    "tunnel": ["tunnel", "chat"],
    "image": ["image", "push"],
    "init": ["init", "127.0.0.1:{port}", "-o", "-"],
}
KINDS = ("facts", "json", "text", "deep", "long")
STILL_RUNNING = -1
LIMIT = 120.0  # Seconds: far more than any of them takes on an idle machine


@dataclass
class Hostile:
    sshd: Sshd
    folder: Path
    home: Path

    def argv(self, words: list[str]) -> list[str]:
        at = {
            "inventory": self.home / "inventory.yaml",
            "model": self.home / "tiny",
            "port": self.sshd.port,
        }
        argv = [sys.executable, "-m", "clusterctl", *(word.format(**at) for word in words)]
        if words[0] == "init":
            known = str(self.sshd.known_hosts)
            argv += ["--user", "root", "--identity", str(self.sshd.client_key)]
            argv += ["--known-hosts", known]
        return argv

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "CLUSTERCTL_INVENTORY": str(self.home / "inventory.yaml"),
            "TERM": "xterm",
            "COLUMNS": "120",
            "PYTHONIOENCODING": "utf-8",
        }

    def on_a_terminal(self, words: list[str]) -> tuple[int, str]:
        """Run the command; return its status and all that a terminal got."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            self.argv(words),
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
            env=self.environment,
            cwd=self.home,
        )
        os.close(theirs)
        shown, status, deadline = b"", STILL_RUNNING, time.monotonic() + LIMIT
        try:
            while time.monotonic() < deadline:
                if not select.select([ours], [], [], 0.5)[0]:
                    if process.poll() is not None:
                        break
                    continue
                try:
                    piece = os.read(ours, 65536)
                except OSError:
                    break
                if not piece:
                    break
                shown += piece
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(timeout=10)
        finally:
            kill_tree(process.pid)
            process.wait()
            os.close(ours)
        return status, shown.decode(errors="replace")


@pytest.fixture
def hostile(start_sshd: StartSshd, tmp_path: Path) -> Callable[[str], Hostile]:
    def start(kind: str) -> Hostile:
        folder = tmp_path / "host"
        folder.mkdir()
        shell = shutil.copy(SHELL, folder / "shell.py")
        shutil.copy(CAPTURE, folder / "capture")
        (folder / "kind").write_text(kind)
        sshd = start_sshd({"ForceCommand": f"{sys.executable} {shell}"})
        home = tmp_path / "home"
        model = home / "tiny"
        model.mkdir(parents=True)
        (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
        (model / "RANDOM_WEIGHTS").touch()
        (home / "inventory.yaml").write_text(
            "cluster: demo\nimage: vllm/vllm-openai:v0.33.0\nmodels: /models\n"
            f"ssh: {{user: root, identity_file: {sshd.client_key}, "
            f"known_hosts: {sshd.known_hosts}}}\n"
            f"hosts:\n  gpu1: {{address: 127.0.0.1, role: head, ssh: {{port: {sshd.port}}}}}\n"
        )
        return Hostile(sshd, folder, home)

    return start


@pytest.mark.parametrize("kind", KINDS)
def test_no_command_passes_on_what_a_terminal_obeys(
    kind: str, hostile: Callable[[str], Hostile]
) -> None:
    host, wrong = hostile(kind), []
    for name, words in COMMANDS.items():
        status, shown = host.on_a_terminal(words)
        if found := OBEYED.search(OURS.sub("", shown)):
            around = shown[max(0, shown.find(found[0]) - 80) :][:200]
            wrong.append(f"{name}: {found[0]!r} in {around!r}")
        if status == STILL_RUNNING:
            wrong.append(f"{name}: did not end within {LIMIT:.0f} s")
        if status == 1 or "a bug in clusterctl" in shown or "Traceback" in shown:
            wrong.append(f"{name}: {status}: {shown[-600:]!r}")
        if re.search(r"^(error: gpu9|  fix: .*52;c)", shown, re.MULTILINE):
            wrong.append(f"{name}: the host began a line of its own: {shown[-600:]!r}")
    assert not wrong, "\n".join(wrong)
