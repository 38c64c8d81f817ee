"""`remove`: take one worker out of a running cluster, whether it answers or is dead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from clusterctl.engine.events import Note
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import OnFailure, Plan, Stage
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.errors import UsageError, raise_all
from clusterctl.inventory.load import line_of
from clusterctl.operations.changing import change
from clusterctl.operations.moving import mark, move
from clusterctl.operations.nodes import firewall_stage, removal_stages
from clusterctl.operations.session import Session
from clusterctl.planning.moves import ServiceMoves, moves_from, require_known
from clusterctl.ray_cluster.node_files import directories_present, files_present
from clusterctl.survey.cluster import Cluster, topology_of
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class Removal:
    """What removing a host would change."""

    survey: Survey  # Without dead hosts
    moves: Sequence[ServiceMoves]
    stages: Sequence[Stage]  # The host's own, and then the other hosts'
    views: Mapping[str, HostView]
    dead: bool
    drained: bool
    plan: Plan

    @property
    def lines(self) -> list[str]:
        """What happens to services."""
        return [line for each in self.moves for line in each.lines]

    @property
    def shown(self) -> Set[object]:
        """What changes; empty for a host that was already removed."""
        return {*self.lines, *self.plan.shown, *(("undrain",) if self.drained else ())}


def run(
    session: Session, host: str, *, purge: bool, agree: Callable[[Removal], None]
) -> tuple[bool, int]:
    """Move replicas away from `host`, take down its node, and remove it from the other hosts'
    lists. Return whether anything changed, and the inventory line to delete.

    A dead host can be removed: its replicas start elsewhere if there is room. Running it twice
    changes nothing, and after an interruption it continues. Raises UsageError for the head and for
    unknown hosts, RequirementsNotMet for services that cannot be moved, and what `Rollout.run`
    raises.
    """
    inventory, sink = session.inventory, session.progress
    if host == inventory.head.name:
        raise UsageError(
            f"{host} is the head, without which there is no cluster: it has Ray's state and the "
            "list of services",
            hint=f"give `role: head` to another host in {inventory.file}, and `role: worker` to "
            f"{host}; clusterctl bootstrap {inventory.file}; then remove it",
        )
    line = line_of(inventory, host)

    def look(transports: Mapping[str, Transport]) -> Removal:
        return plan_removal(take_survey(inventory, transports), host, purge=purge)

    def act(removal: Removal, lock: ClusterLock | None) -> bool:
        if lock is None:
            return False
        # No other run gives it replicas meanwhile.
        survey = mark(removal.survey, sorted({*removal.survey.drained, host}), lock)
        move(survey, removal.moves, lock, sink)
        if removal.dead:
            sink(Note("does not answer and has left Ray: nothing is taken down on it", host))
        done = execute_held(removal.stages, removal.views, sink, lock.ensure_held)
        raise_all(done.set_aside.values())
        # In the inventory again, it is a host like any other.
        mark(survey, [name for name in survey.drained if name != host], lock)
        return True

    changed = change(session, "remove", look, agree, act, lambda plan: plan.shown)
    return changed, line


def plan_removal(full: Survey, host: str, *, purge: bool) -> Removal:
    """Plan the removal of a worker. `full`: the survey of all hosts."""
    inventory = full.inventory
    survey = full.without_dead()
    require_known(survey, host)
    survey.require_answers()
    moves, dead = moves_from(survey, host), host in survey.left_out
    others = nodes_besides(full, host)
    cluster = Cluster(others, topology_of(others), others.views, tuple(others.views))
    names = tuple(others.views)
    files = files_present(others.inventory, cluster.topology, others.facts)
    aside = OnFailure.SET_HOST_ASIDE
    stages = [
        *(removal_stages(inventory, (host,), purge=purge) if not dead else ()),
        Stage("Directories", names, (directories_present(inventory.cluster),), aside),
        Stage("Node files", names, (files,), aside),
    ]
    if inventory.network.firewall:
        stages.append(firewall_stage(cluster, names))
    views = {**others.views, **({} if dead else {host: survey.views[host]})}
    plan, drained = plan_stages(stages, views), host in survey.drained
    return Removal(survey, moves, stages, views, dead, drained, plan)


def nodes_besides(full: Survey, host: str) -> Survey:
    """Return the survey of the other hosts, without those that answer but are not nodes, such as
    one that was removed but is still in the inventory."""
    inventory = full.inventory
    hosts = tuple(
        each
        for each in inventory.hosts
        if each.name != host and (each.name in full.containers or each.name in full.errors)
    )
    names = {each.name for each in hosts}
    return Survey(
        inventory.model_copy(update={"hosts": hosts}),
        {name: each for name, each in full.transports.items() if name in names},
        {name: each for name, each in full.outcomes.items() if name in names},
    )
