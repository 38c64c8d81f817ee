"""Convert the gate's report to sentences and figures, or to errors that name host, NIC and port.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clusterctl.errors import ClusterctlError, RayNotFormed, RequirementsNotMet, StepFailed
from clusterctl.facts.candidates import speed_of
from clusterctl.facts.model import HostFacts
from clusterctl.network.nccl_log import NcclTransports, peers, read_log, warnings
from clusterctl.node.fabric_documents import Collective, FabricReport, RankReport
from clusterctl.ray_cluster.nodes import PER_NODE
from clusterctl.ray_cluster.topology import Topology

# A link below this share of its nominal rate is called slow. NCCL over sockets reached three
# quarters of what iperf3 did on two H200 (docs/fabric.md).
SLOW = 0.5

NOTHING = "only one rank: nothing crosses a fabric"

_PHASES = ("started", "imported", "store", "joined", "correct", "measured", "done")
_BEFORE_COLLECTIVES = {
    "import": "torch was not imported",
    "store": "torch's store did not open",
}


@dataclass(frozen=True)
class FabricVerdict:
    """The verdict. Without `errors`, all ranks reached each other as they do in serving."""

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
    `facts`: for link speeds and addresses; `file`: path of the inventory, for commands in hints."""
    errors: list[ClusterctlError] = []
    for node in report.seen:
        # Ray's processes must have the variables that the container was given.
        wanted = environments.get(node.host, {})
        for name in PER_NODE:
            seen = node.env.get(name)
            if name in wanted and seen != wanted[name]:
                has = f"{name}={seen}" if seen is not None else f"no {name}"
                text = f"a process that Ray starts on it has {has}, but needs {name}={wanted[name]}"
                fix = f"clusterctl bootstrap {file}"
                errors.append(RequirementsNotMet(text, host=node.host, hint=fix))
    errors += failures(report, topology, facts, file)
    if errors:
        return FabricVerdict(tuple(errors))
    carried = _carried(report)
    for host, one in carried.items():
        chosen = topology.node(host).nccl_nics
        if one.between == "Socket" and not set(one.devices) <= set(chosen):
            text = f"NCCL uses {', '.join(one.devices)} instead of {', '.join(chosen)}"
            fix = f"correct hosts.{host}.nics.nccl, then: clusterctl bootstrap {file}"
            errors.append(RequirementsNotMet(text, host=host, hint=fix))
    rate = line_rate(topology, facts, rdma=any(c.between == "IB" for c in carried.values()))
    lines = [_sentence(one, topology, carried, rate) for one in report.collectives]
    network = next((one for one in reversed(report.collectives) if one.hosts > 1), None)
    notes = []
    if network and rate and network.bandwidth * 8 < SLOW * rate:
        notes.append(
            f"the fabric is slow: {in_words(network.bandwidth * 8)} of {in_words(rate)} "
            f"({network.bandwidth * 8 / rate:.0%}); clusterctl check measures every pair of hosts"
        )
    notes += (
        f"{host} has RDMA ({', '.join(topology.node(host).rdma)}), but NCCL uses sockets: its log "
        "says why (NCCL_DEBUG: INFO under env)"
        for host, one in carried.items()
        if one.between == "Socket" and topology.node(host).rdma
    )
    return FabricVerdict(tuple(errors), tuple(lines or [NOTHING]), tuple(notes), network)


def _carried(report: FabricReport) -> dict[str, NcclTransports]:
    """Return, by host, the transports of one rank, preferably one that sends to other hosts: in a
    ring, the rest only send to a neighbour on the same host."""
    carried: dict[str, NcclTransports] = {}
    for rank in report.ranks:
        if rank.log:
            one = read_log(rank.log)
            other = carried.get(rank.host, one)
            chosen = other if other.between else one
            carried[rank.host] = replace(chosen, inside=one.inside or other.inside)
    return carried


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
            rates.append(sum((speed_of(of_host, name) or 0) * 1e6 for name in node.nccl_nics))
    return min(rates) if rates and all(rates) else None


def in_words(bits: float) -> str:
    """Format bits/s: `9.3 Gbit/s`, `478 Mbit/s`."""
    if bits < 1e9:
        return f"{bits / 1e6:.0f} Mbit/s"
    return f"{bits / 1e9:.3g} Gbit/s" if bits < 1e12 else f"{bits / 1e9:.0f} Gbit/s"


def _sentence(
    one: Collective, topology: Topology, carried: Mapping[str, NcclTransports], line: float | None
) -> str:
    """`NCCL, 2 ranks on 2 hosts: Socket on eth1, 9.3 Gbit/s of 10, 64 us a small all-reduce`."""
    if one.backend == "gloo":
        way = "Socket on " + _on_each({node.host: node.gloo_nic for node in topology.nodes})
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


def _nccl_way(carried: Mapping[str, NcclTransports], hosts: int) -> str:
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


