"""How hosts differ from what bootstrap would make of them now. Pure: answers in, words out."""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.commands.declared import unreadable_in
from clusterctl.containers.spec import FINGERPRINT_LABEL
from clusterctl.errors import ClusterctlError
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.network.choice import resolve
from clusterctl.node.documents import to_json
from clusterctl.node.paths import NodePaths
from clusterctl.ray_cluster.nodes import container_name, container_spec, node_document
from clusterctl.ray_cluster.topology import Topology

OTHER_CONTAINER = "its container was made from another inventory or version (clusterctl plan)"
OTHER_NODE = "its node.json is from another inventory or version (clusterctl plan)"


def drift(inventory: Inventory, answers: Mapping[str, Probe]) -> dict[str, tuple[str, ...]]:
    """What differs on each host that answered.

    The topology needs every host's facts: while one is silent, the others' drift is not known
    and nothing is said of it.
    """
    if len(answers) < len(inventory.hosts):
        return {}
    try:
        topology = resolve(inventory, {name: answer.facts for name, answer in answers.items()})
    except ClusterctlError:
        return {}
    return {name: _of_host(inventory, topology, name, answer) for name, answer in answers.items()}


def _of_host(inventory: Inventory, topology: Topology, name: str, answer: Probe) -> tuple[str, ...]:
    node = topology.node(name)
    ours = container_name(inventory.cluster)
    container = next((c for c in answer.containers if c.name == ours), None)
    if container is None:
        return ()
    found = []
    spec = container_spec(node, container.image, inventory, answer.facts, topology)
    if container.labels.get(FINGERPRINT_LABEL) != spec.fingerprint():
        found.append(OTHER_CONTAINER)
    document = answer.files.get(str(NodePaths(inventory.cluster).node_document))
    unreadable = {each.file for each in unreadable_in(inventory.cluster, answer)}
    if "node.json" in unreadable:  # told as such
        return tuple(found)
    if document != to_json(node_document(inventory, topology, node)).encode():
        found.append(OTHER_NODE)
    return tuple(found)
