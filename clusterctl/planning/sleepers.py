"""Host memory for services that sleep: their weights wait there. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.node.documents import ServiceDocument
from clusterctl.units import GIB

# Part of a host's memory that weights may take: vLLM pins what it puts there, and keeps it when it
# wakes. The rest is for processes, the page cache and the system.
_SHARE = 0.75

# Bytes of host memory for each of weights, at most: PyTorch pins in powers of two. 22.3 GiB were
# taken for 15.9 GiB of an 8B, 116 for the 62.7 of a 32B.
_ROUNDED_UP = 2.0


def parked(documents: Iterable[ServiceDocument]) -> dict[str, float]:
    """Return the GiB of each host, by node IP, that these services may take of its memory."""
    found: dict[str, float] = defaultdict(float)
    for document in documents:
        for node_ip, ranks in Counter(document.node_ips).items():
            found[node_ip] += ranks * document.parked_gib * _ROUNDED_UP
    return found


def require_host_memory(
    document: ServiceDocument,
    others: Sequence[ServiceDocument],
    memory: Mapping[str, tuple[str, int]],
) -> None:
    """Raise DoesNotFit unless the hosts have memory for a service that is to sleep. `memory`: the
    host's name and its bytes, by node IP."""
    before = parked(others)
    for node_ip, own in parked([document]).items():
        host, size = memory.get(node_ip, ("", 0))
        room = size / GIB * _SHARE - before.get(node_ip, 0.0)
        if size and own > room:
            taken = before.get(node_ip, 0.0)
            others_take = f", of which other services take {taken:.1f}" if taken else ""
            raise DoesNotFit(
                f"{document.service} may take {own:.1f} GiB of the host's memory while it sleeps, "
                f"but only {size / GIB * _SHARE:.1f} GiB may be used for that{others_take}",
                host=host,
                hint=f"leave --idle out, or add --on with hosts other than {host}",
            )


def require_one_replica(service: str, replicas: int) -> None:
    """Raise UsageError for several replicas of a service that sleeps."""
    if replicas > 1:
        raise UsageError(
            f"{service} sleeps when it is idle (--idle), so it has one replica, not {replicas}",
            hint=f"clusterctl scale {service} 1, or serve it without --idle",
        )