def failures(
    report: FabricReport, topology: Topology, facts: Mapping[str, HostFacts], file: str
) -> list[ClusterctlError]:
    """Return one error per culprit; none if the gate completed. `file`: path of the inventory, for
    commands in hints."""
    head = topology.head.host
    match report.failed:
        case "":
            return []
        case "arrive" if report.absent:
            return [
                RayNotFormed(
                    "Ray started no process on it for the fabric gate: "
                    + (why.splitlines()[0] if why else "-"),
                    host=host,
                    hint=f"{_load(host)}, then: clusterctl check {file} --fabric",
                    detail=why,
                )
                for host, why in report.absent.items()
            ]
        case "time":
            # One for each host that had not reported; for the head if those are not known.
            silent = "it had not reported" if report.awaited else "no host is known to lag behind"
            late = {
                host: f"rank {', '.join(map(str, ranks))} had not reported" if ranks else silent
                for host, ranks in (report.awaited or {head: []}).items()
            }
            return [
                StepFailed(
                    f"the fabric gate took longer than {report.error}, and {what}",
                    host=host,
                    hint=f"{_load(host)}, then: clusterctl check {file} --fabric",
                )
                for host, what in late.items()
            ]
        case "arrive" | "gate":
            why = f": {report.error.splitlines()[0][:200]}" if report.error else ""
            return [
                RayNotFormed(
                    f"the fabric gate could not join Ray on the head{why}",
                    host=head,
                    hint=f"clusterctl check {file} shows whether all nodes are still in Ray",
                    detail=report.error or None,
                )
            ]
        case _:  # import, store, or a backend
            hosts = _culprits(report)
            by_host: dict[str, list[RankReport]] = {}
            for rank in report.ranks:
                if rank.host in hosts:
                    by_host.setdefault(rank.host, []).append(rank)
            return [
                _failed_ranks(report, host, ranks, topology, facts, file)
                for host, ranks in by_host.items()
            ]


def _culprits(report: FabricReport) -> set[str]:
    """Return the hosts whose pairs all failed, if another pair succeeded; else those with a rank
    that reported an error; else those of the ranks that made the least progress."""
    tried = {host for pair in report.pairs for host in (pair.first, pair.second)}
    worked = {host for pair in report.pairs if pair.ok for host in (pair.first, pair.second)}
    if worked and tried - worked:
        return tried - worked

    if broken := {rank.host for rank in report.ranks if rank.error}:
        return broken

    progress = [(_progress(rank, report.failed), rank.host) for rank in report.ranks]
    least = min(progress, default=(0, ""))[0]
    return {host for reached, host in progress if reached == least}


def backend_name(backend: str) -> str:
    """The backend's name as users know it: `Gloo`, `NCCL`."""
    return "Gloo" if backend == "gloo" else backend.upper()


def _load(host: str) -> str:
    return f"clusterctl exec --limit {host} -- uptime"


def _progress(rank: RankReport, step: str) -> int:
    """Index of the last phase that the rank reached in `step`; 0 if it is in an earlier step."""
    return _PHASES.index(rank.phase) if rank.backend == step or step in _BEFORE_COLLECTIVES else 0


# Between GPUs of one host: NCCL's troubleshooting guide, "GPU Direct"
_INSIDE = (
    "its GPUs do not reach each other directly, or one hangs. To find out: nvidia-smi (does it "
    "answer?), cat /sys/kernel/iommu_groups/*/type (DMA: boot with iommu=pt), lspci -vvv | grep "
    'ACSCtl (ReqRedir+: disable ACS in the firmware). Until then: env: {NCCL_P2P_DISABLE: "1"} '
    "in the inventory"
)


def _failed_ranks(
    report: FabricReport,
    host: str,
    ranks: Sequence[RankReport],
    topology: Topology,
    facts: Mapping[str, HostFacts],
    file: str,
) -> ClusterctlError:
    what = _BEFORE_COLLECTIVES.get(
        report.failed, f"the all-reduce over {backend_name(report.failed)} failed"
    )
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    text = f"{what}: rank {numbers} {_lag(ranks[0], report)}"

    complaints = [text for rank in ranks for text in (rank.error, *warnings(rank.log)) if text]
    if where := _unreached(complaints, facts):
        text += f"; it could not reach {where}"

    said = [f"rank {rank.rank}: {line}" for rank in ranks for line in rank.tail[-8:]]
    return RequirementsNotMet(
        text,
        host=host,
        hint=_fix(report.failed, host, topology, file),
        detail="\n".join([*dict.fromkeys(complaints), *said]) or None,
    )


def _lag(rank: RankReport, report: FabricReport) -> str:
    """Return how far the rank got, or its error."""
    if rank.error:
        return f"said: {rank.error.splitlines()[0][:200]}"
    if rank.phase == "started":
        return f"did not import torch ({report.error})"
    if _progress(rank, report.failed) < _PHASES.index("joined"):
        return f"did not join ({report.error})"
    return f"joined and got no further ({report.error})"


def _unreached(complaints: Sequence[str], facts: Mapping[str, HostFacts]) -> str:
    """Return the first of a host's addresses in the libraries' errors: `gpu2's ens3, 10.0.0.2 port
    40123`; "" if none."""
    owners = {
        address.ip: f"{host}'s {nic.name}"
        for host, of_host in facts.items()
        for nic in of_host.nics
        for address in nic.addresses
        if nic.kind != "loopback"
    }
    for text in complaints:
        for ip, port in peers(text):
            if ip in owners:
                return f"{owners[ip]}, {ip} port {port}"
    return ""


def _fix(step: str, host: str, topology: Topology, file: str) -> str:
    """Return the hint for ranks of `host` that failed in `step`."""
    if step == "import":
        return "the image needs a torch that works on this host: clusterctl exec -- nvidia-smi"
    if step == "store":
        return (
            "check its load and its name servers, since torch first looks up the name of its "
            f"address: clusterctl check {file}; {_load(host)}"
        )
    if len(topology.nodes) == 1:
        return _INSIDE
    node = topology.node(host)
    nics = node.gloo_nic if step == "gloo" else ", ".join(node.nccl_nics)
    without = "; without RDMA: network.rdma: false" if node.rdma else ""
    return f"clusterctl check {file} tests {nics} of {host} with every other host{without}"
