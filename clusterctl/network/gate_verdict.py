"""What the gate's report proves, in words and figures, or what it names as broken. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.network.gate_failures import backend_name, failures
from clusterctl.network.nccl_log import Carried, read_log
from clusterctl.node.fabric_documents import Collective, FabricReport
from clusterctl.ray_cluster.environment import PER_NODE
from clusterctl.ray_cluster.topology import Node, Topology

# Below this share of the line's rate a link is called slow. NCCL over sockets reached three
# quarters of what iperf3 did on two H200 (docs/fabric.md).
SLOW = 0.5


@dataclass(frozen=True)
class FabricVerdict:
    """`errors` empty: all ranks reached each other as serving will."""

    errors: tuple[ClusterctlError, ...]
    lines: tuple[str, ...] = ()  # What was proven, a sentence each
    notes: tuple[str, ...] = ()  # What works and could be better
    # Between hosts, over what carries tensors; None on a single host
    network: Collective | None = None


def judge(
    report: FabricReport,
    topology: Topology,
    environments: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, HostFacts],
    file: str,
) -> FabricVerdict:
    """`environments`: what each node's container was given; `facts` for the links' speeds;
    `file`: the inventory's, as a command takes it."""
    errors = [*_strayed(report, environments, file), *failures(report, topology, file)]
    if errors:
        return FabricVerdict(tuple(errors))
    carried = {rank.host: read_log(rank.log) for rank in report.ranks if rank.log}
    errors += _elsewhere(carried, _nics(report, "nccl"))
    speed = line_rate(topology, facts, rdma=any(c.between == "IB" for c in carried.values()))
    lines = [
        f"{_ranks(one)}: {_way(one, report, carried)}, {_speed(one, speed)}"
        for one in report.collectives
    ]
    network = next((one for one in reversed(report.collectives) if one.hosts > 1), None)
    notes = [*_detours(report), *_slow(network, speed), *_sockets(carried, topology)]
    return FabricVerdict(tuple(errors), tuple(lines or [NOTHING]), tuple(notes), network)


NOTHING = "one rank in all: nothing crosses a fabric"


def line_rate(topology: Topology, facts: Mapping[str, HostFacts], *, rdma: bool) -> float | None:
    """Bits/s of the slowest host's links for tensors; None where a driver does not tell, as of
    virtual NICs."""
    rates = [_rate(node, facts.get(node.host), rdma=rdma) for node in topology.nodes]
    known = [rate for rate in rates if rate]
    return min(known) if known and len(known) == len(rates) else None


def _rate(node: Node, facts: HostFacts | None, *, rdma: bool) -> float:
    if facts is None:
        return 0.0
    if rdma:
        names = {name.split(":")[0] for name in node.rdma}
        ports = [port for one in facts.rdma if one.name in names for port in one.ports]
        return sum((port.rate or 0.0) * 1e6 for port in ports if port.active)
    nics = [facts.nic(name) for name in node.nccl_nics]
    return sum((nic.speed or 0) * 1e6 for nic in nics if nic and nic.kind != "virtual")


def in_words(bits: float) -> str:
    """`9.3 Gbit/s`, `478 Mbit/s`."""
    if bits < 1e9:
        return f"{bits / 1e6:.0f} Mbit/s"
    return f"{bits / 1e9:.3g} Gbit/s" if bits < 1e12 else f"{bits / 1e9:.0f} Gbit/s"


def _strayed(
    report: FabricReport, environments: Mapping[str, Mapping[str, str]], file: str
) -> list[ClusterctlError]:
    """Variables that a process which Ray starts has otherwise than the node's container."""
    return [
        _stray(node.host, name, node.env.get(name), wanted[name], file)
        for node in report.seen
        for wanted in (environments.get(node.host, {}),)
        for name in PER_NODE
        if name in wanted and node.env.get(name) != wanted[name]
    ]


def _stray(host: str, name: str, seen: str | None, wanted: str, file: str) -> ClusterctlError:
    has = f"{name}={seen}" if seen is not None else f"no {name}"
    return RequirementsNotMet(
        f"a process that Ray starts there has {has}, and {name}={wanted} is wanted",
        host=host,
        hint=f"clusterctl bootstrap {file}",
    )


def _nics(report: FabricReport, purpose: str) -> dict[str, tuple[str, ...]]:
    """By host: the interfaces that its environment names for that."""
    return {
        node.host: tuple(p.nic for p in node.places if purpose in p.purpose.split(", "))
        for node in report.seen
    }


