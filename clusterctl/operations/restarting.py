"""A restart of a service as declared, one replica after the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import time

from clusterctl.engine.events import EventSink
from clusterctl.node.documents import MembersDocument, ServiceDocument
from clusterctl.operations.changing import change
from clusterctl.operations.preparing import prepare_hosts
from clusterctl.operations.session import Session
from clusterctl.planning.question import plan_as_served, question_again
from clusterctl.planning.replicas import as_declared
from clusterctl.serving.declaration import read_key, require_service
from clusterctl.serving.proof import Proof
from clusterctl.serving.rollout import Rollout
from clusterctl.serving.service import PlannedReplica, fingerprint
from clusterctl.survey.services import Replica, partner_of
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class RestartPlan:
    """The replicas that restart, and what users notice."""

    survey: Survey
    replicas: Sequence[Replica]
    interrupts: bool  # No other replica serves meanwhile
    doubts: Sequence[str] = ()  # Why they may not start again, as the planner sees it

    @property
    def lines(self) -> list[str]:
        return [*(self._line(replica) for replica in self.replicas), *self.doubts]

    def _line(self, replica: Replica) -> str:
        start = f"restart {replica.name} on {replica.host}"
        if not self.interrupts:
            return f"{start}, after its running requests, while the others serve"
        state = replica.state
        last = f" (last time {state.ready_seconds:.0f} s)" if state and state.ready_seconds else ""
        return f"{start}: no answers until vLLM is ready again{last}"


def run(
    session: Session,
    name: str,
    *,
    agree: Callable[[RestartPlan], None],
    before: Callable[[RestartPlan], None] = lambda _: None,
) -> dict[str, Proof]:
    """Restart the service, or the one replica, called `name`; return the proofs by replica.

    `agree` shows the plan, and raises if the user declines. `before` is called under the lock, when
    nothing stands against the restart. All hosts must answer: vLLM starts only while Ray has every
    node. Raises UsageError for an unknown name, and what `Rollout.run` raises.
    """

    def look(transports: Mapping[str, Transport]) -> RestartPlan:
        return plan_restart(take_survey(session.inventory, transports), name)

    def act(plan: RestartPlan, lock: ClusterLock | None) -> dict[str, Proof]:
        survey, sink = plan.survey, session.progress
        replicas = [restarted(survey, replica) for replica in plan.replicas]
        prepare_again(survey, plan.replicas, replicas, sink)
        before(plan)
        service = survey.service(plan.replicas[0].document.service)
        members = _none_draining(service.require_list())
        key = read_key(survey.inventory, survey.transports[survey.inventory.head.name])
        return Rollout(survey, replicas, (), members, key, lock, sink).run()

    return change(session, "restart", look, agree, act, lambda plan: set(plan.lines))


def restarted(survey: Survey, replica: Replica) -> PlannedReplica:
    planned = as_declared(survey, replica)
    return replace(planned, document=again(planned.document), again=True)


def again(document: ServiceDocument) -> ServiceDocument:
    """Return the document with a new fingerprint, which makes its supervisor restart vLLM. `serve`
    compares commands and environments instead, and finds nothing changed afterwards."""
    now = f"{fingerprint(document.argv, document.env)} restarted at {time():.6f}"
    return replace(document, fingerprint=now)


def plan_restart(survey: Survey, name: str) -> RestartPlan:
    survey.require_answers()
    survey.require_supervised_head()
    replicas = survey.service(name).replicas
    if not replicas:
        document = require_service(name, {each: r.document for each, r in survey.replicas.items()})
        replicas = (survey.replicas[document.name],)
    # A whole service restarts those that do not serve first, and proves each before the next.
    service = survey.service(replicas[0].document.service)
    service.require_list()
    serving = [each for each in service.replicas if each.serves and each not in replicas]
    found = plan_as_served(survey, replicas[0].document)
    doubts = []
    if found and found[1].verdict == "does not fit":
        doubts.append(f"the planner expects that {name} no longer fits on its GPUs: clusterctl fit")
    partner = partner_of(service.name, survey.replicas.values())
    if partner and partner.serves:
        doubts.append(
            f"{name} starts again only once {partner.document.service}, with which it swaps, has "
            "had no requests for a while"
        )
    return RestartPlan(survey, replicas, len(replicas) == 1 and not serving, doubts)


def prepare_again(
    survey: Survey, now: Sequence[Replica], planned: Sequence[PlannedReplica], sink: EventSink
) -> None:
    """Make sure that the replicas can start again before they stop. Raises RequirementsNotMet for
    hosts that lost the model, and what `prepare_hosts` raises."""
    asked = question_again(survey, now[0].document)
    hosts = {host for each in planned for host in each.layout.hosts}
    prepare_hosts(survey, planned, asked.model, asked.require_location(hosts), sink)


def _none_draining(members: MembersDocument) -> MembersDocument:
    """Return the members without marks left by an interrupted run."""
    admitted = [replace(member, draining=False) for member in members.members]
    return replace(members, members=admitted)
