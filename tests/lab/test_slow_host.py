"""An image to four whole hosts, one of which is slow and nobody knows."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clusterctl.lab import lifecycle, network
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.paths import LabPaths
from tests.bench.source_link import limited
from tests.bench.synthetic_image import make_archive, make_layer
from tests.lab.cluster import Operator, quiet
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

REFERENCE = "lab/slow:1"
HOSTS = ("gpu1", "gpu2", "gpu3", "gpu4")
RATE = 40_000_000
"""Bit/s of all links, and of this machine's; gpu2 has a quarter."""

SIZES = (90, 60, 35, 20, 10, 5)
"""MB of the layers, unpacked: 38 s over these links."""

ENGINE = (
    "apt-get -qq update && apt-get -qq install -y --no-install-recommends docker.io python3 "
    "&& systemctl start docker"
)


@pytest.fixture
def inventory(lab: LabPaths, on_host: OnHost) -> Iterator[Path]:
    lifecycle.down(say=quiet)
    lifecycle.up(len(HOSTS), say=quiet)
    with ThreadPoolExecutor() as pool:
        for done in pool.map(lambda name: on_host(name, ENGINE, timeout=600), HOSTS):
            assert done.returncode == 0, done.stderr
    inventory = lifecycle.up(len(HOSTS), link_rate=f"{RATE // 10**6}mbit", say=quiet).inventory
    network.ensure_rate(host_by_name("gpu2"), RATE // 4)
    with limited(RATE):
        yield inventory
    lifecycle.down(say=quiet)


def test_a_slow_host_delays_nobody_but_itself(
    inventory: Path, tmp_path: Path, operator: Operator
) -> None:
    layers = [make_layer(tmp_path, size, f"layer{n}") for n, size in enumerate(SIZES)]
    make_archive(tmp_path / "image.tar", REFERENCE, layers)
    words = ("image", "push", REFERENCE, "--from", str(tmp_path / "image.tar"))
    ran = operator.ok("-i", str(inventory), *words, timeout=900)

    assert re.search(r"gpu2 +moved to the end of the chain: it received", ran.stderr), ran.stderr
    done = re.findall(r"✓ (gpu\d) .*?  (?:(\d+) min )?(\d+) s$", ran.stderr, re.MULTILINE)
    seconds = {host: 60 * int(minutes or 0) + int(rest) for host, minutes, rest in done}
    assert sorted(seconds) == list(HOSTS)
    assert seconds["gpu2"] > 3 * seconds["gpu1"], "gpu2 was not slow"
    for host in ("gpu3", "gpu4"):
        assert seconds[host] < 1.3 * seconds["gpu1"], seconds
