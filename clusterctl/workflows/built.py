"""What bootstrap set up, against what there is: its own plan, made for a cluster that is up."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from clusterctl.engine.plan import Plan
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport.base import Transport
from clusterctl.workflows.bootstrap import node_stages
from clusterctl.workflows.lacking import running, single
from clusterctl.workflows.prepared import Cluster, views


def unlike_the_plan(
    inventory: Inventory,
    topology: Topology | None,
    answers: Mapping[str, Probe],
    transports: Mapping[str, Transport],
) -> list[ClusterctlError]:
    """A problem for every host on which bootstrap would change something, once its container runs
    anywhere; before that, what keeps bootstrap from making its plan.

    Needs all hosts of the inventory, since each has a part in every other's documents; an engine
    that does not answer is told already.
    """
    if topology is None or len(topology.nodes) < len(inventory.hosts):
        return []
    able = [host for host in inventory.hosts if answers[host.name].facts.engine.running]
    if inventory.head not in able:
        return []
    names = tuple(host.name for host in inventory.hosts)
    seen = views(inventory, transports, answers)
    cluster = Cluster(inventory, topology, answers, seen, names)
    try:
        planned = plan_stages(node_stages(cluster, able), seen)
    except ClusterctlError as error:
        return single(error)
    return _drift(inventory, planned) if running(inventory, answers) else []


def _drift(inventory: Inventory, planned: Plan) -> list[ClusterctlError]:
    by_host: dict[str, list[str]] = defaultdict(list)
    for line in planned.changes:
        if isinstance(line.change, Change):
            by_host[line.host].append(line.change.summary)
    return [
        RequirementsNotMet(
            f"is not as bootstrap would have it: {'; '.join(words)}",
            host=host,
            hint=f"clusterctl bootstrap {inventory.source}",
        )
        for host, words in by_host.items()
    ]
