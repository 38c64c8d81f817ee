"""What must hold on hosts before replicas start on them, whether new or moved."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.containers.driver import ContainerDriver
from clusterctl.containers.drivers import driver_for
from clusterctl.engine.events import EventSink
from clusterctl.models.location import ModelLocation, copy_from
from clusterctl.models.name import Model
from clusterctl.network.gate import GateScope, ensure_proven
from clusterctl.serving.service import PlannedReplica
from clusterctl.survey.survey import Survey
from clusterctl.transfer.weights.comparison import require_same
from clusterctl.transport.base import Transport


def prepare_hosts(
    survey: Survey,
    replicas: Sequence[PlannedReplica],
    model: Model,
    location: ModelLocation | None,
    sink: EventSink,
    driver: Callable[[Transport], ContainerDriver] = driver_for,
) -> None:
    """Make sure that the hosts of these replicas have the same weights, and that links between the
    ranks of one replica carry collectives: the fabric gate runs unless it has proven them since the
    hosts' containers started."""
    used = {host for each in replicas for host in each.layout.hosts}
    spans_hosts = any(each.layout.spans_hosts for each in replicas)
    if len(used) > 1:
        _compare_weights(survey, used, model, location, sink)

    if spans_hosts:
        everywhere = survey.inventory, survey.topology, survey.transports, survey.facts
        scope = GateScope(*everywhere, driver)
        ensure_proven(scope.only({survey.inventory.head.name, *used}), sink)


def _compare_weights(
    survey: Survey,
    used: set[str],
    model: Model,
    location: ModelLocation | None,
    sink: EventSink,
) -> None:
    """Compare the model's files on the hosts in `used`, if there are any."""
    if location is None or location.random_weights:
        return

    def fix(source: str) -> str:
        return copy_from(model, survey.inventory.models, location.path, source)

    hosts = {name: survey.transports[name] for name in survey.transports if name in used}
    head = survey.inventory.head.name
    require_same(location.path, hosts, head=head, fix=fix, sink=sink)
