"""How far a host is, in one line for people. Pure."""

from __future__ import annotations

from clusterctl.containers.meter import MIB
from clusterctl.transfer.chain_link import Progress
from clusterctl.transfer.relay.upstream import SOURCE


def progress_text(progress: Progress, expected: int) -> str:
    """Such as `312 of 420 MiB, 11.8 MiB/s, 9 s left, from gpu1`; `expected` in bytes."""
    done, total = min(progress.done, expected), max(expected, 1)
    amount = f"{done / MIB:.0f} of {total / MIB:.0f} MiB"
    if done >= expected:
        return f"{amount}, the engine unpacks"
    return ", ".join((amount, *movement(progress, expected - done)))


def movement(progress: Progress, left: int) -> list[str]:
    """How fast it comes, when the `left` bytes will be there, from whom, and what is waited for."""
    parts = []
    if progress.rate > 0 and left:
        parts.append(f"{progress.rate / MIB:.1f} MiB/s")
        parts.append(f"{left / progress.rate:.0f} s left")
    if progress.sources:
        names = ("this machine" if name == SOURCE else name for name in progress.sources)
        parts.append(f"from {', '.join(names)}")
    if progress.waiting:
        parts.append(progress.waiting)
    return parts
