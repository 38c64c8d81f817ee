"""Which rank is placed on which GPU, and which layers it has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.planning.hardware import GpuModel, parse_gpus
from clusterctl.planning.overheads import Fabric, Measured
from clusterctl.planning.weights import PipelineStage

PARTITION = "VLLM_PP_LAYER_PARTITION"


@dataclass(frozen=True)
class HostGpus:
    """The number of free GPUs of a host. GPUs of the service to be replaced count as free: serving
    it again must not change its layout."""

    host: str
    free: int


@dataclass(frozen=True, slots=True)
class Site:
    """A host and its GPUs."""

    host: str
    gpus: tuple[GpuModel, ...]
    fabric: Fabric = "pcie"  # The link between its GPUs
    # Overheads reported by earlier starts, by TP size, since NCCL's share depends on it.
    measured: tuple[tuple[int, Measured], ...] = ()

    def measured_at(self, tp: int) -> Measured | None:
        """Return the overheads reported by starts with that TP size."""
        return dict(self.measured).get(tp)


@dataclass(frozen=True, slots=True)
class RankSeat:
    """One rank: its GPU, its pipeline stage, and its place in the tensor parallel group."""

    host: str
    gpu: GpuModel
    stage: int
    place: int
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The ranks of one replica in vLLM's order: by stage, then by tensor parallel place."""

    tp: int
    pp: int
    seats: tuple[RankSeat, ...]
    fabric: Fabric  # The link between ranks of a tensor parallel group
    replicas: int = 1  # Copies side by side (data parallel)
    partition: tuple[int, ...] = ()  # Layers per stage; empty means vLLM's own split
    reason: str = ""
    room: int = 1  # GPUs of the largest host

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host names in rank order, without repetitions."""
        return tuple(dict.fromkeys(seat.host for seat in self.seats))

    @property
    def stages_cross_hosts(self) -> bool:
        """Whether pipeline stages are on different hosts."""
        firsts = {seat.host for seat in self.seats if seat.place == 0}
        return len(firsts) > 1

    @property
    def groups_cross_hosts(self) -> bool:
        """Whether a tensor parallel group spans hosts."""
        return any(
            len({seat.host for seat in self.seats if seat.stage == stage}) > 1
            for stage in range(self.pp)
        )


def sites_of(gpus: str | Sequence[str], hosts: int = 1) -> tuple[Site, ...]:
    """Return a host for each of `gpus`, or `hosts` of them if it is one. Raises UsageError."""
    given = [gpus] if isinstance(gpus, str) else list(gpus)
    if len(given) > 1 and hosts != 1:
        raise UsageError(
            "--hosts cannot be combined with several --gpus",
            hint="leave --hosts out",
        )
    if not 1 <= hosts <= 1024:
        raise UsageError(f"--hosts {hosts}: from 1 to 1024", hint="--hosts 2")
    each = [parse_gpus(text) for text in (given if len(given) > 1 else given * hosts)]
    return tuple(
        Site(f"host{number}", found, usual_fabric(found)) for number, found in enumerate(each, 1)
    )


def usual_fabric(gpus: Sequence[GpuModel]) -> Fabric:
    """Return the usual link between those GPUs in a server."""
    joined = ("A100", "A800", "H100", "H800", "H20", "B200", "V100")
    return "nvlink" if len(gpus) > 1 and gpus[0].name.startswith(joined) else "pcie"


def split_layers(layers: int, pp: int, partition: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the number of layers per stage. Raises UsageError.

    vLLM's default gives a remainder to the stages from the last but one backwards
    (distributed/utils.py, `get_pp_indices`).
    """
    if partition:
        if len(partition) != pp or sum(partition) != layers:
            raise UsageError(
                f"{PARTITION}={','.join(map(str, partition))} does not split "
                f"{layers} layers into {pp} stages",
                hint=f"give {pp} numbers that add up to {layers}",
            )
        return tuple(partition)
    if pp > layers:
        raise UsageError(f"{pp} pipeline stages for {layers} layers", hint=f"--pp {layers}")
    counts = [layers // pp] * pp
    for back in range(layers % pp):
        counts[-2 - back] += 1
    return tuple(counts)


def stages_of(layers: int, placement: Placement) -> tuple[PipelineStage, ...]:
    """Return the layers of every pipeline stage. Raises UsageError if they cannot be split."""
    counts = split_layers(layers, placement.pp, placement.partition)
    found = []
    first = 0
    for index, count in enumerate(counts):
        last = index == placement.pp - 1
        found.append(PipelineStage(first, first + count, placement.tp, index == 0, last))
        first += count
    return tuple(found)


def sites_without(sites: Sequence[Site], hosts: Iterable[str]) -> list[Site]:
    """Return the sites left when each of `hosts` has given up a GPU: its first, as ranks take them.
    Hosts without any are left out."""
    used = Counter(hosts)
    return [
        replace(site, gpus=site.gpus[used[site.host] :]) if site.host in used else site
        for site in sites
        if len(site.gpus) > used[site.host]
    ]


def room_for_copies(free: Sequence[HostGpus], width: int) -> int:
    """Return how many data parallel ranks of that many GPUs vLLM can place: it splits them across
    hosts only if no host has enough GPUs for one."""
    if width > max((host.free for host in free), default=0):
        return sum(host.free for host in free) // width
    return sum(host.free // width for host in free)


def seat_ranks(sites: Sequence[Site], tp: int, pp: int) -> Placement:
    """Place TP x PP ranks on these hosts: tensor parallel groups inside a host as long as hosts
    have room for them, stages across hosts. Raises DoesNotFit if there are too few GPUs.
    """
    total = sum(len(site.gpus) for site in sites)
    if total < tp * pp:
        raise DoesNotFit(
            f"TP {tp} x PP {pp} needs {tp * pp} GPUs, and there are {total}",
            hint=f"--tp and --pp with a product of at most {total}",
        )
    groups: list[list[tuple[Site, GpuModel]]] = [
        [(site, gpu) for gpu in site.gpus[start : start + tp]]
        for site in sites
        for start in range(0, len(site.gpus) - tp + 1, tp)
    ][:pp]
    hosts = {site.host for group in groups for site, _ in group}
    if len(groups) < pp:
        every = [(site, gpu) for site in sites for gpu in site.gpus]
        groups = [every[start : start + tp] for start in range(0, tp * pp, tp)]
        reason = f"no host has {tp} free GPUs for each stage: tensor parallel groups span hosts"
    elif tp == pp == 1:
        reason = "one GPU: nothing crosses a link"
    elif pp == 1:
        reason = f"TP {tp} inside one host: its ranks communicate in every layer"
    else:
        where = "across hosts: one hop per stage" if len(hosts) > 1 else "inside one host"
        reason = (f"TP {tp} inside each host, " if tp > 1 else "") + f"PP {pp} {where}"
    seats = tuple(
        RankSeat(site.host, gpu, stage, place, site.measured_at(tp))
        for stage, group in enumerate(groups)
        for place, (site, gpu) in enumerate(group)
    )
    crosses = any(len({site.host for site, _ in group}) > 1 for group in groups)
    inside: Fabric = sites[0].fabric if sites else "none"
    fabric: Fabric = "none" if tp == 1 else "network" if crosses else inside
    room = max((len(site.gpus) for site in sites), default=0)
    return Placement(tp, pp, seats, fabric, reason=reason, room=room)
