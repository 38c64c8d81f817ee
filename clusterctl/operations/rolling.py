"""Changes to hosts that clients do not notice if they can be spared: replicas first leave the
gateway, while others of their services serve, and get requests again once they have proven
themselves. Replicas that a killed run left out of the gateway are brought back by the next run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from clusterctl import deadlines
from clusterctl.engine.events import EventSink, Note
from clusterctl.engine.step import Change, HostView, Step, Unknown
from clusterctl.errors import ClusterctlError, StepFailed
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
from clusterctl.steps.engines import Engines
from clusterctl.steps.node_container import own_container
from clusterctl.survey.cluster import Cluster
from clusterctl.survey.formation import clock_of
from clusterctl.survey.gateways import gateway_states
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey, read_reported_state, take_survey
from clusterctl.transport.lock import ClusterLock


def replicas_on(cluster: Cluster, hosts: Iterable[str]) -> list[Replica]:
    """Return the declared replicas with a rank on one of `hosts`."""
    ours = {cluster.topology.node(host).node_ip for host in hosts}
    every = cluster.survey.replicas.values()
    return [replica for replica in every if ours & set(replica.document.node_ips)]


def groups(cluster: Cluster, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return which of the hosts `names` with replicas change together: a replica changes with all
    its hosts. The head's come last, so that a release that does not start is not discovered there.
    """
    found: dict[str, set[str]] = {}
    hosts = {node.node_ip: node.host for node in cluster.topology.nodes}
    for replica in cluster.survey.replicas.values():
        own = {hosts[ip] for ip in replica.document.node_ips if hosts.get(ip) in names}
        joined = own.union(*(found.get(host, ()) for host in own))
        found |= dict.fromkeys(joined, joined)

    head = cluster.inventory.head.name
    each = {tuple(name for name in names if name in joined) for joined in found.values()}
    return sorted(each, key=lambda group: (head in group, names.index(group[0])))


def spares(cluster: Cluster, hosts: Sequence[str]) -> bool:
    """Whether services continue without `hosts`: they have replicas, and others of each are ready.
    A service declared by an older version needs every node of Ray."""
    survey, leaving = cluster.survey, replicas_on(cluster, hosts)
    if not leaving or not all(replica.document.node_ips for replica in survey.replicas.values()):
        return False

    staying = [replica for replica in survey.replicas.values() if replica not in leaving]
    served = {replica.document.service for replica in staying if replica.serves}
    return {replica.document.service for replica in leaving} <= served


