"""What the head keeps of a fabric that was proven: fabric.json, beside the logs."""

from __future__ import annotations

import time
from dataclasses import dataclass

from clusterctl.node.documents import from_json
from clusterctl.node.fabric_documents import Collective
from clusterctl.node.paths import NodePaths


@dataclass(frozen=True)
class FabricRecord:
    """fabric.json on the head: what was proven, and for which containers."""

    time: float  # Unix seconds on the operator's clock
    nodes: dict[str, str]  # Host: its node container's ID and time of start
    lines: list[str]
    # What carries tensors between hosts, measured; empty on a single host
    network: list[Collective]
    seconds: float = 0.0

    @property
    def sentence(self) -> str:
        """When, and what."""
        stamp = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.time))
        return f"fabric proven at {stamp}: {'; '.join(self.lines)}"


def record_file(cluster: str) -> str:
    """Where the head keeps what was proven."""
    return str(NodePaths(cluster).logs / "fabric.json")


def read_record(data: bytes | None) -> FabricRecord | None:
    """None when nothing was proven, or by another version."""
    try:
        return from_json(FabricRecord, data.decode()) if data else None
    except ValueError:
        return None
