from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.node.children import session_members
from tests.fakes.node_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.stop()
    for program in ("ray", "vllm"):
        for start in bench.starts(program):
            assert not session_members(start["pid"]), f"{program} left processes behind"


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Bench]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    bench = Bench(tmp_path, role="worker", gcs_port=port)
    yield bench
    bench.stop()
