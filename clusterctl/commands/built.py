"""Bootstrap's own plan for a cluster that is up: what it would change there."""

from __future__ import annotations

from clusterctl.commands.bootstrap import node_stages
from clusterctl.commands.cluster_images import ClusterImages
from clusterctl.commands.engine_stages import engine_stages
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.plan import Plan
from clusterctl.engine.planner import plan as plan_stages
from clusterctl.steps.engines import Engines
from clusterctl.survey.cluster import Cluster


def make_plan(cluster: Cluster) -> Plan:
    """What bootstrap would change on the hosts that `cluster` holds."""
    first = engine_stages(cluster.inventory, [view.host for view in cluster.views.values()])
    images = ClusterImages(cluster, tuple(cluster.views), Engines(driver_for))
    return plan_stages((*first, *node_stages(cluster, images)), cluster.views)