@dataclass(frozen=True)
class Rolling:
    """The replicas of hosts that change together. `lock` is None for a plan, which applies nothing.
    `old`: restores a host's previous container, if that has a different image."""

    cluster: Cluster
    hosts: tuple[str, ...]
    lock: ClusterLock | None
    sink: EventSink
    old: Step | None = None

    @property
    def spared(self) -> bool:
        return spares(self.cluster, self.hosts)

    def around(self, steps: Sequence[Step]) -> tuple[Step, ...]:
        """Return the steps of each host: `steps`, which interrupt no service if others serve. On a
        host with a gateway, its clients notice."""
        gateways = {host.name for host in self.cluster.inventory.gateways}
        if self.spared and not gateways & set(self.hosts):
            steps = tuple(map(NonDisruptive, steps))
        return tuple(OrRestored(step, self) for step in steps) if self.old else tuple(steps)

    def named(self, *, draining: bool) -> list[str]:
        """Return the replicas that are members in the head's lists, draining or not."""
        head, cluster = self.cluster.head.transport, self.cluster.inventory.cluster
        documents = [replica.document for replica in replicas_on(self.cluster, self.hosts)]
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
        """Return the cluster as it is now. Raises the errors of hosts that do not answer, but for
        those that --limit left out."""
        transports = self.cluster.survey.transports
        survey = take_survey(self.cluster.inventory, transports)
        return replace(self.cluster, survey=survey.require_answers(self.cluster.held))

    def rollouts(self, now: Cluster, deaf: Collection[str] = ()) -> list[Rollout]:
        """Return the replicas of each service as they are declared there, the second of two that
        swap first: it starts in a pause of the other, which may have none once it gets requests.
        `deaf`: as in Rollout."""
        survey, sink, found = now.survey, self.sink, list[Rollout]()
        key = read_key(survey.inventory, now.head.transport)
        by_service: dict[str, list[PlannedReplica]] = {}
        there = replicas_on(now, self.hosts)
        for replica in sorted(there, key=lambda each: not each.document.swap_with):
            planned = as_declared(survey, replica)
            by_service.setdefault(replica.document.service, []).append(planned)
        for service, own in by_service.items():
            members = survey.service(service).require_list()
            found.append(Rollout(survey, own, (), members, key, self.lock, sink, deaf))
        return found

    def rejoin(self) -> None:
        """Wait until each replica has proven itself, and let it serve again."""
        for host in self.hosts:
            self._await_report(self.cluster.views[host])
        for rollout in self.rollouts(self.now()):
            for each in rollout.replicas:
                rollout.rejoin(each)

    def answered(self) -> str:
        """Return what the gateways made of requests since the survey; empty if they had none. They
        write their counts every few seconds, and one that does not run counts nothing."""
        survey, failed, every = self.cluster.survey, 0, 0
        for host, state in gateway_states(survey.inventory, survey.transports).items():
            before = survey.states.get(host)
            if state and before:
                ours = state.gateway.failed - before.gateway.failed
                failed += ours
                every += ours + state.gateway.served - before.gateway.served
        return f"{failed:,} of {every:,} requests failed meanwhile" if every > 0 else ""

    def go_back(self, error: ClusterctlError) -> None:
        """Restore the hosts' previous containers, and add the outcome to `error`."""
        if self.old is None:
            return
        hosts = ", ".join(self.hosts)
        self.sink(Note(f"rolling back to the previous image: {error.summary}", self.hosts[0]))
        try:
            for host in self.hosts:
                self.old.apply(self.cluster.views[host], Change("go back"))
            self.rejoin()
        except ClusterctlError as failed:
            error.summary += f"; {hosts} could not return to the previous image: {failed.summary}"
        else:
            error.summary += f"; {hosts} is back on the image of before, and serves"

    def _await_report(self, view: HostView) -> None:
        """Wait for a report from the running supervisor: its predecessor left an old one."""
        inventory, since = self.cluster.inventory, clock_of(view.transport)

        def reported() -> bool | None:
            state = read_reported_state(inventory, view.transport)
            return (state is not None and state.time > (since or 0.0)) or None

        if not deadlines.wait_until(reported, deadlines.WAIT_FOR_RAY, every=0.5):
            raise StepFailed(
                f"its supervisor has reported nothing for {deadlines.WAIT_FOR_RAY:.0f} s",
                host=view.host.name,
                hint=f"clusterctl logs --host {view.host.name}",
            )


@dataclass(frozen=True)
class LeaveGateway:
    """Step: the gateway sends the hosts' replicas nothing while one of `steps` interrupts them."""

    rolling: Rolling
    steps: Sequence[Step]
    title = "replicas"

    def check(self, _view: HostView) -> Change | None:
        views = (self.rolling.cluster.views[host] for host in self.rolling.hosts)
        if not any(interrupts(step.check(each)) for each in views for step in self.steps):
            return None
        names = ", ".join(self.rolling.named(draining=False))
        if not names:
            return None
        others = f"send requests of {names} to others"
        return Change(others if self.rolling.spared else f"finish the requests of {names}")

    def apply(self, view: HostView, _change: Change) -> None:
        now = self.rolling.now()
        if self.rolling.spared and not spares(now, self.rolling.hosts):
            raise _nobody_else(view)
        for rollout in self.rolling.rollouts(now):
            for each in rollout.replicas:
                rollout.leave(each)


