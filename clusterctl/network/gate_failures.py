"""Convert a failed gate's report to errors that name host, NIC and port. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from clusterctl.errors import ClusterctlError, RayNotFormed, RequirementsNotMet, StepFailed
from clusterctl.network.nccl_log import peers, warnings
from clusterctl.node.fabric_documents import Crossing, FabricReport, RankReport, SeenNode
from clusterctl.ray_cluster.topology import Topology

# Linux's default ip_local_port_range: Gloo, NCCL and vLLM's queues listen there
EPHEMERAL = "32768-60999"

_VARIABLE = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME", "control": "VLLM_HOST_IP"}
_PHASES = ("started", "imported", "store", "joined", "correct", "measured", "done")
_BEFORE_COLLECTIVES = {
    "import": "torch was not imported",
    "store": "torch's store did not open",
}


def failures(report: FabricReport, topology: Topology, file: str) -> list[ClusterctlError]:
    """Return one error for each culprit; none if the gate ran to its end. `file`: path of the
    inventory, for commands in hints."""
    head = topology.head.host
    match report.failed:
        case "":
            return []
        case "arrive" if report.absent:
            return [
                RayNotFormed(
                    "Ray started no process there for the fabric gate: "
                    + (why.splitlines()[0] if why else "-"),
                    host=host,
                    hint=f"{_load(host)}, then: clusterctl check {file} --fabric",
                    detail=why,
                )
                for host, why in report.absent.items()
            ]
        case "places":
            return [error for node in report.seen for error in _of_places(node, file)]
        case "crossings":
            return _of_crossings(report.crossings, file)
        case "time":
            # One for each host that had not reported; for the head if those are not known.
            awaited = report.awaited or {head: []}
            return [_late(host, ranks, report, file) for host, ranks in awaited.items()]
        case "arrive" | "gate":
            why = f": {report.error.splitlines()[0][:200]}" if report.error else ""
            return [
                RayNotFormed(
                    f"the fabric gate could not join Ray on the head{why}",
                    host=head,
                    hint=f"clusterctl check {file} tells whether Ray is as bootstrap formed it",
                    detail=report.error or None,
                )
            ]
        case _:  # import, store, or a backend
            # The hosts of the ranks that failed: hosts whose pairs all failed, if some other pair
            # succeeded; else hosts with a rank that reported an error; else those of the ranks that
            # made the least progress.
            tried = {host for pair in report.pairs for host in (pair.first, pair.second)}
            sound = {host for p in report.pairs if p.ok for host in (p.first, p.second)}
            hosts = (tried - sound if sound else set()) or _behind(report)
            by_host: dict[str, list[RankReport]] = {}
            for rank in report.ranks:
                if rank.host in hosts:
                    by_host.setdefault(rank.host, []).append(rank)
            return [
                _failed_ranks(report, host, ranks, topology, file)
                for host, ranks in by_host.items()
            ]


def backend_name(backend: str) -> str:
    """The backend's name as users know it: `Gloo`, `NCCL`."""
    return "Gloo" if backend == "gloo" else backend.upper()


def _late(host: str, ranks: Sequence[int], report: FabricReport, file: str) -> ClusterctlError:
    if ranks:
        what = f"rank {', '.join(map(str, ranks))} had not reported"
    else:
        what = "it had not reported" if report.awaited else "no host is known to be behind"
    return StepFailed(
        f"the fabric gate took longer than {report.error}, and {what}",
        host=host,
        hint=f"{_load(host)}, then: clusterctl check {file} --fabric",
    )


def _load(host: str) -> str:
    return f"clusterctl exec --limit {host} -- uptime"


def _of_places(node: SeenNode, file: str) -> Iterator[ClusterctlError]:
    """Yield an error for each interface that the host's environment names but that is unusable."""
    usable = ", ".join(name for name, addresses in node.interfaces.items() if addresses)
    for place in node.places:
        if not place.problem:
            continue
        purposes = place.purpose.split(", ")
        named = " and ".join(_VARIABLE[purpose] for purpose in purposes)
        nic = place.nic or place.ip
        text = {
            "missing": f"{named} names {nic}, and its container has {usable}",
            "down": f"{named} names {nic}, which is down",
            "no address": f"{named} names {nic}, which has no address",
        }[place.problem]
        down = place.problem == "down"
        hint = f"ip link set {nic} up" if down else _rename(node.host, purposes, file)
        yield RequirementsNotMet(text, host=node.host, hint=hint)


def _rename(host: str, purposes: Sequence[str], file: str) -> str:
    keys = " and ".join(f"hosts.{host}.nics.{purpose}" for purpose in purposes)
    return f"correct {keys}, then: clusterctl bootstrap {file}"


