"""The command line as a process of its own, with a home of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that is taken, and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def inventory(tmp_path: Path, closed_port: int) -> Path:
    """`here`, which answers, is this machine; `gone` refuses connections."""
    file = tmp_path / "inventory.yaml"
    file.write_text(
        "cluster: nowhere\n"
        "image: vllm/vllm-openai:v0.33.0\n"
        "hosts:\n"
        "  here: {address: localhost, role: head, gpus: 0, node_ip: 192.0.2.1}\n"
        "  gone:\n"
        f"    {{address: 127.0.0.1, gpus: 0, node_ip: 192.0.2.2, ssh: {{port: {closed_port}}}}}\n"
    )
    return file


@pytest.fixture
def clusterctl(tmp_path: Path) -> Run:
    """Run `clusterctl` to its end; keyword arguments are environment variables."""

    def run(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_STATE_HOME": str(tmp_path / "state"),
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "LANG": "C.UTF-8",
            **variables,
        }
        return subprocess.run(
            [sys.executable, "-m", "clusterctl", *words],
            env=environment,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run
