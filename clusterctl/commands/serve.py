"""`serve`: plan a service, declare its replicas, and wait until they are proven.

It starts no process on a host itself: it writes documents that the hosts' supervisors follow, even
after this run has ended.
"""

from __future__ import annotations

from collections.abc import Mapping

from clusterctl.operations.changing import change
from clusterctl.operations.serving import (
    Agree,
    Decision,
    Served,
    Wanted,
    bring_up,
    decide_on,
    look,
    prepare,
)
from clusterctl.operations.session import Session
from clusterctl.serving.request import ServiceRequest
from clusterctl.transport.base import Transport
from clusterctl.transport.lock import ClusterLock


def run(session: Session, request: ServiceRequest, *, agree: Agree) -> Served:
    """Serve the model and prove the service. Running it twice changes nothing.

    Raises UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed, StepFailed, LockHeld.
    """
    inventory, sink = session.inventory, session.progress
    wanted = Wanted.of(request, inventory)

    def decide(transports: Mapping[str, Transport]) -> Decision:
        return decide_on(look(inventory, transports), wanted)

    def ask(found: Decision) -> None:
        agree(found.changes)

    def act(decision: Decision, lock: ClusterLock | None) -> Served:
        prepare(decision, sink)
        return bring_up(decision, lock, sink)

    return change(session, "serve", decide, ask, act, lambda it: it.changes.shown)
