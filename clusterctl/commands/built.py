"""What bootstrap set up, against what there is: its own plan, made for a cluster that is up;
and what Ray holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from clusterctl import deadlines
from clusterctl.commands.bootstrap import node_stages
from clusterctl.commands.cluster_images import ClusterImages
from clusterctl.commands.engine_stages import engine_stages
from clusterctl.commands.lacking import made, running, single
from clusterctl.commands.prepared import Cluster, views
from clusterctl.commands.reach import read_state, require_bootstrapped
from clusterctl.commands.strangers import strangers_of
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.plan import Plan
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, RequirementsNotMet
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Inventory
from clusterctl.node.contract import breaches
from clusterctl.node.documents import log_dir
from clusterctl.node.paths import NodePaths
from clusterctl.ray_cluster.nodes import expected_nodes
from clusterctl.ray_cluster.topology import Topology
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_container import own_container
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import failures, fan_out


def unlike_the_plan(
    inventory: Inventory,
    topology: Topology | None,
    answers: Mapping[str, Probe],
    transports: Mapping[str, Transport],
) -> list[ClusterctlError]:
    """A problem for every host on which bootstrap would change something, once there is a
    node container anywhere; before that, for every host with a stranger in its place.

    Engines that do not answer are told already, and asked nothing. A plan needs all hosts of the
    inventory, since each has a part in every other's documents.
    """
    able = {
        name: view
        for name, view in views(inventory, transports, answers).items()
        if view.facts.engine.running
    }
    engines = Engines(driver_for)
    if not made(inventory, answers):
        return failures(fan_out(able, lambda view: own_container(engines(view), inventory.cluster)))
    if topology is None or len(topology.nodes) < len(inventory.hosts):
        return []
    if inventory.head.name not in able:
        return []
    cluster = Cluster(inventory, topology, answers, able, tuple(able))
    try:
        first = engine_stages(inventory, [view.host for view in able.values()])
        rest = node_stages(cluster, ClusterImages(cluster, tuple(able), engines))
        return _drift(inventory, plan_stages((*first, *rest), able))
    except ClusterctlError as error:
        return single(error)


def unlike_ray(
    inventory: Inventory, topology: Topology | None, answers: Mapping[str, Probe]
) -> list[ClusterctlError]:
    """What Ray holds against what it was formed of, by the head's own report. Where the head's
    container does not run there is none, and that is told already; so is why a host of the
    inventory has no place in `topology`, which Ray need not notice."""
    head = inventory.head.name
    if topology is None or head not in running(inventory, answers):
        return []
    path = str(NodePaths(inventory.cluster).state)
    try:
        state = require_bootstrapped(
            inventory, read_state(answers[head].files.get(path)), answers[head].facts.clock
        )
    except RequirementsNotMet as error:
        return [error]
    placed = {node.host for node in topology.nodes}
    return [
        *strangers_of(inventory, state),
        *(
            RequirementsNotMet(
                breach.summary, host=breach.host, hint=f"clusterctl logs --host {breach.host}"
            )
            for breach in breaches(expected_nodes(topology), state.nodes)
            if breach.host in placed
        ),
    ]


def unwritten_logs(inventory: Inventory, answers: Mapping[str, Probe]) -> list[RequirementsNotMet]:
    """Hosts whose supervisor says that it cannot write its logs."""
    path = str(NodePaths(inventory.cluster).state)
    found = {name: read_state(answers[name].files.get(path)) for name in answers}
    return [
        RequirementsNotMet(
            f"{state.logs_problem}: logs and journal are not written",
            host=name,
            hint=f"clusterctl exec --limit {name} -- df -h {log_dir(inventory.cluster)}",
        )
        for name, state in found.items()
        if state and state.logs_problem and answers[name].facts.clock - state.time < deadlines.STALE
    ]


def _drift(inventory: Inventory, planned: Plan) -> list[ClusterctlError]:
    by_host: dict[str, list[str]] = defaultdict(list)
    for line in planned.changes:
        if isinstance(line.change, Change):
            by_host[line.host].append(line.change.summary)
    return [
        RequirementsNotMet(
            f"is not as bootstrap would have it: {'; '.join(words)}",
            host=host,
            hint=f"clusterctl bootstrap {inventory.file}",
        )
        for host, words in by_host.items()
    ]
