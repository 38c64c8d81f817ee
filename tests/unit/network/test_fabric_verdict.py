"""From what the gate saw to what a user reads: figures with their measure, culprits by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import ClusterctlError, RayNotFormed
from clusterctl.facts.model import RdmaPort
from clusterctl.network.gate_verdict import NOTHING, FabricVerdict, in_words, judge
from clusterctl.node.fabric_documents import (
    Collective,
    FabricReport,
    PairReport,
    RankReport,
    SeenNode,
)
from clusterctl.ray_cluster.topology import Node, Topology
from tests.fakes.host_facts import host_facts, nic, rdma
from tests.unit.network.test_fabric_log import IB, report

IPS = {"gpua": "10.9.0.1", "gpub": "10.9.0.2", "gpuc": "10.9.0.3"}
NICS = {"gpua": "eth0", "gpub": "ens2", "gpuc": "eno1"}


def topology(*hosts: str, **changes: Any) -> Topology:
    nodes = [
        Node(h, "worker", IPS[h], NICS[h], (NICS[h],), NICS[h], (), gpus=1)
        for h in hosts or ("gpua", "gpub")
    ]
    return Topology(tuple(replace(node, **changes) for node in (replace(nodes[0], role="head"),
                                                                 *nodes[1:])))  # fmt: skip


def verdict(found: FabricReport, *hosts: str, speed: int | None = 10_000) -> FabricVerdict:
    kind = "physical" if speed else "virtual"
    facts = {h: host_facts(nic(NICS[h], IPS[h], speed=speed, kind=kind)) for h in IPS}
    return judge(found, topology(*hosts), {}, facts, "demo.yaml")


def seen(*hosts: str) -> list[SeenNode]:
    return [SeenNode(host, {}) for host in hosts]


def errors(found: FabricReport, *hosts: str) -> list[tuple[str | None, str]]:
    return [(one.host, one.summary) for one in verdict(found, *hosts).errors]


def test_a_host_is_judged_by_its_rank_that_sends_to_others() -> None:
    """Of three ranks on a host, the ring's middle ones only send to each other."""
    found = report("two-h200-over-sockets")
    beside = report("two-h200-over-nvlink").ranks[0]
    sends = found.ranks[1]
    first, last = (replace(beside, rank=rank, host=sends.host) for rank in (1, 3))
    found = replace(found, ranks=[found.ranks[0], first, replace(sends, rank=2), last])
    line = verdict(found, speed=40_000).lines[1]
    assert "Socket on eth0 (gpua), ens2 (gpub), NVLink inside the hosts" in line


def test_two_h200_over_sockets() -> None:
    found = verdict(report("two-h200-over-sockets"), speed=40_000)
    assert not found.errors
    assert found.lines == (
        "Gloo, 2 ranks on 2 hosts: Socket on eth0 (gpua), ens2 (gpub), 18.6 Gbit/s of 40, "
        "137 us a small all-reduce",
        "NCCL, 2 ranks on 2 hosts: Socket on eth0 (gpua), ens2 (gpub), 29 Gbit/s of 40, "
        "64 us a small all-reduce",
    )
    assert found.network is not None
    assert found.network.backend == "nccl"
    assert found.notes == ()


def test_two_h200_of_one_host() -> None:
    own = Topology((Node("both", "head", "127.0.0.1", "lo", ("lo",), "lo", (), gpus=2),))
    found = judge(report("two-h200-over-nvlink"), own, {}, {"both": host_facts()}, "demo.yaml")
    assert found.lines[1].startswith("NCCL, 2 ranks: NVLink inside the host, 2388 Gbit/s")
    assert found.network is None


def test_a_slow_link_is_said() -> None:
    found = verdict(report("two-h200-over-sockets"), speed=100_000)
    assert found.notes == (
        "the fabric is slow: 29 Gbit/s of 100 Gbit/s (29%); clusterctl check measures every pair "
        "of hosts",
    )


def test_virtual_nics_tell_no_speed() -> None:
    found = verdict(report("two-h200-over-sockets"), speed=None)
    assert " of " not in found.lines[1].partition("(gpub)")[2]
    assert found.notes == ()


def test_infiniband_is_compared_with_the_ports_rate() -> None:
    base = report("two-h200-over-sockets")
    ranks = [replace(rank, log=IB) for rank in base.ranks]
    device = replace(rdma("mlx5_0"), ports=(RdmaPort(1, True, "InfiniBand", 200_000.0, ()),))
    facts = {h: host_facts(rdma=(device,)) for h in ("gpua", "gpub")}
    found = judge(replace(base, ranks=ranks), topology(rdma=("mlx5_0:1",)), {}, facts, "demo.yaml")
    assert "IB mlx5_0+mlx5_1 with GPUDirect, 29 Gbit/s of 200" in found.lines[1]


def test_sockets_where_rdma_was_chosen_are_said() -> None:
    found = judge(
        report("two-h200-over-sockets"), topology(rdma=("mlx5_0:1",)), {}, {}, "demo.yaml"
    )
    assert [note.split(",")[0] for note in found.notes] == [
        "gpua has RDMA (mlx5_0:1)",
        "gpub has RDMA (mlx5_0:1)",
    ]


