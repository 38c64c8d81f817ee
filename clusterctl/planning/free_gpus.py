"""The GPUs that a plan may use: free ones, on selected hosts that are not drained."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil

from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.facts.gpu_faults import describe_processes, gpus_of_strangers
from clusterctl.facts.model import GpuReport
from clusterctl.inventory.model import Inventory
from clusterctl.inventory.select import select, still_known
from clusterctl.node.documents import Rank, RayNode
from clusterctl.planning.placement import HostGpus
from clusterctl.ray_cluster.topology import Topology
from clusterctl.serving.request import ServiceRequest
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey

# States in which a replica may hold GPUs without visible ranks: vLLM reserves all GPUs before the
# first rank starts.
_WITH_PROCESS = frozenset({"starting", "loading", "ready", "stalled", "stopping"})


@dataclass(frozen=True)
class HeldGpus:
    """The free GPUs of a cluster, and the services that hold the others."""

    free: Sequence[HostGpus]  # The head first; GPUs of the service to be replaced count as free
    holders: tuple[str, ...] = ()  # A line each

    def only_on(self, hosts: Collection[str], on: str) -> HeldGpus:
        """Return the free GPUs of these hosts, selected by `--on`."""
        free = [each for each in self.free if each.host in hosts]
        left_out = len(self.free) - len(free)
        if not left_out:
            return self
        noun = f"{left_out} host{'s' * (left_out > 1)}"
        return HeldGpus(free, (*self.holders, f"--on {on} leaves out {noun}"))

    def without_drained(self, drained: Collection[str]) -> HeldGpus:
        """Return the free GPUs without those of drained hosts."""
        free = [replace(each, free=0) if each.host in drained else each for each in self.free]
        empty = [f"{each.host} is drained" for each in self.free if each.host in drained]
        return HeldGpus(free, (*self.holders, *empty))


def gpus_held(
    survey: Survey,
    ray: Sequence[RayNode],
    leaving: Collection[str] = (),
    request: ServiceRequest | None = None,
) -> HeldGpus:
    """Count the GPUs of a cluster: see `count_gpus`, except those whose memory others hold.
    `leaving`: names of replicas. `request`: the service that they are for."""
    in_turn = request is not None and (request.standby or request.swaps)
    share = request.gpu_share if request and not in_turn else 1.0
    sharing = [each for each in survey.replicas.values() if each.gpu_share < 1]
    names = {each.name for each in sharing}
    others_ranks = {name: ranks for name, ranks in survey.ranks.items() if name not in names}
    found = count_gpus(
        survey.topology,
        without_shares(ray, sharing, chain.from_iterable(others_ranks.values())),
        [each for each in survey.replicas.values() if each.name not in names],
        others_ranks,
        set(leaving) - names,
    )
    staying = [each for each in sharing if each.name not in leaving]
    found = with_shares(found, survey.topology, staying, share)
    # Ray gives a share the fullest GPU with room for it. While one of two engines is gone, that is
    # theirs.
    others = [each for each in survey.replicas.values() if each.name not in leaving]
    swaps = [each for each in others if each.swaps]
    # Where two services have one already, both stay: each could be changed, but not moved there.
    own = [each for each in survey.replicas.values() if each.name in leaving]
    paired = {ip for each in own if each.document.standby_port for ip in each.document.node_ips}
    standbys = [
        each
        for each in others
        if each.document.standby_port and not paired.intersection(each.document.node_ips)
    ]
    if in_turn:
        shares = [each for each in staying if each not in swaps]
        found = without_hosts_of(found, survey.topology, shares, "has a share of a GPU there")
    if in_turn or share < 1:
        found = without_hosts_of(found, survey.topology, swaps, "swaps GPUs there")
        found = without_hosts_of(found, survey.topology, standbys, "has a standby there")
    reports = {host: facts.gpus for host, facts in survey.facts.items()}
    return without_strangers(found, reports)


def without_shares(
    ray: Sequence[RayNode], sharing: Sequence[Replica], ranks: Iterable[Rank] = ()
) -> list[RayNode]:
    """Return Ray's nodes without the shares of GPUs that these replicas use, also those that vLLM
    has reserved for ranks which are not visible yet. `ranks`: of others, with whole GPUs."""
    used: dict[str, float] = defaultdict(float)
    for replica in sharing:
        for rank in replica.ranks:
            used[rank.host] += replica.gpu_share

    living = [node for node in ray if node.alive]
    hosts = {node.node_ip: node.name for node in living}
    whole = Counter(rank.host for rank in ranks)
    unseen = {node.name: node.gpus_used - used[node.name] - whole[node.name] for node in living}
    for replica in sharing:
        if replica.condition not in _WITH_PROCESS:
            continue
        to_come = Counter(replica.document.node_ips)
        to_come.subtract(rank.node_ip for rank in replica.ranks)
        for host in (hosts.get(node_ip, "") for node_ip in to_come.elements()):
            reserved = min(replica.gpu_share, max(0.0, unseen.get(host, 0.0)))
            used[host] += reserved
            unseen[host] = unseen.get(host, 0.0) - reserved
    # A sum of parts such as 0.1 + 0.2 is no exact number.
    return [
        replace(node, gpus_used=max(0.0, round(node.gpus_used - used[node.name], 6)))
        for node in ray
    ]


def with_shares(
    held: HeldGpus, topology: Topology, sharing: Sequence[Replica], share: float
) -> HeldGpus:
    """Return the GPUs without those that these replicas share, except those with room for
    `share`. Ray fills the fullest GPU first."""
    hosts = {node.node_ip: node.host for node in topology.nodes}
    left: dict[str, list[float]] = defaultdict(list)  # By host, of each shared GPU
    # The second one of two that swap has the GPUs of the first, whatever their names are.
    for replica in sorted(sharing, key=lambda each: bool(each.document.swap_with)):
        for node_ip in replica.document.node_ips:
            gpus = left[hosts.get(node_ip, "")]
            fitting = [part for part in gpus if part >= replica.gpu_share]
            if fitting:
                gpus.remove(min(fitting))
            rest = (min(fitting) if fitting else 1.0) - replica.gpu_share
            gpus.append(round(rest, 6))

    def free(each: HostGpus) -> int:
        room = sum(part >= share for part in left[each.host]) if share < 1 else 0
        return max(0, each.free - len(left[each.host])) + room

    counted = [replace(each, free=free(each)) for each in held.free]
    return HeldGpus(counted, (*held.holders, *map(_holder, sharing)))


def without_hosts_of(
    held: HeldGpus, topology: Topology, replicas: Iterable[Replica], why: str
) -> HeldGpus:
    """Return the free GPUs without those of hosts where these replicas have ranks."""
    taken = {node_ip: one.name for one in replicas for node_ip in one.document.node_ips}
    names = {node.host: taken[node.node_ip] for node in topology.nodes if node.node_ip in taken}
    free = [replace(each, free=0) if each.host in names else each for each in held.free]
    lines = [f"{host} is left out: {name} {why}" for host, name in names.items()]
    return HeldGpus(free, (*held.holders, *lines))


def without_strangers(held: HeldGpus, reports: Mapping[str, GpuReport]) -> HeldGpus:
    """Return the free GPUs without those on which processes outside any cluster hold memory. Ray
    does not know about these, and a start avoids them (node/held_gpus.py)."""
    free, lines = [], []
    for each in held.free:
        report = reports.get(each.host)
        # A GPU that a rank of ours has besides is in use, or becomes free with the rank.
        taken = gpus_of_strangers(report, alone=True) if report else {}
        free.append(replace(each, free=max(0, each.free - len(taken))))
        lines += [
            f"{each.host}: GPU {index} is held by {describe_processes(processes)}"
            for index, processes in taken.items()
        ]
    return HeldGpus(free, (*held.holders, *lines))


def count_gpus(
    topology: Topology,
    ray: Sequence[RayNode],
    replicas: Iterable[Replica],
    ranks: Mapping[str, Sequence[Rank]],
    leaving: Collection[str],
) -> HeldGpus:
    """Count GPUs that Ray reports as used, and those that declared replicas need to start. Pure.

    Replicas that are `leaving` free their GPUs. All others keep theirs, even if they have not
    started yet. `ranks`: of all replicas, including those no longer declared.
    """
    count = _Count.of(topology, ray, ranks)
    staying, declared = [], set()
    for replica in replicas:
        declared.add(replica.name)
        if replica.name in leaving:
            count.give_back(replica)
        else:
            staying.append(replica)

    # A plan for several services goes on without the documents of those that leave.
    for name in set(leaving) - declared:
        count.give_back_ranks(ranks.get(name, ()))

    for replica in staying:
        count.hold(replica)
    free = [HostGpus(host, number) for host, number in count.free.items()]
    return HeldGpus(free, tuple(map(_holder, staying)))


@dataclass
class _Count:
    """Numbers of GPUs by host, the head first, while they are counted."""

    gpus: Mapping[str, int]
    free: dict[str, int]
    unseen: dict[str, int]  # Used, as Ray says, by ranks that no supervisor reports
    hosts: Mapping[str, str]  # By node IP

    @staticmethod
    def of(
        topology: Topology, ray: Sequence[RayNode], ranks: Mapping[str, Sequence[Rank]]
    ) -> _Count:
        nodes = sorted(topology.nodes, key=lambda node: node.role != "head")
        used = {node.name: ceil(node.gpus_used) for node in ray if node.alive}
        seen = Counter(rank.host for its in ranks.values() for rank in its)

        count = _Count({node.host: node.gpus for node in nodes}, {}, {}, {})
        for node in nodes:
            taken = used.get(node.host, 0)
            count.free[node.host] = max(0, node.gpus - taken)
            count.unseen[node.host] = max(0, taken - seen[node.host])
        count.hosts = {node.node_ip: node.host for node in nodes}
        return count

    def give_back(self, replica: Replica) -> None:
        self.give_back_ranks(replica.ranks)
        for host in self._without_rank(replica):
            self.free[host] = min(self.gpus[host], self.free[host] + 1)

    def give_back_ranks(self, ranks: Sequence[Rank]) -> None:
        for host in [rank.host for rank in ranks if rank.host in self.gpus]:
            self.free[host] = min(self.gpus[host], self.free[host] + 1)

    def hold(self, replica: Replica) -> None:
        waiting = self._without_rank(replica)
        self._take(self.free, _to_come(replica) - len(waiting), replica)

    def _without_rank(self, replica: Replica) -> list[str]:
        """Return the hosts of GPUs that Ray may count as used by this replica without a rank."""
        if replica.condition not in _WITH_PROCESS:
            return []
        return self._take(self.unseen, _to_come(replica), replica)

    def _take(self, gpus: dict[str, int], count: int, replica: Replica) -> list[str]:
        """Subtract `count` GPUs from the replica's hosts, or as many as there are. Returns the host
        of each."""
        hosts = [self.hosts.get(node_ip, "") for node_ip in replica.document.node_ips]
        taken: list[str] = []
        for host in hosts:
            if len(taken) < count and gpus.get(host, 0) > 0:
                gpus[host] -= 1
                taken.append(host)
        return taken


def _to_come(replica: Replica) -> int:
    """Return the number of this replica's GPUs without a visible rank."""
    return max(0, replica.document.gpus - len(replica.ranks))


