"""A gate that failed, as errors that name host, NIC and port. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address

from clusterctl.errors import ClusterctlError, RayNotFormed, RequirementsNotMet, StepFailed
from clusterctl.network.nccl_log import peers, warnings
from clusterctl.node.fabric_documents import Crossing, FabricReport, Place, RankReport
from clusterctl.ray_cluster.topology import Topology

# Linux's own range (ip_local_port_range): Gloo, NCCL and vLLM's queues listen there
EPHEMERAL = "32768-60999"

_VARIABLE = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME", "control": "VLLM_HOST_IP"}
_PHASES = ("started", "imported", "store", "joined", "correct", "measured", "done")
_BEFORE_COLLECTIVES = {
    "import": "torch was not imported",
    "store": "the ranks' meeting point did not open",
}


def failures(report: FabricReport, topology: Topology, file: str) -> list[ClusterctlError]:
    """One error for each culprit; none when the gate came to its end. `file`: the inventory's,
    as a command takes it."""
    match report.failed:
        case "":
            return []
        case "arrive" if report.absent:
            return [_absent(host, why, file) for host, why in report.absent.items()]
        case "places":
            return [error for node in report.seen for error in _of_places(report, node.host, file)]
        case "crossings":
            return list(_of_crossings(report.crossings, file))
        case "time":
            return _of_time(report, topology, file)
        case "arrive" | "gate":
            return [_broken(report, topology, file)]
        case _:  # import, store, or a backend
            return _of_ranks(report, topology, file)


def backend_name(backend: str) -> str:
    """As people write it."""
    return "Gloo" if backend == "gloo" else backend.upper()


def _absent(host: str, why: str, file: str) -> ClusterctlError:
    return RayNotFormed(
        f"Ray started no process there for the fabric gate: {why.splitlines()[0] if why else '-'}",
        host=host,
        hint=f"{_load(host)}, then: clusterctl check {file} --fabric",
        detail=why,
    )


def _broken(report: FabricReport, topology: Topology, file: str) -> ClusterctlError:
    host = topology.head.host
    return RayNotFormed(
        "the fabric gate could not join Ray on the head"
        + (f": {report.error.splitlines()[0][:200]}" if report.error else ""),
        host=host,
        hint=f"clusterctl check {file} tells whether Ray is as bootstrap formed it",
        detail=report.error or None,
    )


def _of_time(report: FabricReport, topology: Topology, file: str) -> list[ClusterctlError]:
    """One for each host that was waited for; for the head where that is not known."""
    awaited = report.awaited or {topology.head.host: []}
    return [_late(host, ranks, report, file) for host, ranks in awaited.items()]


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


def _of_places(report: FabricReport, host: str, file: str) -> Iterator[ClusterctlError]:
    """Interfaces that the environment names on that host, and that cannot be used."""
    seen = next(node for node in report.seen if node.host == host)
    usable = ", ".join(name for name, addresses in seen.interfaces.items() if addresses)
    for place in seen.places:
        if place.problem:
            yield _unusable(host, place, usable, file)


def _unusable(host: str, place: Place, usable: str, file: str) -> ClusterctlError:
    purposes = place.purpose.split(", ")
    named = " and ".join(_VARIABLE[purpose] for purpose in purposes)
    what = place.nic or place.ip
    text = {
        "missing": f"{named} names {what}, and its container has {usable}",
        "down": f"{named} names {what}, which is down",
        "no address": f"{named} names {what}, which has no address",
    }[place.problem]
    hint = f"ip link set {what} up" if place.problem == "down" else _rename(host, purposes, file)
    return RequirementsNotMet(text, host=host, hint=hint)


def _rename(host: str, purposes: Sequence[str], file: str) -> str:
    keys = " and ".join(f"hosts.{host}.nics.{purpose}" for purpose in purposes)
    return f"correct {keys}, then: clusterctl bootstrap {file}"


def _of_crossings(crossings: Sequence[Crossing], file: str) -> list[ClusterctlError]:
    """Those that failed, told once for each address that is not reached; a host that reaches
    nobody while others do is told itself."""
    broken = [one for one in crossings if one.error]
    cut_off = set(_cut_off(crossings))
    errors = [_cannot_leave(host, broken) for host in sorted(cut_off)]
    by_address: dict[tuple[str, str], list[Crossing]] = {}
    for one in broken:
        if one.source not in cut_off:
            by_address.setdefault((one.target, one.ip), []).append(one)
    return errors + [_not_reached(tried, file) for tried in by_address.values()]


def _cut_off(crossings: Sequence[Crossing]) -> Iterator[str]:
    """Hosts that reach none of at least two others which somebody else reaches."""
    reached = {(one.target, one.ip) for one in crossings if not one.error}
    for source in {one.source for one in crossings if one.source}:
        own = [one for one in crossings if one.source == source]
        sound = [one for one in own if (one.target, one.ip) in reached]
        if len({one.target for one in sound}) > 1 and all(one.error for one in own):
            yield source


def _cannot_leave(host: str, broken: Sequence[Crossing]) -> ClusterctlError:
    own = [one for one in broken if one.source == host]
    one = own[0]
    return RequirementsNotMet(
        f"it reaches no other host: {one.target}'s {one.nic}, {one.ip} port {one.port}: "
        f"{_lower(one.error)}",
        host=host,
        hint=f"on {host}: ip route get {one.ip}; and a firewall's rules for what leaves",
        detail="\n".join(f"{each.target} {each.nic} {each.ip}: {each.error}" for each in own),
    )


def _not_reached(tried: Sequence[Crossing], file: str) -> ClusterctlError:
    """One address that at least one other host does not reach."""
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
    """What to do about an address that is not reached, by how it failed."""
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
        return f"{one.source} has no way to {one.ip} (ip route get {one.ip}): {rename}"
    return (
        f"let TCP {EPHEMERAL} through on {one.nic} of {one.target} (sudo iptables -S INPUT; sudo "
        f"nft list ruleset), or look at the cable and the route: ip route get {one.ip} on "
        f"{one.source}"
    )


def _of_ranks(report: FabricReport, topology: Topology, file: str) -> list[ClusterctlError]:
    """The hosts of the ranks that spoilt it: by pairs where there are some, else by what a rank
    said, else those that did not come as far as the others."""
    ranks = [rank for rank in report.ranks if rank.host in (_by_pairs(report) or _behind(report))]
    by_host: dict[str, list[RankReport]] = {}
    for rank in ranks:
        by_host.setdefault(rank.host, []).append(rank)
    return [_spoilt(report, host, each, topology, file) for host, each in by_host.items()]


def _by_pairs(report: FabricReport) -> set[str]:
    """Hosts that failed with every partner, where some pair without them went well."""
    sound = {host for pair in report.pairs if pair.ok for host in (pair.first, pair.second)}
    tried = {host for pair in report.pairs for host in (pair.first, pair.second)}
    return tried - sound if sound else set()


def _behind(report: FabricReport) -> set[str]:
    """Hosts of ranks with an error of their own, or else of the ranks that are least far."""
    wrong = {rank.host for rank in report.ranks if rank.error}
    if wrong:
        return wrong
    progress = {rank.rank: _progress(rank, report.failed) for rank in report.ranks}
    least = min(progress.values(), default=0)
    return {rank.host for rank in report.ranks if progress[rank.rank] == least}


def _progress(rank: RankReport, step: str) -> int:
    """How far it came in that step; a phase of the step before counts as nothing."""
    return _PHASES.index(rank.phase) if rank.backend == step or step in _BEFORE_COLLECTIVES else 0


def _spoilt(
    report: FabricReport, host: str, ranks: Sequence[RankReport], topology: Topology, file: str
) -> ClusterctlError:
    complaints = [text for rank in ranks for text in (rank.error, *warnings(rank.log)) if text]
    where = _peer_named(complaints, report)
    numbers = ", ".join(str(rank.rank) for rank in ranks)
    text = f"{_what(report.failed)}: rank {numbers} {_lag(ranks[0], report)}"
    seen = [f"rank {rank.rank}: {line}" for rank in ranks for line in rank.tail[-8:]]
    return RequirementsNotMet(
        text + (f"; {where}" if where else ""),
        host=host,
        hint=_cure(report.failed, host, topology, file),
        detail="\n".join([*dict.fromkeys(complaints), *seen]) or None,
    )


def _what(step: str) -> str:
    collective = f"the all-reduce over {backend_name(step)} did not come about"
    return _BEFORE_COLLECTIVES.get(step, collective)


def _lag(rank: RankReport, report: FabricReport) -> str:
    if rank.error:
        return f"said: {rank.error.splitlines()[0][:200]}"
    if rank.phase == "started":
        return f"did not import torch ({report.error})"
    if _progress(rank, report.failed) < _PHASES.index("joined"):
        return f"did not join ({report.error})"
    return f"joined and came no further ({report.error})"


def _peer_named(complaints: Sequence[str], report: FabricReport) -> str:
    """Whose address it was that a library could not reach."""
    owners: Mapping[str, tuple[str, str]] = {
        place.ip: (node.host, place.nic) for node in report.seen for place in node.places
    }
    for ip, port in (peer for text in complaints for peer in peers(text)):
        if ip in owners:
            host, nic = owners[ip]
            return f"what it could not reach is {host}'s {nic}, {ip} port {port}"
    return ""


def _cure(step: str, host: str, topology: Topology, file: str) -> str:
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
