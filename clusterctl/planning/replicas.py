"""The hosts of a service's replicas: seated one after another, each on GPUs that are still free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from clusterctl.errors import DoesNotFit
from clusterctl.planning.hardware import GpuModel
from clusterctl.planning.placement import HostGpus, Placement, Site, seat_ranks, sites_without

Seats = tuple[str, ...]  # The host of each rank of one replica, in vLLM's order


def seat_replicas(
    sites: Sequence[Site],
    sizes: tuple[int, int],
    kept: Sequence[Seats],
    most: int | None,
    fits: Callable[[Placement], bool] = lambda _: True,
) -> list[Seats]:
    """Return the seats of replicas beyond those `kept`, until there are `most` in all, or for as
    many as fit.

    sites  hosts with their free GPUs; those of the replicas in `kept` are among them
    sizes  TP and PP of each replica
    fits   whether a replica can start on the GPUs of this placement

    A replica gets GPUs of one host wherever a host has enough of them, so that its ranks exchange
    nothing over the network; hosts with fewer replicas of this service come first, so that the loss
    of a host costs as few of them as possible.
    """
    width, largest = sizes[0] * sizes[1], max((len(site.gpus) for site in sites), default=0)
    used = Counter(host for seats in kept for host in set(seats))
    left = sites_without(sites, [host for seats in kept for host in seats])
    found: list[Seats] = []
    while most is None or len(kept) + len(found) < most:
        groups = [[site] for site in sorted(left, key=lambda site: used[site.host])]
        if largest < width:
            groups = [left]
        placements = (
            seat_ranks(group, *sizes)
            for group in groups
            if sum(len(site.gpus) for site in group) >= width
        )
        placement = next(filter(fits, placements), None)
        if placement is None:
            break
        seats = tuple(seat.host for seat in placement.seats)
        left = sites_without(left, seats)
        used.update(set(seats))
        found.append(seats)
    return found


def require_replicas(service: str, asked: int, possible: int, width: int) -> None:
    """Raise DoesNotFit if more replicas were asked for than fit."""
    if asked <= possible:
        return
    gpus = f"{width} GPU{'s' * (width > 1)} each"
    raise DoesNotFit(
        f"{asked} replicas of {service} need {gpus}, and {possible or 'none'} of them "
        f"{'fits' if possible == 1 else 'fit'} on the free GPUs",
        hint=f"--replicas {possible}" if possible else "clusterctl status shows who uses the GPUs",
    )


def sites_of_unknown_gpus(free: Sequence[HostGpus]) -> list[Site]:
    """Return hosts of which only the number of GPUs is known, to seat ranks on."""
    unknown = GpuModel("GPU", 0.0, 0, 0, 0, 0)
    return [Site(host.host, (unknown,) * host.free) for host in free if host.free]
