"""`scale`: change only the number of a service's replicas."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clusterctl.operations.changing import change
from clusterctl.operations.moving import move
from clusterctl.operations.serving import look
from clusterctl.operations.session import Session
from clusterctl.planning.moves import ServiceMoves, scaling
from clusterctl.survey.survey import Survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class ScalePlan:
    """The replicas that start or stop."""

    survey: Survey
    moves: ServiceMoves

    @property
    def lines(self) -> list[str]:
        """Return the changes; none if the service has that many replicas."""
        moves = self.moves
        found = [f"start {each.name} on {each.host}" for each in moves.new]
        found += [
            f"stop {each.name} on {each.host}, after its running requests" for each in moves.leaving
        ]
        found += [f"give up {name}, whose host is dead" for name in moves.lost]
        found += moves.awake
        if not found and moves.members != self.survey.service(moves.service).listed:
            found.append("gateway: update its list of replicas")
        return found


def run(
    session: Session, name: str, number: int, *, agree: Callable[[ScalePlan], None]
) -> ScalePlan:
    """Give the service `number` replicas, and return what was done. Those that stay keep their
    hosts and flags, and are not restarted. A second run changes nothing, and after an interruption
    it continues.

    `agree` shows the plan, and raises if the user declines. Raises what `scaling` and `Rollout.run`
    raise.
    """

    def decide(transports: Mapping[str, Transport]) -> ScalePlan:
        survey = look(session.inventory, transports)
        return ScalePlan(survey, scaling(survey, name, number))

    def act(plan: ScalePlan, lock: ClusterLock | None) -> ScalePlan:
        if lock:
            move(plan.survey, [plan.moves], lock, session.progress)
        return plan

    return change(session, "scale", decide, agree, act, lambda plan: set(plan.lines))
