"""`remove`: which hosts it tells that the worker is none of theirs any more."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.commands.remove import nodes_besides
from clusterctl.errors import Unreachable
from clusterctl.facts.model import ContainerFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Gpu, Host
from clusterctl.ray_cluster.nodes import container_name
from clusterctl.survey.survey import Survey
from clusterctl.transport.fanout import Done, Failed, Outcome
from tests.unit.planning.test_prepared_service import Cluster


def test_a_host_that_was_removed_before_stays_out() -> None:
    """Else it gets a node's files again, and services wait for it."""
    cluster = Cluster("nvidia")
    gone, dead = (Host(name=f"gpu{n}", address=f"10.0.0.{n}", gpus=(Gpu(),)) for n in (3, 4))
    hosts = (*cluster.inventory.hosts, gone, dead)
    cluster.inventory = cluster.inventory.model_copy(update={"hosts": hosts})
    node = ContainerFacts("1", container_name("demo"), "sha256:1", {}, "running", 0, "", 0)
    cluster.answers["gpu3"] = replace(cluster.answers["gpu2"])
    for name in ("gpu1", "gpu2"):
        cluster.answers[name] = replace(cluster.answers[name], containers=(node,))
    answers: dict[str, Outcome[Probe]] = {
        name: Done(probe) for name, probe in cluster.answers.items()
    }
    dark = Failed(Unreachable("no answer", host="gpu4"))
    survey = Survey(cluster.inventory, cluster.transports, {**answers, "gpu4": dark})
    others = nodes_besides(survey, "gpu2")
    assert [host.name for host in others.inventory.hosts] == ["gpu1", "gpu4"]