def _of_crossings(crossings: Sequence[Crossing], file: str) -> list[ClusterctlError]:
    """Return one error for each address that cannot be reached; if a host reaches no other host
    while others do, return an error for that host instead."""
    broken = [one for one in crossings if one.error]
    # Hosts that reach no address, although other hosts reach those of at least two of its peers
    reached = {(one.target, one.ip) for one in crossings if not one.error}
    cut_off = set()
    for source in {one.source for one in crossings if one.source}:
        own = [one for one in crossings if one.source == source]
        sound = {one.target for one in own if (one.target, one.ip) in reached}
        if len(sound) > 1 and all(one.error for one in own):
            cut_off.add(source)
    errors: list[ClusterctlError] = []
    for host in sorted(cut_off):
        own = [one for one in broken if one.source == host]
        one = own[0]
        errors.append(
            RequirementsNotMet(
                f"it reaches no other host: {one.target}'s {one.nic}, {one.ip} port {one.port}: "
                f"{_lower(one.error)}",
                host=host,
                hint=f"on {host}: ip route get {one.ip}; and the firewall's rules for outgoing "
                "packets",
                detail="\n".join(f"{it.target} {it.nic} {it.ip}: {it.error}" for it in own),
            )
        )
    by_address: dict[tuple[str, str], list[Crossing]] = {}
    for one in broken:
        if one.source not in cut_off:
            by_address.setdefault((one.target, one.ip), []).append(one)
    return errors + [_not_reached(tried, file) for tried in by_address.values()]


def _not_reached(tried: Sequence[Crossing], file: str) -> ClusterctlError:
    """Return the error for one address that at least one other host cannot reach."""
    one = tried[0]
    users = " and ".join(_VARIABLE[purpose] for purpose in one.purpose.split(", "))
    if not one.source:
        summary = f"{one.nic} ({users}): {_lower(one.error)} ({one.ip})"
        return RequirementsNotMet(summary, host=one.target, hint=f"ip addr show {one.nic}")
    sources = ", ".join(each.source for each in tried)
    return RequirementsNotMet(
        f"{sources} cannot reach its {one.nic} ({users}) at {one.ip} port {one.port}: "
        f"{_lower(one.error)}",
        host=one.target,
        hint=_way_in(one, file),
    )


def _way_in(one: Crossing, file: str) -> str:
    """Return the hint for an address that cannot be reached, chosen by the kind of failure."""
    rename = _rename(one.target, one.purpose.split(", "), file)
    if ip_address(one.ip).is_loopback:
        return f"{one.nic} is the host's loopback: {rename}"
    if "answers there" in one.error:
        return f"{one.ip} is on both hosts: {rename}"
    if "64 KiB" in one.error:
        return (
            f"large packets are lost on the way to {one.nic} of {one.target}: clusterctl check "
            f"{file} tells the MTU that passes"
        )
    if "unreachable" in one.error.lower() or "route" in one.error.lower():
        return f"{one.source} has no route to {one.ip} (ip route get {one.ip}): {rename}"
    return (
        f"let TCP {EPHEMERAL} through on {one.nic} of {one.target} (sudo iptables -S INPUT; sudo "
        f"nft list ruleset), or look at the cable and the route: ip route get {one.ip} on "
        f"{one.source}"
    )


def _behind(report: FabricReport) -> set[str]:
    """Hosts of ranks that reported an error, else of the ranks that made the least progress."""
    wrong = {rank.host for rank in report.ranks if rank.error}
    if wrong:
        return wrong
    progress = {rank.rank: _progress(rank, report.failed) for rank in report.ranks}
    least = min(progress.values(), default=0)
    return {rank.host for rank in report.ranks if progress[rank.rank] == least}


def _progress(rank: RankReport, step: str) -> int:
    """Index of the last phase that the rank reached in `step`; 0 while it is in an earlier one."""
    return _PHASES.index(rank.phase) if rank.backend == step or step in _BEFORE_COLLECTIVES else 0


def _failed_ranks(
    report: FabricReport, host: str, ranks: Sequence[RankReport], topology: Topology, file: str
) -> ClusterctlError:
    complaints = [text for rank in ranks for text in (rank.error, *warnings(rank.log)) if text]
    # The host and NIC that hold the address which a library could not reach
    owners = {p.ip: (node.host, p.nic) for node in report.seen for p in node.places}
    named = (peer for text in complaints for peer in peers(text))
    ip, port = next((peer for peer in named if peer[0] in owners), ("", 0))
    where = ""
    if ip:
        owner, nic = owners[ip]
        where = f"what it could not reach is {owner}'s {nic}, {ip} port {port}"
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    first = ranks[0]
    if first.error:
        lag = f"said: {first.error.splitlines()[0][:200]}"
    elif first.phase == "started":
        lag = f"did not import torch ({report.error})"
    elif _progress(first, report.failed) < _PHASES.index("joined"):
        lag = f"did not join ({report.error})"
    else:
        lag = f"joined and got no further ({report.error})"
    what = _BEFORE_COLLECTIVES.get(
        report.failed, f"the all-reduce over {backend_name(report.failed)} failed"
    )
    text = f"{what}: rank {numbers} {lag}"
    seen = [f"rank {rank.rank}: {line}" for rank in ranks for line in rank.tail[-8:]]
    return RequirementsNotMet(
        text + (f"; {where}" if where else ""),
        host=host,
        hint=_fix(report.failed, host, topology, file),
        detail="\n".join([*dict.fromkeys(complaints), *seen]) or None,
    )


def _fix(step: str, host: str, topology: Topology, file: str) -> str:
    if step == "import":
        return "the image must have torch that works on this host: clusterctl exec -- nvidia-smi"
    if step == "store":
        return (
            f"look at its load, and at its name servers, since torch asks for the name of its "
            f"address first: clusterctl check {file}; {_load(host)}"
        )
    node = topology.node(host)
    nics = node.gloo_nic if step == "gloo" else ", ".join(node.nccl_nics)
    without = "; without RDMA: network.rdma: false" if node.rdma else ""
    return f"clusterctl check {file} tries {nics} of {host} with every other host{without}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
