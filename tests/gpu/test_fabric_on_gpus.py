"""The fabric gate on real GPUs: two hosts of namespaces with half of them each, and one host with
all. Needs root, two NVIDIA GPUs, `ip`, and ray and torch in this Python."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.network.nccl_log import read_log
from clusterctl.node import package
from clusterctl.node.documents import from_json
from clusterctl.node.fabric_documents import FabricReport

NEEDED = [name for name in ("ip", "tc", "nvidia-smi", "unshare") if shutil.which(name) is None]
NEEDED += [name for name in ("ray", "torch") if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(bool(NEEDED), reason=f"lacking: {', '.join(NEEDED)}"),
]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FabricReport]:
    directory = tmp_path_factory.mktemp("two-hosts")
    program, out = directory / "node.pyz", directory / "gate.json"
    program.write_bytes(package.build())
    script = Path(__file__).with_name("two_hosts.py")
    subprocess.run([sys.executable, str(script), str(program), str(out)], check=True, timeout=500)
    found = json.loads(out.read_text())
    return {name: from_json(FabricReport, json.dumps(one)) for name, one in found.items()}


def nccl(report: FabricReport) -> float:
    """Bytes/s."""
    (found,) = [one for one in report.collectives if one.backend == "nccl"]
    return found.bandwidth


def test_nccl_goes_over_the_interface_that_each_host_was_told(
    reports: dict[str, FabricReport],
) -> None:
    report = reports["cable"]
    assert not report.failed, report.error
    carried = {rank.host: read_log(rank.log) for rank in report.ranks}
    assert {host: (one.between, one.devices) for host, one in carried.items()} == {
        "gpua": ("Socket", ("eth0",)),
        "gpub": ("Socket", ("ens2",)),
    }


def test_the_bandwidth_is_the_limited_links(reports: dict[str, FabricReport]) -> None:
    assert 0.85 < nccl(reports["limited"]) * 8 / 10e9 < 1.0


def test_a_host_told_the_wrong_interface_is_named_at_once(reports: dict[str, FabricReport]) -> None:
    report = reports["misled"]
    broken = {(one.target, one.nic) for one in report.crossings if one.error}
    assert (report.failed, broken) == ("crossings", {("gpub", "lo")})
    assert report.seconds < 10


def test_the_gpus_own_link_is_much_faster(reports: dict[str, FabricReport]) -> None:
    assert read_log(reports["link"].ranks[0].log).inside
    assert nccl(reports["link"]) > nccl(reports["cable"])
