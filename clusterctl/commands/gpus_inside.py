"""GPUs as the node container sees them: they may be gone there and fine on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clusterctl import deadlines
from clusterctl.commands.cluster_status import lost_gpus
from clusterctl.commands.reach import read_state
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState
from clusterctl.node.paths import NodePaths
from clusterctl.ray_cluster.nodes import container_name


def lost_in_containers(
    inventory: Inventory, answers: Mapping[str, Probe]
) -> Iterator[RequirementsNotMet]:
    """Hosts that have their GPUs, and whose running node container has not."""
    for host in inventory.hosts:
        answer = answers.get(host.name)
        words = lost_gpus(host, _state(inventory.cluster, answer)) if answer else None
        if answer and words and len(answer.facts.gpus.gpus) >= len(host.gpus):
            yield RequirementsNotMet(
                words,
                host=host.name,
                hint=f"clusterctl bootstrap {inventory.file} (it makes the container anew)",
            )


def _state(cluster: str, answer: Probe) -> NodeState | None:
    """Of a container that runs and a supervisor that lives."""
    ours = container_name(cluster)
    if not any(c.name == ours and c.state == "running" for c in answer.containers):
        return None
    state = read_state(answer.files.get(str(NodePaths(cluster).state)))
    return state if state and answer.facts.clock - state.time < deadlines.STALE else None