def _holder(replica: Replica) -> str:
    hosts = dict.fromkeys(rank.host for rank in replica.ranks)
    where = f" on {', '.join(hosts)}" if hosts else ""
    gpus = replica.document.gpus
    count = f"{gpus} GPU{'s' * (gpus > 1)}"
    if replica.gpu_share < 1 and not replica.swaps:
        count = f"{replica.gpu_share:g} of a GPU"
    return f"service {replica.name} ({replica.condition}) holds {count}{where}"


def on_of(survey: Survey, service: str) -> str:
    """Return the hosts that an earlier `--on` limits the service to, without those that have since
    left the inventory; empty for all. Raises UsageError if all of them have."""
    on = survey.service(service).on
    if not on:
        return ""
    left = still_known(_with_dead(survey), on)
    if left is None:
        raise UsageError(
            f"{service} is limited to --on {on}, and none of these hosts are in "
            f"{survey.inventory.file}",
            hint=f"serve it with `--name {service} --on HOSTS`, or on all with `--on '*'`",
        )
    return left


def hosts_on(survey: Survey, on: str) -> tuple[str, ...]:
    """Return the hosts that `--on` selects, except dead ones; all if it is empty. Raises
    UsageError, and RequirementsNotMet if all of them are dead."""
    dead = survey.left_out
    chosen = select(_with_dead(survey), on, "--on") if on else survey.inventory.hosts
    found = tuple(host.name for host in chosen if host.name not in dead)
    if not found:
        raise RequirementsNotMet(f"no host of --on {on} answers", hint="clusterctl status")
    return found


def _with_dead(survey: Survey) -> Inventory:
    hosts = (*survey.inventory.hosts, *survey.left_out.values())
    return survey.inventory.model_copy(update={"hosts": hosts})
