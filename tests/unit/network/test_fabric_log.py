"""What NCCL's log says. The first two are from two H200; lines of InfiniBand and of PCIe are
written as other machines' public logs have them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.network.nccl_log import NcclTransports, peers, read_log, warnings
from clusterctl.node.documents import from_json
from clusterctl.node.fabric_documents import FabricReport

CAPTURES = Path(__file__).parent / "captures"


def report(name: str) -> FabricReport:
    return from_json(FabricReport, (CAPTURES / f"{name}.json").read_text())


def logs(name: str) -> list[list[str]]:
    return [rank.log for rank in report(name).ranks]


def test_sockets_between_two_h200() -> None:
    first, second = map(read_log, logs("two-h200-over-sockets"))
    assert first == NcclTransports("Socket", ("eth0",), gpudirect=False, inside="")
    assert second.devices == ("ens2",)


def test_nvlink_between_two_h200_of_one_host() -> None:
    for log in logs("two-h200-over-nvlink"):
        found = read_log(log)
        assert (found.between, found.inside) == ("", "NVLink")


IB = [
    "a:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>",
    "a:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "a:1:1 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[0] [send] via NET/IB/1/GDRDMA",
]


def test_infiniband_with_gpudirect() -> None:
    assert read_log(IB) == NcclTransports("IB", ("mlx5_0", "mlx5_1"), gpudirect=True, inside="")


def test_infiniband_without_gpudirect() -> None:
    plain = [line.replace("/GDRDMA", "") for line in IB]
    assert read_log(plain) == NcclTransports("IB", ("mlx5_0", "mlx5_1"), gpudirect=False, inside="")


def test_two_nics_for_sockets() -> None:
    lines = [
        "NCCL INFO NET/Socket : Using [0]eth1:10.0.0.1<0> [1]eth2:10.1.0.1<0>",
        "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/1",
    ]
    assert read_log(lines).devices == ("eth1", "eth2")


@pytest.mark.parametrize(
    ("path", "via", "inside"),
    [
        ("(2/24.0/PHB)", "P2P/CUMEM", "PCIe"),
        ("(1/370.8/NVL)", "P2P/IPC", "NVLink"),
        ("(2/10.0/SYS)", "SHM/direct/direct", "shared memory"),
    ],
)
def test_ways_inside_a_host(path: str, via: str, inside: str) -> None:
    lines = [
        f"NCCL INFO GPU/0-60 :GPU/0-60 (0/5000.0/LOC) GPU/0-70 {path} CPU/0-0 (1/48.0/PHB)",
        f"NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}",
    ]
    assert read_log(lines).inside == inside


def test_a_log_that_says_nothing() -> None:
    assert read_log([]) == NcclTransports("", (), gpudirect=False, inside="")


def test_complaints_and_the_peers_they_name() -> None:
    line = (
        "a:1:2 [0] misc/socket.cc:64 NCCL WARN socketPollConnect: connect to 10.9.0.2<41231> "
        "returned Connection refused"
    )
    assert warnings([line, line, "NCCL INFO fine"]) == [line.partition("NCCL WARN ")[2]]
    assert peers(line) == [("10.9.0.2", 41231)]
    gloo = "Connection refused, remote=[10.78.0.12]:40123"
    assert peers(gloo) == [("10.78.0.12", 40123)]


def test_the_captures_are_whole() -> None:
    document = json.loads((CAPTURES / "two-h200-over-sockets.json").read_text())
    assert document["failed"] == ""
