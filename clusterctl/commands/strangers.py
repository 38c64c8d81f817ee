"""Hosts that still run for the cluster and are not in its inventory any more. Pure."""

from __future__ import annotations

from clusterctl import deadlines
from clusterctl.commands.reach import read_state
from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import NodeState, RayNode
from clusterctl.node.paths import NodePaths


def strangers(inventory: Inventory, answer: Probe | None) -> list[RequirementsNotMet]:
    """By what the head says now of Ray's nodes; nothing where it says nothing. `answer`: its own.

    Their containers go on, with the ranks of services on them, and nothing that reads the
    inventory reaches them.
    """
    if answer is None:
        return []
    state = read_state(answer.files.get(str(NodePaths(inventory.cluster).state)))
    if state is None or answer.facts.clock - state.time > deadlines.STALE:
        return []
    return strangers_of(inventory, state)


def strangers_of(inventory: Inventory, state: NodeState) -> list[RequirementsNotMet]:
    """The same, by a state of the head that is of now."""
    known = {host.name for host in inventory.hosts}
    return [
        RequirementsNotMet(
            f"is not in the inventory, and its container still runs in this cluster at "
            f"{node.node_ip}{_with_ranks(node, state)}",
            host=node.name or node.node_ip,
            hint=f"put {node.name or 'it'} back into {inventory.file}, run "
            f"`clusterctl down --limit {node.name} -i {inventory.file}`, and take it out again",
        )
        for node in state.nodes
        if node.alive and node.name not in known
    ]


def _with_ranks(node: RayNode, state: NodeState) -> str:
    held = [
        f"rank {rank.rank} of {service.name}"
        for service in state.services
        for rank in service.ranks
        if rank.host == node.name
    ]
    return f", with {', '.join(held)}" if held else ""
