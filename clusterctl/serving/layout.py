"""How a service is divided over the cluster's GPUs: basis of vLLM's flags, and compared with the
running ranks. `clusterctl.planning` decides it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """A layout that fits this cluster."""

    tensor_parallel: int
    pipeline_parallel: int
    # Hosts whose GPUs it may use; at least `least_hosts` of them get ranks
    hosts: tuple[str, ...]
    least_hosts: int
    keeps_tp_in_host: bool  # Every tensor parallel group is certain to sit inside one host
    reason: str
    notes: tuple[str, ...] = ()
    data_parallel: int = 1
    copies_on_head: int = 0  # Number of the `data_parallel` replicas on the head; 0: not known

    @property
    def ranks(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel * self.data_parallel

    @property
    def spans_hosts(self) -> bool:
        return self.least_hosts > 1


# Placeholder for callers that need only flags independent of the layout
UNDECIDED = Layout(1, 1, (), 1, keeps_tp_in_host=True, reason="")