def test_nccl_on_another_interface_than_told() -> None:
    base = report("two-h200-over-sockets")
    log = [line.replace("ens2", "docker0") for line in base.ranks[1].log]
    found = verdict(replace(base, ranks=[base.ranks[0], replace(base.ranks[1], log=log)]))
    assert [(e.host, e.summary) for e in found.errors] == [
        ("gpub", "NCCL uses docker0 instead of ens2")
    ]


def test_an_environment_that_does_not_reach_rays_processes() -> None:
    wanted = {"gpub": {"GLOO_SOCKET_IFNAME": "ens3", "NCCL_IB_HCA": ""}}
    found = judge(report("two-h200-over-sockets"), topology(), wanted, {}, "demo.yaml")
    (error,) = found.errors
    assert str(error) == (
        "gpub: a process that Ray starts on it has GLOO_SOCKET_IFNAME=ens2, but needs "
        "GLOO_SOCKET_IFNAME=ens3"
    )
    assert error.hint == "clusterctl bootstrap demo.yaml"


def test_one_rank_proves_nothing_and_says_so() -> None:
    assert verdict(FabricReport(1.0, seen=seen("gpua")), "gpua").lines == (NOTHING,)


def test_a_host_where_ray_starts_nothing() -> None:
    (error,) = verdict(FabricReport(20.0, "arrive", absent={"gpub": "it is not in Ray"})).errors
    assert isinstance(error, RayNotFormed)
    assert (error.host, error.detail) == ("gpub", "it is not in Ray")


def ranks(*phases: str, **changes: Any) -> list[RankReport]:
    hosts = list(IPS)
    return [
        replace(RankReport(n, hosts[n], 0, phase, "gloo"), **changes)
        for n, phase in enumerate(phases)
    ]


def test_the_rank_that_did_not_join_is_named() -> None:
    found = FabricReport(15.0, "gloo", "not within 15 s", ranks=ranks("joined", "imported"))
    (error,) = verdict(found).errors
    assert str(error) == (
        "gpub: the all-reduce over Gloo failed: rank 1 did not join (not within 15 s)"
    )
    assert error.hint == "clusterctl check demo.yaml tests ens2 of gpub with every other host"


def test_pairs_name_the_host_that_fails_with_everybody() -> None:
    pairs = [
        PairReport("gpua", "gpub", "gloo", ok=False, error="not within 15 s"),
        PairReport("gpub", "gpuc", "gloo", ok=False, error="not within 15 s"),
        PairReport("gpua", "gpuc", "gloo", ok=True),
    ]
    found = FabricReport(
        40.0,
        "gloo",
        "not within 15 s",
        ranks=ranks("imported", "imported", "imported"),
        pairs=pairs,
    )
    assert [host for host, _ in errors(found, *IPS)] == ["gpub"]


def test_what_a_library_could_not_reach_is_named_by_host_nic_and_port() -> None:
    text = "Gloo connectFullMesh failed: Connection refused, remote=[10.9.0.2]:40123"
    both = ranks("imported", "imported")
    found = FabricReport(
        5.0, "gloo", text, seen=seen("gpua", "gpub"), ranks=[replace(both[0], error=text), both[1]]
    )
    ((host, said),) = errors(found)
    assert host == "gpua"
    assert said.endswith("it could not reach gpub's ens2, 10.9.0.2 port 40123")


def test_wrong_sums_are_an_error() -> None:
    text = "gloo all-reduce gave 7 wrong elements"
    found = FabricReport(5.0, "gloo", text, ranks=ranks("joined", "joined", error=text))
    assert [host for host, _ in errors(found)] == ["gpua", "gpub"]


def test_a_host_without_torch() -> None:
    text = "ModuleNotFoundError: No module named 'torch'"
    both = ranks("imported", "started")
    found = FabricReport(5.0, "import", text, ranks=[both[0], replace(both[1], error=text)])
    (error,) = verdict(found).errors
    assert error.host == "gpub"
    assert text in error.summary


def test_a_gate_that_could_not_join_ray() -> None:
    (error,) = verdict(FabricReport(0.0, "gate", "ConnectionError: no")).errors
    assert isinstance(error, ClusterctlError)
    assert (error.host, error.exit_code, error.detail) == ("gpua", 9, "ConnectionError: no")


@pytest.mark.parametrize(
    ("bits", "words"), [(9.31e9, "9.31 Gbit/s"), (4.78e8, "478 Mbit/s"), (2.388e12, "2388 Gbit/s")]
)
def test_rates_as_people_say_them(bits: float, words: str) -> None:
    assert in_words(bits) == words


def test_the_slow_one_is_the_network_and_not_what_is_inside_a_host() -> None:
    found = FabricReport(
        5.0,
        seen=seen("gpua"),
        collectives=[Collective("gloo", 2, 1, 1e8, 1e-4, 2**20)],
    )
    assert verdict(found, "gpua").notes == ()