@dataclass(frozen=True)
class EndGracefully:
    """Step: the node container is stopped, with time for running requests, before one of `steps`
    gives its supervisor a new head, for which Ray and its replicas would end at once.

    Gateways that have joined the new head send it nothing any more. Others still hear the earlier
    one; they notice that the replica takes no requests.
    """

    rolling: Rolling
    steps: Sequence[Step]
    engines: Engines
    title = "replicas"

    def check(self, view: HostView) -> Change | None:
        found = own_container(self.engines(view), self.rolling.cluster.inventory.cluster)
        if found is None or not found.running:
            return None
        if not any(interrupts(step.check(view)) for step in self.steps):
            return None
        names = ", ".join(each.name for each in replicas_on(self.rolling.cluster, [view.host.name]))
        return Change(f"finish the requests of {names}, then stop the container", disruptive=True)

    def apply(self, view: HostView, _change: Change) -> None:
        rolling, driver = self.rolling, self.engines(view)
        now = rolling.now()
        if rolling.spared and not spares(now, rolling.hosts):
            raise _nobody_else(view)
        head = now.inventory.head.name
        if view.host.name == rolling.hosts[0] and head not in rolling.hosts:
            state = now.survey.fresh_state(head)
            joined = {node.name for node in (state.nodes if state else ()) if node.alive}
            for rollout in rolling.rollouts(now, now.views.keys() - joined):
                for each in rollout.replicas:
                    rollout.leave(each)
        if found := own_container(driver, rolling.cluster.inventory.cluster):
            view.say(f"stopping the container, at most {found.stop_timeout} s")
            driver.stop(found.id, found.stop_timeout)


@dataclass(frozen=True)
class Wrapped:
    """Step: does what another one does, and more in `apply` or `check` of a subclass."""

    step: Step

    @property
    def title(self) -> str:
        return self.step.title

    def check(self, view: HostView) -> Change | Unknown | None:
        return self.step.check(view)

    def apply(self, view: HostView, change: Change) -> None:
        self.step.apply(view, change)


@dataclass(frozen=True)
class ThenProven(Wrapped):
    """Step: wraps another one, after which the hosts' replicas prove themselves."""

    rolling: Rolling

    def apply(self, view: HostView, change: Change) -> None:
        super().apply(view, change)
        if view.host.name == self.rolling.hosts[0]:
            self.rolling.rejoin()


@dataclass(frozen=True)
class NonDisruptive(Wrapped):
    """Step: wraps another one, whose change does not interrupt services."""

    def check(self, view: HostView) -> Change | Unknown | None:
        change = super().check(view)
        return replace(change, disruptive=False) if isinstance(change, Change) else change


@dataclass(frozen=True)
class OrRestored(Wrapped):
    """Step: wraps another one; if that fails, the hosts get their previous containers back."""

    rolling: Rolling

    def apply(self, view: HostView, change: Change) -> None:
        try:
            super().apply(view, change)
        except ClusterctlError as error:
            self.rolling.go_back(error)
            raise


@dataclass(frozen=True)
class ReturnToGateway:
    """Step: no replica of the hosts is left out of the gateway. A drained host has none."""

    rolling: Rolling
    title = "replicas"

    def check(self, _view: HostView) -> Change | None:
        if set(self.rolling.hosts) <= set(self.rolling.cluster.survey.drained):
            return None
        names = self.rolling.named(draining=True)
        return Change(f"wait for {', '.join(names)}, then send requests again") if names else None

    def apply(self, _view: HostView, _change: Change) -> None:
        try:
            self.rolling.rejoin()
        except ClusterctlError as error:
            self.rolling.go_back(error)
            raise
        if told := self.rolling.answered():
            self.rolling.sink(Note(told, self.rolling.hosts[0]))


def _nobody_else(view: HostView) -> StepFailed:
    return StepFailed(
        "no other replica of its services is ready now: nothing was changed on this host",
        host=view.host.name,
        hint="clusterctl status",
    )


def interrupts(change: Change | Unknown | None) -> bool:
    """Whether a change stops or restarts services, or may do so."""
    return isinstance(change, Unknown) or (change is not None and change.disruptive)


def left_out(survey: Survey) -> set[str]:
    """Return the hosts of members that an interrupted run left out of the gateway."""
    members = [member for service in survey.services.values() for member in service.members]
    draining = {member.host for member in members if member.draining}
    return draining - set(survey.drained)
