"""Bytes, as sentences have them."""

from __future__ import annotations

from clusterctl.containers.meter import GIB


def gib(count: int) -> str:
    """Such as `1.2 GiB`."""
    return f"{count / GIB:.1f} GiB"
