"""`serve`: plan a service, declare its replicas, and wait until they are proven.

It starts no process on a host itself: it writes documents that the hosts' supervisors follow, even
after this run has ended.
"""

from __future__ import annotations

from functools import partial

from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink
from clusterctl.inventory.model import Inventory
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
from clusterctl.serving.request import ServiceRequest
from clusterctl.survey.survey import connected
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def run(
    inventory: Inventory,
    request: ServiceRequest,
    credentials: Credentials,
    *,
    agree: Agree,
    sink: EventSink,
) -> Served:
    """Serve the model and prove the service. Running it twice changes nothing.

    Raises UsageError, RequirementsNotMet, DoesNotFit, RayNotFormed, StepFailed, LockHeld.
    """
    wanted = Wanted.of(request, inventory)
    with connected(inventory.hosts, credentials) as transports:

        def decide() -> Decision:
            return decide_on(look(inventory, transports), wanted)

        def act(decision: Decision, lock: ClusterLock | None) -> Served:
            prepare(decision, sink)
            return bring_up(decision, lock, sink)

        lock = partial(ClusterLock.of, inventory, transports, "serve")
        return carry_out(
            decide, lambda found: agree(found.changes), lock, act, lambda found: found.changes.shown
        )
