"""Which rank sits on which GPU, and which layers it holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.overheads import Fabric, Measured
from clusterctl.planning.weights import PipelineStage


@dataclass(frozen=True)
class HostGpus:
    """One host's GPUs that nothing uses, or that the service about to be replaced uses: else
    serving it again would find another layout."""

    host: str
    free: int


@dataclass(frozen=True, slots=True)
class Site:
    """A host with its GPUs, which `fabric` joins.

    `head`: rank 0 starts here and nowhere else, as it does in a cluster that exists.
    `measured`: what earlier starts reported, by TP size, since NCCL's share depends on it.
    """

    host: str
    gpus: tuple[GpuModel, ...]
    fabric: Fabric = "pcie"
    measured: tuple[tuple[int, Measured], ...] = ()
    head: bool = False

    def measured_at(self, tp: int) -> Measured | None:
        """What starts with that TP size reported."""
        return dict(self.measured).get(tp)


@dataclass(frozen=True, slots=True)
class RankSeat:
    """One rank: its GPU, its pipeline stage and its place in the tensor parallel group."""

    host: str
    gpu: GpuModel
    stage: int
    place: int
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks in vLLM's order: stage by stage, and within a stage by tensor parallel place.

    `replicas` copies of this would run side by side (data parallel); the seats are of one.
    `fabric` is what joins the ranks of a tensor parallel group.
    """

    tp: int
    pp: int
    seats: tuple[RankSeat, ...]
    fabric: Fabric
    replicas: int = 1
    partition: tuple[int, ...] = ()  # layers per stage; empty: vLLM's own split
    reason: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names in rank order, each once."""
        return tuple(dict.fromkeys(seat.host for seat in self.seats))

    @property
    def stages_cross_hosts(self) -> bool:
        """Whether pipeline stages sit on different hosts."""
        firsts = {seat.host for seat in self.seats if seat.place == 0}
        return len(firsts) > 1

    @property
    def groups_cross_hosts(self) -> bool:
        """Whether a tensor parallel group spans hosts."""
        return any(
            len({seat.host for seat in self.seats if seat.stage == stage}) > 1
            for stage in range(self.pp)
        )


def split_layers(layers: int, pp: int, partition: Sequence[int] = ()) -> tuple[int, ...]:
    """Layers per stage. vLLM's default gives what does not divide to the stages from the second
    last backwards (distributed/utils.py, `get_pp_indices`). Raises UsageError."""
    if partition:
        if len(partition) != pp or sum(partition) != layers:
            raise UsageError(
                f"VLLM_PP_LAYER_PARTITION={','.join(map(str, partition))} does not split "
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
    """The layers of every pipeline stage. Raises UsageError when they cannot be split."""
    counts = split_layers(layers, placement.pp, placement.partition)
    found = []
    first = 0
    for index, count in enumerate(counts):
        last = index == placement.pp - 1
        found.append(PipelineStage(first, first + count, placement.tp, index == 0, last))
        first += count
    return tuple(found)


def seat_ranks(
    sites: Sequence[Site], tp: int, pp: int, partition: tuple[int, ...] = ()
) -> Placement:
    """Seats for TP x PP ranks on these hosts: a tensor parallel group inside one host as long as
    a host has room for it, stages across hosts. Raises DoesNotFit when there are too few GPUs.
    """
    total = sum(len(site.gpus) for site in sites)
    if total < tp * pp:
        raise DoesNotFit(
            f"world size larger than the GPUs: TP {tp} x PP {pp} needs {tp * pp} GPUs, "
            f"there are {total}",
            hint=f"--tp and --pp with a product of at most {total}",
        )
    inside = _groups_inside(sites, tp, pp)
    if inside is not None:
        return _placed(inside, sites, tp, pp, partition, _reason_inside(tp, pp, inside))
    seats = [(site, gpu) for site in sites for gpu in site.gpus][: tp * pp]
    groups = [seats[start : start + tp] for start in range(0, tp * pp, tp)]
    reason = f"no host has {tp} free GPUs for each stage: tensor parallel groups span hosts"
    return _placed(groups, sites, tp, pp, partition, reason)


_Group = list[tuple[Site, GpuModel]]


def _groups_inside(sites: Sequence[Site], tp: int, pp: int) -> list[_Group] | None:
    groups: list[_Group] = [
        [(site, gpu) for gpu in site.gpus[start : start + tp]]
        for site in sites
        for start in range(0, len(site.gpus) - tp + 1, tp)
    ]
    if len(groups) < pp or (sites[0].head and len(sites[0].gpus) < tp):
        return None
    return groups[:pp]


def _reason_inside(tp: int, pp: int, groups: Sequence[_Group]) -> str:
    hosts = {site.host for group in groups for site, _ in group}
    if tp == pp == 1:
        return "one GPU: nothing crosses a link"
    if pp == 1:
        return f"TP {tp} inside one host: its ranks talk in every layer"
    where = "across hosts: one hop per stage" if len(hosts) > 1 else "inside one host"
    return (f"TP {tp} inside each host, " if tp > 1 else "") + f"PP {pp} {where}"


def _placed(
    groups: Sequence[_Group],
    sites: Sequence[Site],
    tp: int,
    pp: int,
    partition: tuple[int, ...],
    reason: str,
) -> Placement:
    seats = tuple(
        RankSeat(site.host, gpu, stage, place, site.measured_at(tp))
        for stage, group in enumerate(groups)
        for place, (site, gpu) in enumerate(group)
    )
    crosses = any(len({site.host for site, _ in group}) > 1 for group in groups)
    inside: Fabric = sites[0].fabric if sites else "none"
    fabric: Fabric = "none" if tp == 1 else "network" if crosses else inside
    return Placement(tp, pp, seats, fabric, partition=partition, reason=reason)
