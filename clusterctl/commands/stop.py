"""`stop`: stop one service with all its replicas; the cluster stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from clusterctl.engine.events import Note
from clusterctl.engine.plan import Plan, PlannedChange
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.inventory.model import Inventory
from clusterctl.node.documents import service_of
from clusterctl.operations.session import Session
from clusterctl.operations.stopping import end
from clusterctl.planning.swaps import require_no_second
from clusterctl.serving.declaration import served_at
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


def make_plan(session: Session, name: str) -> tuple[Plan, tuple[ClusterctlError, ...]]:
    """Return the plan of `run`, and the errors of hosts with replicas that do not answer. Raises
    what `run` raises before it changes anything."""
    with session.connected() as transports:
        survey, replicas = _replicas(session.inventory, name, transports)
    return changes_of(survey, name, replicas), tuple(survey.errors.values())


def changes_of(survey: Survey, name: str, replicas: Sequence[Replica]) -> Plan:
    """Return the changes that stop these replicas of the service."""
    stage, head = f"Stop {name}", survey.inventory.head.name
    changes = []
    for each in replicas:
        limit = f"{each.document.shutdown_timeout:g} s"
        summary = f"let requests of {each.name} finish for {limit}, end vLLM"
        change = Change(summary, disruptive=True)
        changes.append(PlannedChange(stage, each.host, "service", change))
    if survey.service(name).listed:
        change = Change("take it out of the gateway")
        changes.append(PlannedChange(stage, head, "gateway", change))
    return Plan(tuple(changes))


def left_running(survey: Survey, name: str) -> list[Note]:
    """Return a note for each of the service's hosts that was removed from the inventory."""
    inventory = survey.inventory
    known = {host.name for host in inventory.hosts}
    return [
        Note(
            f"is not in the inventory: its replica of {name} keeps running; put it back into "
            f"{inventory.file}, and run clusterctl down --limit {host}",
            host,
        )
        for host in dict.fromkeys(member.host for member in survey.service(name).members)
        if host not in known
    ]


def run(session: Session, name: str) -> None:
    """Stop the service called `name` and wait until all its replicas have ended.

    Raises UsageError if it does not exist, RequirementsNotMet if no supervisor is running on the
    head, StepFailed if a replica does not end, and the errors of hosts with replicas that do not
    answer, after the others have stopped.
    """
    inventory, sink = session.inventory, session.progress
    with session.connected() as transports:
        _replicas(inventory, name, transports)  # refuse an unknown name without the lock
        with ClusterLock.of(inventory, transports, "stop") as lock:
            survey, replicas = _replicas(inventory, name, transports)
            for note in left_running(survey, name):
                sink(note)
            end(survey, name, replicas, lock, sink)


def _replicas(
    inventory: Inventory, name: str, transports: Mapping[str, Transport]
) -> tuple[Survey, Sequence[Replica]]:
    """Return the service's replicas, and the survey of the hosts with them."""
    head = inventory.head.name
    survey = take_survey(inventory, {head: transports[head]})
    survey.require_supervised_head()
    hosts = {member.host for member in survey.service(name).members} - {head}
    if hosts:
        known = {host: transports[host] for host in transports if host in hosts | {head}}
        survey = take_survey(inventory, known).require_answers((head,))
    require_no_second(survey, name)
    service = survey.service(name)
    if not service.replicas and service.listed is None:
        served_at(survey, name)  # refuses an unknown name
        raise UsageError(
            f"{name} is one replica of a service, and a service stops as a whole",
            hint=f"clusterctl stop {service_of(name)}",
        )
    return survey, service.replicas
