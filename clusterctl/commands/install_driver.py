"""`bootstrap --install-driver`: install the driver first, which all later checks need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from clusterctl.engine.carry_out import carry_out
from clusterctl.engine.events import EventSink
from clusterctl.engine.executor import execute_held
from clusterctl.engine.plan import Plan, Stage
from clusterctl.engine.plan import plan as plan_stages
from clusterctl.engine.step import HostView
from clusterctl.inventory.model import Host, Inventory
from clusterctl.steps.nvidia_driver import DriverSource, NvidiaDriver
from clusterctl.survey.survey import connected, take_survey
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.lock import ClusterLock


def make_plan(
    inventory: Inventory, hosts: Iterable[Host], credentials: Credentials, source: DriverSource
) -> Plan:
    """Return the plan of `run`. Changes nothing."""
    limited = tuple(hosts)
    with _seen(inventory, limited, credentials) as found:
        return plan_stages(_stages(limited, source), found)


def run(
    inventory: Inventory,
    hosts: Iterable[Host],
    credentials: Credentials,
    source: DriverSource,
    *,
    agree: Callable[[Plan], None],
    sink: EventSink,
) -> int:
    """Install the driver where it is missing; return how many hosts changed. Raises all errors."""
    limited = tuple(hosts)
    stages = _stages(limited, source)
    with _seen(inventory, limited, credentials) as found:

        def act(_plan: Plan, lock: ClusterLock | None) -> int:
            return execute_held(stages, found, sink, lock.ensure_held).changed if lock else 0

        head = found[inventory.head.name].transport
        lock = partial(ClusterLock, head, inventory.cluster, "bootstrap")
        return carry_out(
            lambda: plan_stages(stages, found), agree, lock, act, lambda plan: plan.shown
        )


def _stages(hosts: Iterable[Host], source: DriverSource) -> tuple[Stage, ...]:
    return (Stage("NVIDIA driver", tuple(h.name for h in hosts), (NvidiaDriver(source),)),)


@contextmanager
def _seen(
    inventory: Inventory, hosts: tuple[Host, ...], credentials: Credentials
) -> Iterator[dict[str, HostView]]:
    """Yield views of `hosts` and the head, which holds the cluster's lock."""
    names = {host.name for host in hosts} | {inventory.head.name}
    involved = tuple(host for host in inventory.hosts if host.name in names)
    with connected(involved, credentials) as transports:
        yield take_survey(inventory, transports).require_answers().views
