from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from clusterctl.node.children import session_members
from clusterctl.node.haproxy import find_haproxy
from tests.fakes.node_bench import Bench, await_value
from tests.fakes.ports import port_of, reserved


@pytest.fixture
def haproxy() -> None:
    if not find_haproxy()[0]:
        pytest.fail("no HAProxy of 2.6 or newer: scripts/setup.sh --tests installs one")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.stop()
    for program in ("ray", "vllm"):
        for start in bench.starts(program):
            gone = partial(_is_gone, start["pid"])
            await_value(gone, f"all that {program} started to be gone")


def _is_gone(session: int) -> bool:
    return not session_members(session)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Bench]:
    with reserved() as port:
        bench = Bench(tmp_path, role="worker", gcs_port=port_of(port))
        yield bench
        bench.stop()