def _elsewhere(
    carried: Mapping[str, Carried], told: Mapping[str, Sequence[str]]
) -> list[ClusterctlError]:
    """Hosts whose NCCL took other interfaces than it was told to."""
    return [
        RequirementsNotMet(
            f"NCCL took {', '.join(one.devices)}, and was told {', '.join(told[host])}",
            host=host,
            hint=f"take NCCL_SOCKET_IFNAME out of env, or correct hosts.{host}.nics.nccl",
        )
        for host, one in carried.items()
        if one.between == "Socket" and told[host] and not set(one.devices) <= set(told[host])
    ]


def _ranks(one: Collective) -> str:
    name = backend_name(one.backend)
    hosts = f" on {one.hosts} hosts" if one.hosts > 1 else ""
    return f"{name}, {one.ranks} ranks{hosts}"


def _speed(one: Collective, line: float | None) -> str:
    """`9.3 Gbit/s of 10, 64 us a small all-reduce`."""
    rate = in_words(one.bandwidth * 8)
    if line and one.hosts > 1:
        whole = in_words(line)
        same = rate.split()[1] == whole.split()[1]
        rate += f" of {whole.split()[0] if same else whole}"
    small = one.latency
    told = f"{small * 1e3:.2g} ms" if small >= 1e-3 else f"{small * 1e6:.0f} us"
    return f"{rate}, {told} a small all-reduce"


def _way(one: Collective, report: FabricReport, carried: Mapping[str, Carried]) -> str:
    if one.backend == "gloo":
        nics = {host: "+".join(names) for host, names in _nics(report, "gloo").items()}
        return "Socket on " + _on_each(nics)
    return _nccl_way(carried, one.hosts)


def _nccl_way(carried: Mapping[str, Carried], hosts: int) -> str:
    """`Socket on eth1`, `IB mlx5_0 with GPUDirect, NVLink inside the hosts`, `NVLink`."""
    inside = sorted({one.inside for one in carried.values() if one.inside})
    if hosts == 1:
        return " and ".join(inside) + " inside the host" if inside else "inside the host"
    names = sorted({one.between for one in carried.values() if one.between})
    if not names:
        return "a transport that its log does not name"
    devices = {host: "+".join(one.devices) or "?" for host, one in carried.items() if one.between}
    joint = " on " if names == ["Socket"] else " "
    direct = all(one.gpudirect for one in carried.values() if one.between)
    way = "/".join(names) + joint + _on_each(devices) + (" with GPUDirect" if direct else "")
    return way + (f", {' and '.join(inside)} inside the hosts" if inside else "")


def _on_each(by_host: Mapping[str, str]) -> str:
    """One name where all hosts have the same, else each with its host."""
    names = set(by_host.values())
    if len(names) == 1:
        return names.pop()
    return ", ".join(f"{name} ({host})" for host, name in by_host.items())


def _detours(report: FabricReport) -> list[str]:
    """Connections that leave by another interface than the one meant for them."""
    own = {
        (node.host, purpose): place
        for node in report.seen
        for place in node.places
        for purpose in place.purpose.split(", ")
    }
    found = []
    for one in report.crossings:
        meant = own.get((one.source, one.purpose.split(", ")[-1]))
        if meant and one.left_by and one.left_by != meant.ip:
            found.append(
                f"{one.source} reaches {one.target}'s {one.nic} ({one.ip}) from {one.left_by} and "
                f"not by {meant.nic}: ip route get {one.ip}"
            )
    return list(dict.fromkeys(found))


def _slow(network: Collective | None, speed: float | None) -> list[str]:
    if network is None or not speed or network.bandwidth * 8 >= SLOW * speed:
        return []
    share = network.bandwidth * 8 / speed
    return [
        f"the fabric is slow: {in_words(network.bandwidth * 8)} of {in_words(speed)} "
        f"({share:.0%}); clusterctl check measures every pair of hosts"
    ]


def _sockets(carried: Mapping[str, Carried], topology: Topology) -> list[str]:
    """RDMA was chosen, and NCCL goes over sockets all the same."""
    return [
        f"{host} has RDMA ({', '.join(topology.node(host).rdma)}), and NCCL takes sockets: "
        "its log says why (NCCL_DEBUG: INFO under env)"
        for host, one in carried.items()
        if one.between == "Socket" and topology.node(host).rdma
    ]
