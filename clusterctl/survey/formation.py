"""Wait until Ray has every node that the inventory declares, or report why some are missing."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace

from clusterctl import deadlines
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.deadlines import Wait
from clusterctl.engine.events import EventSink, Note, StageStarted
from clusterctl.errors import ClusterctlError, Interrupted, Problems, RayNotFormed, raise_all
from clusterctl.node.contract import breaches
from clusterctl.node.documents import NodeState
from clusterctl.node.files import NodePaths
from clusterctl.ray_cluster.contract import await_formed
from clusterctl.ray_cluster.nodes import expected_nodes
from clusterctl.survey.cluster import Cluster
from clusterctl.survey.survey import Survey, read_reported_state
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values
from clusterctl.transport.host_files import READ_END

TITLE = "Ray holds every host"


@dataclass(frozen=True)
class Formed:
    """The formed cluster, as reported by Ray."""

    nodes: int
    gpus: float
    ray_version: str
    vllm_version: str


def await_formation(
    cluster: Cluster, *, since: float | None, sink: EventSink, cancelled: threading.Event
) -> Formed:
    """Wait until Ray has the head and the hosts that --limit selects, as the contract requires.

    `since`: Unix seconds on the head's clock; older reports are ignored, as they may be the
    previous container's. Raises RayNotFormed for every host that is missing or differs, with its
    supervisor's report and the end of its Ray log.
    """
    started = time.monotonic()
    head = cluster.inventory.head.name
    sink(StageStarted(TITLE, cluster.held))

    def read() -> NodeState | None:
        if cancelled.is_set():
            raise Interrupted("stopped on request while waiting for Ray")
        state = read_reported_state(cluster.inventory, cluster.views[head].transport)
        if state is None or (since is not None and state.time <= since):
            return None
        # Ignore hosts that --limit left out, whether they are in Ray or not.
        return replace(
            state, nodes=[node for node in state.nodes if node.name not in cluster.left_out]
        )

    expected = [node for node in expected_nodes(cluster.topology) if node.host in cluster.held]
    wait = Wait(say=lambda text: sink(Note(text)))
    try:
        state = await_formed(expected, read, deadlines.FORMATION, wait)
    except (RayNotFormed, Problems) as error:
        raise_all(_with_causes(cluster, error))
        raise  # never reached, since there are errors; type checkers do not know
    seconds = time.monotonic() - started
    alive = [node for node in state.nodes if node.alive]
    gpus = sum(node.gpus for node in alive)
    formed = Formed(len(alive), gpus, state.ray_version, state.vllm_version)
    device = accelerator_named(cluster.inventory.accelerator).device
    seen = f"{formed.nodes} nodes, {formed.gpus:g} {device}s, Ray {formed.ray_version}"
    sink(Note(f"Ray reports {seen}, after {seconds:.0f} s", head))
    return formed


_LAST_LINES = f"""{READ_END}
read_end "$1" 65536 | tail -n 15
"""


def _with_causes(cluster: Cluster, error: ClusterctlError) -> list[ClusterctlError]:
    """Return the same errors, each with the current report of the host's supervisor and the end of
    its Ray log."""
    errors = error.errors if isinstance(error, Problems) else (error,)
    named = {single.host for single in errors if single.host in cluster.views}
    hosts = {name: cluster.views[name].transport for name in named if name}
    file = str(NodePaths(cluster.inventory.cluster).log("ray"))

    def ray_log(transport: Transport) -> str | None:
        argv = ["sh", "-c", _LAST_LINES, "ray-log", file]
        text = transport.run(argv, sudo=True, timeout=deadlines.SMALL_FILE).stdout.strip()
        return f"the end of {file}:\n{text}" if text else None

    logs = values(fan_out(hosts, ray_log))
    states = values(fan_out(hosts, lambda each: read_reported_state(cluster.inventory, each)))
    for single in errors:
        state = states.get(single.host or "")
        single.summary = told_by(single.summary, state)
        single.detail = single.detail or logs.get(single.host or "")
    return list(errors)


def told_by(summary: str, state: NodeState | None) -> str:
    """Return the summary with the time waited and the supervisor's last report."""
    waited = f"{summary} (waited {deadlines.FORMATION:.0f} s)"
    if state is None:
        return f"{waited}; its supervisor has not reported anything"
    detail = f": {state.ray_detail}" if state.ray_detail else ""
    return f"{waited}; its supervisor says that its Ray is {state.ray}{detail}"


def clock_of(transport: Transport) -> float | None:
    """Whole Unix seconds on the host's clock; None if `date` printed something else."""
    text = transport.run(["date", "+%s"]).stdout.strip()
    return float(text) if text.isdigit() else None


def require_formed(survey: Survey) -> NodeState:
    """Return the head's state if Ray has every node of the topology. Raises RayNotFormed for each
    that differs, and what `require_supervised_head` raises."""
    state = survey.require_supervised_head()
    raise_all(
        RayNotFormed(
            breach.summary, host=breach.host, hint=f"clusterctl bootstrap {survey.inventory.file}"
        )
        for breach in breaches(expected_nodes(survey.topology), state.nodes)
    )
    return state
