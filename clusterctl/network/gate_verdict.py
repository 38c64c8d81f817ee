"""Convert the gate's report to sentences and figures, or to errors. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.facts.model import HostFacts
from clusterctl.network.gate_failures import backend_name, failures
from clusterctl.network.nccl_log import Carried, read_log
from clusterctl.node.fabric_documents import Collective, FabricReport
from clusterctl.ray_cluster.environment import PER_NODE
from clusterctl.ray_cluster.topology import Topology

# A link below this share of its nominal rate is called slow. NCCL over sockets reached three
# quarters of what iperf3 did on two H200 (docs/fabric.md).
SLOW = 0.5

NOTHING = "one rank in all: nothing crosses a fabric"


@dataclass(frozen=True)
class FabricVerdict:
    """The judged report. Without `errors`, all ranks reached each other as in serving."""

    errors: tuple[ClusterctlError, ...]
    lines: tuple[str, ...] = ()  # results, one sentence each
    notes: tuple[str, ...] = ()  # what works but could be better
    # The collective between hosts, over the transport of tensors; None on a single host
    network: Collective | None = None


def judge(
    report: FabricReport,
    topology: Topology,
    environments: Mapping[str, Mapping[str, str]],
    facts: Mapping[str, HostFacts],
    file: str,
) -> FabricVerdict:
    """Judge the gate's report. `environments`: the environment given to each node's container;
    `facts`: for the links' speeds; `file`: path of the inventory, for commands in hints."""
    errors = [*_wrong_environment(report, environments, file), *failures(report, topology, file)]
    if errors:
        return FabricVerdict(tuple(errors))
    carried = {rank.host: read_log(rank.log) for rank in report.ranks if rank.log}
    told = _nics(report, "nccl")
    errors += (
        RequirementsNotMet(
            f"NCCL uses {', '.join(one.devices)} instead of {', '.join(told[host])}",
            host=host,
            hint=f"take NCCL_SOCKET_IFNAME out of env, or correct hosts.{host}.nics.nccl",
        )
        for host, one in carried.items()
        if one.between == "Socket" and told[host] and not set(one.devices) <= set(told[host])
    )
    rate = line_rate(topology, facts, rdma=any(c.between == "IB" for c in carried.values()))
    lines = [_sentence(one, report, carried, rate) for one in report.collectives]
    network = next((one for one in reversed(report.collectives) if one.hosts > 1), None)
    notes = _detours(report)
    if network and rate and network.bandwidth * 8 < SLOW * rate:
        notes.append(
            f"the fabric is slow: {in_words(network.bandwidth * 8)} of {in_words(rate)} "
            f"({network.bandwidth * 8 / rate:.0%}); clusterctl check measures every pair of hosts"
        )
    notes += (
        f"{host} has RDMA ({', '.join(topology.node(host).rdma)}), and NCCL takes sockets: "
        "its log says why (NCCL_DEBUG: INFO under env)"
        for host, one in carried.items()
        if one.between == "Socket" and topology.node(host).rdma
    )
    return FabricVerdict(tuple(errors), tuple(lines or [NOTHING]), tuple(notes), network)


def line_rate(topology: Topology, facts: Mapping[str, HostFacts], *, rdma: bool) -> float | None:
    """Bits/s of the slowest host's links for tensors; None if a driver does not report it, as for
    virtual NICs."""
    rates = []
    for node in topology.nodes:
        of_host = facts.get(node.host)
        if of_host is None:
            return None
        if rdma:
            names = {name.split(":")[0] for name in node.rdma}
            ports = [port for one in of_host.rdma if one.name in names for port in one.ports]
            rates.append(sum((port.rate or 0.0) * 1e6 for port in ports if port.active))
        else:
            nics = [of_host.nic(name) for name in node.nccl_nics]
            rates.append(sum((n.speed or 0) * 1e6 for n in nics if n and n.kind != "virtual"))
    return min(rates) if rates and all(rates) else None


def in_words(bits: float) -> str:
    """Format bits/s: `9.3 Gbit/s`, `478 Mbit/s`."""
    if bits < 1e9:
        return f"{bits / 1e6:.0f} Mbit/s"
    return f"{bits / 1e9:.3g} Gbit/s" if bits < 1e12 else f"{bits / 1e9:.0f} Gbit/s"


def _wrong_environment(
    report: FabricReport, environments: Mapping[str, Mapping[str, str]], file: str
) -> list[ClusterctlError]:
    """Return an error for each variable that differs between Ray's processes and `environments`."""
    found: list[ClusterctlError] = []
    for node in report.seen:
        wanted = environments.get(node.host, {})
        for name in PER_NODE:
            seen = node.env.get(name)
            if name in wanted and seen != wanted[name]:
                has = f"{name}={seen}" if seen is not None else f"no {name}"
                found.append(
                    RequirementsNotMet(
                        f"a process that Ray starts there has {has}, but needs "
                        f"{name}={wanted[name]}",
                        host=node.host,
                        hint=f"clusterctl bootstrap {file}",
                    )
                )
    return found


def _nics(report: FabricReport, purpose: str) -> dict[str, tuple[str, ...]]:
    """Return by host the interfaces that its environment names for `purpose`."""
    return {
        node.host: tuple(p.nic for p in node.places if purpose in p.purpose.split(", "))
        for node in report.seen
    }


def _sentence(
    one: Collective, report: FabricReport, carried: Mapping[str, Carried], line: float | None
) -> str:
    """`NCCL, 2 ranks on 2 hosts: Socket on eth1, 9.3 Gbit/s of 10, 64 us a small all-reduce`."""
    if one.backend == "gloo":
        nics = {host: "+".join(names) for host, names in _nics(report, "gloo").items()}
        way = "Socket on " + _on_each(nics)
    else:
        way = _nccl_way(carried, one.hosts)
    rate = in_words(one.bandwidth * 8)
    if line and one.hosts > 1:
        whole = in_words(line)
        same_unit = rate.split()[1] == whole.split()[1]
        rate += f" of {whole.split()[0] if same_unit else whole}"
    small = one.latency
    latency = f"{small * 1e3:.2g} ms" if small >= 1e-3 else f"{small * 1e6:.0f} us"
    hosts = f" on {one.hosts} hosts" if one.hosts > 1 else ""
    return (
        f"{backend_name(one.backend)}, {one.ranks} ranks{hosts}: {way}, {rate}, "
        f"{latency} a small all-reduce"
    )


def _nccl_way(carried: Mapping[str, Carried], hosts: int) -> str:
    """Format `Socket on eth1`, `IB mlx5_0 with GPUDirect, NVLink inside the hosts`, `NVLink`."""
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
    """Return the name if all hosts have the same one, else each name with its host."""
    names = set(by_host.values())
    if len(names) == 1:
        return names.pop()
    return ", ".join(f"{name} ({host})" for host, name in by_host.items())


def _detours(report: FabricReport) -> list[str]:
    """Return a note for each connection that leaves by another interface than the intended one."""
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
