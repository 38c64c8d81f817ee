"""Changes of a worker that no client notices: its replicas leave the gateway before, while others
of their services serve, and get requests again once they have proven themselves. What a run that
was killed has left out of the gateway, the next one brings back."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterctl import deadlines
from clusterctl.engine.events import EventSink
from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import StepFailed
from clusterctl.node.documents import (
    Member,
    MembersDocument,
    from_json,
    replica_name,
)
from clusterctl.planning.replicas import as_declared
from clusterctl.serving.declaration import members_file, read_key
from clusterctl.serving.rollout import Rollout
from clusterctl.serving.service import PlannedReplica
from clusterctl.survey.cluster import Cluster
from clusterctl.survey.formation import clock_of
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey, read_reported_state, take_survey
from clusterctl.transport.lock import ClusterLock


def replicas_on(cluster: Cluster, host: str) -> list[Replica]:
    """Return the declared replicas with a rank on `host`."""
    node_ip = cluster.topology.node(host).node_ip
    every = cluster.survey.replicas.values()
    return [replica for replica in every if node_ip in replica.document.node_ips]


def spares(cluster: Cluster, host: str) -> bool:
    """Whether services go on without `host`: it has replicas, and others of each are ready. A
    service without replicas needs every node of Ray."""
    survey, leaving = cluster.survey, replicas_on(cluster, host)
    if not leaving or survey.errors:
        return False
    if any(replica.placed_by_ray for replica in survey.replicas.values()):
        return False

    staying = [replica for replica in survey.replicas.values() if replica not in leaving]
    served = {replica.document.service for replica in staying if replica.serves}
    return {replica.document.service for replica in leaving} <= served


@dataclass(frozen=True)
class Rolling:
    """The replicas of one worker. `lock` is None for a plan, which applies nothing."""

    cluster: Cluster
    host: str
    lock: ClusterLock | None
    sink: EventSink

    def around(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Return `steps` with what comes before and after them. On a host with a gateway, its
        clients notice."""
        gateways = {host.name for host in self.cluster.inventory.gateways}
        inner = steps if self.host in gateways else map(Unnoticed, steps)
        return (LeaveGateway(self, steps), *inner, ReturnToGateway(self))

    def named(self, *, draining: bool) -> list[str]:
        """Return the replicas that the head's lists have as members, draining or not."""
        head, cluster = self.cluster.head.transport, self.cluster.inventory.cluster
        documents = [replica.document for replica in replicas_on(self.cluster, self.host)]
        there = {(document.service, document.replica) for document in documents}
        found = []
        for service in sorted({service for service, _ in there}):
            data = head.read_file(members_file(cluster, service)) or b""
            listed: Sequence[Member] = ()
            with suppress(ValueError):  # `serve` replaces a damaged one
                listed = from_json(MembersDocument, data.decode()).members
            found += [
                replica_name(service, each.replica)
                for each in listed
                if (service, each.replica) in there and each.draining == draining
            ]
        return found

    def now(self) -> Cluster:
        """Return the cluster as it is now. Raises the errors of hosts that do not answer."""
        transports = self.cluster.survey.transports
        survey = take_survey(self.cluster.inventory, transports).require_answers()
        return replace(self.cluster, survey=survey)

    def rollouts(self, now: Cluster) -> list[Rollout]:
        """Return the replicas of each service as they are declared there."""
        survey, sink, found = now.survey, self.sink, list[Rollout]()
        key = read_key(survey.inventory, now.head.transport)
        by_service: dict[str, list[PlannedReplica]] = {}
        for replica in replicas_on(now, self.host):
            planned = as_declared(survey, replica)
            by_service.setdefault(replica.document.service, []).append(planned)
        for service, own in by_service.items():
            members = survey.service(service).listed
            found.append(Rollout(survey, own, (), members, key, self.lock, sink))
        return found


@dataclass(frozen=True)
class LeaveGateway:
    """Step: the gateway sends a worker's replicas nothing while one of `steps` interrupts them."""

    rolling: Rolling
    steps: Sequence[Step]
    title = "replicas"

    def check(self, view: HostView) -> Change | None:
        if not any(interrupts(step.check(view)) for step in self.steps):
            return None
        names = self.rolling.named(draining=False)
        return Change(f"send requests of {', '.join(names)} to others") if names else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        now = self.rolling.now()
        if not spares(now, view.host.name):
            raise StepFailed(
                "no other replica of its services is ready any more: nothing was changed there",
                host=view.host.name,
                hint="clusterctl status",
            )
        for rollout in self.rolling.rollouts(now):
            for each in rollout.replicas:
                rollout.leave(each)


@dataclass(frozen=True)
class Unnoticed:
    """Step: another one, whose change interrupts nobody."""

    step: Step

    @property
    def title(self) -> str:
        return self.step.title

    def check(self, view: HostView) -> Change | Unknown | None:
        change = self.step.check(view)
        return replace(change, disruptive=False) if isinstance(change, Change) else change

    def apply(self, view: HostView, change: Change) -> None:
        self.step.apply(view, change)


@dataclass(frozen=True)
class ReturnToGateway:
    """Step: no replica of the worker is left out of the gateway. A drained host has none."""

    rolling: Rolling
    title = "replicas"

    def check(self, view: HostView) -> Change | None:
        if view.host.name in self.rolling.cluster.survey.drained:
            return None
        names = self.rolling.named(draining=True)
        return Change(f"await {', '.join(names)}, and send requests again") if names else None

    def apply(self, view: HostView, change: Change) -> None:
        del change
        self._await_report(view)
        for rollout in self.rolling.rollouts(self.rolling.now()):
            for each in rollout.replicas:
                rollout.rejoin(each)

    def _await_report(self, view: HostView) -> None:
        """Wait for a report of the supervisor that runs now: the one before it has left its own."""
        inventory, since = self.rolling.cluster.inventory, clock_of(view.transport)

        def reported() -> bool | None:
            state = read_reported_state(inventory, view.transport)
            return (state is not None and state.time > (since or 0.0)) or None

        if not deadlines.wait_until(reported, deadlines.WAIT_FOR_RAY, every=0.5):
            raise StepFailed(
                f"its supervisor has reported nothing for {deadlines.WAIT_FOR_RAY:.0f} s",
                host=view.host.name,
                hint=f"clusterctl logs --host {view.host.name}",
            )


def interrupts(change: Change | Unknown | None) -> bool:
    """Whether a change stops or restarts services, or may do so."""
    return isinstance(change, Unknown) or (change is not None and change.disruptive)


def left_out(survey: Survey) -> set[str]:
    """Return the hosts of members that an interrupted run has left out of the gateway."""
    members = [member for service in survey.services.values() for member in service.members]
    draining = {member.host for member in members if member.draining}
    return draining - set(survey.drained)
