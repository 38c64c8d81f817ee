"""`drain` and `undrain`: keep a host without replicas until it is undrained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from clusterctl.operations.changing import change
from clusterctl.operations.moving import drain_host, mark
from clusterctl.operations.session import Session
from clusterctl.planning.moves import ServiceMoves, moves_from, require_known
from clusterctl.survey.survey import Survey, take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


@dataclass(frozen=True)
class DrainPlan:
    """What draining a host would change."""

    survey: Survey
    host: str
    marks: bool  # The host is not marked as drained yet
    moves: Sequence[ServiceMoves]

    @property
    def lines(self) -> list[str]:
        """Return the changes; none if the host is already drained."""
        marked = [f"stop placing replicas on {self.host}"] if self.marks else []
        return [*marked, *(line for each in self.moves for line in each.lines)]


def drain(session: Session, host: str, *, agree: Callable[[DrainPlan], None]) -> bool:
    """Move all replicas away from `host`; return whether anything changed. Running it twice changes
    nothing, and after an interruption it continues.

    `agree` shows the plan, and raises if the user declines. The host is marked first, so that no
    other run places replicas on it. Raises UsageError for an unknown host, RequirementsNotMet for
    services that cannot be moved, and what `Rollout.run` raises.
    """

    def look(transports: Mapping[str, Transport]) -> DrainPlan:
        survey = take_survey(session.inventory, transports).without_dead()
        require_known(survey, host)
        survey.require_answers()
        marks = host not in survey.drained
        return DrainPlan(survey, host, marks, moves_from(survey, host))

    def act(plan: DrainPlan, lock: ClusterLock | None) -> bool:
        if lock:
            drain_host(plan.survey, host, plan.moves, lock, session.progress)
        return lock is not None

    return change(session, "drain", look, agree, act, lambda plan: set(plan.lines))


def undrain(session: Session, host: str) -> bool:
    """Allow replicas on `host` again; return whether it was drained. Raises UsageError for an
    unknown host."""
    inventory, head = session.inventory, session.inventory.head
    with (
        session.connected((head, *inventory.keepers)) as transports,
        ClusterLock.of(inventory, transports, "undrain") as lock,
    ):
        survey = take_survey(inventory, {head.name: transports[head.name]}).require_answers()
        require_known(survey, host)
        if host not in survey.drained:
            return False
        mark(survey, [name for name in survey.drained if name != host], lock)
    return True
