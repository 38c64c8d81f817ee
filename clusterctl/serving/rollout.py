"""Bring a service's replicas from the declared to the planned state while others serve.

New replicas are started first. Then one replica at a time is changed: it leaves the gateway, its
running requests end, it restarts on its own GPUs, and must prove itself before the next one. A
change that fails is undone on the one replica that was being changed. So a run that is interrupted
at any moment leaves replicas of the old and the new version, and a second run continues.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from clusterctl import deadlines
from clusterctl.engine.events import (
    EventSink,
    Note,
    StepFinished,
    StepStarted,
)
from clusterctl.engine.step import Change
from clusterctl.errors import ClusterctlError, raise_all
from clusterctl.node.documents import (
    GatewayState,
    Member,
    MembersDocument,
    ServiceDocument,
    replica_name,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.serving.declaration import (
    ChangedByOthers,
    ContactLost,
    HostServices,
    members_file,
    service_file,
)
from clusterctl.serving.proof import Proof, prove
from clusterctl.serving.service import PlannedReplica
from clusterctl.survey.gateways import gateway_states
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey, read_reported_state
from clusterctl.transport.fanout import failures, fan_out, values
from clusterctl.transport.lock import ClusterLock


def gateway_let_go(gateway: GatewayState, document: ServiceDocument) -> bool:
    """Whether the gateway has stopped sending to a draining replica, and awaits nothing from it."""
    own = [
        member
        for member in gateway.members
        if (member.service, member.replica) == (document.service, document.replica)
    ]
    return gateway.state != "up" or not any(one.admitted or one.in_flight for one in own)


@dataclass
class Rollout:
    """One run over the replicas of one service.

    members  the members to declare in the end
    lock     None if nothing changes
    deaf     hosts whose gateways do not hear the head
    """

    survey: Survey
    replicas: Sequence[PlannedReplica]
    surplus: Sequence[Replica]
    members: MembersDocument
    key: str
    lock: ClusterLock | None
    sink: EventSink
    deaf: Collection[str] = ()
    proofs: dict[str, Proof] = field(default_factory=dict)
    _written: bytes | None = None  # The members' file on the head
    _now: dict[int, Member] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._written = self.survey.head_file(self._members_file)
        before = self.survey.service(self.members.service).members
        self._now = {member.replica: member for member in before}

    def run(self) -> dict[str, Proof]:
        """Carry out the rollout; return the proof of each replica by name.

        Raises what `HostServices.declare` and `prove` raise; replicas not named in the error serve
        as before.
        """
        held = {replica.host for replica in self.surplus}
        new = [replica for replica in self.replicas if replica.old is None]
        seated = [each for each in new if not held & set(each.layout.hosts)]
        same = [replica for replica in self.replicas if replica.old and not replica.differs]
        # Declared before they are ready: `stop` and a second run find them by their members.
        self._admit(new)
        self._together([*same, *seated])
        changed = [replica for replica in self.replicas if replica.old and replica.differs]
        # Those that do not serve first: nobody misses them.
        for replica in sorted(changed, key=lambda each: self._serves(each.name)):
            self._change(replica)
        for ending in self.surplus:
            self._stop(ending)
        self._together([replica for replica in new if replica not in seated])
        self._declare_members(self.members.members)
        return self.proofs

    def leave(self, replica: PlannedReplica) -> None:
        """Take a declared replica out of the gateway; its running requests end."""
        assert replica.old  # noqa: S101 - it is declared
        self._drain(replica.old)
        self._mark(replica.old, draining=True)

    def rejoin(self, replica: PlannedReplica) -> None:
        """Wait for a declared replica in a new container, prove it, and let it serve again. Raises
        as `run`."""
        assert replica.old  # noqa: S101 - it is declared
        services = self._services(replica.host)
        services.follow(replica.old, deadlines.RAY_IN_NEW_CONTAINER)
        self._prove(replica)
        self._mark(replica.old, draining=False)

    def _together(self, replicas: Sequence[PlannedReplica]) -> None:
        """Start new replicas, and wait for all of these, in parallel."""

        def bring_up(replica: PlannedReplica) -> None:
            if replica.old is None:
                self._declare(replica)
            else:
                self._services(replica.host).follow(replica.old)
                self._prove(replica)

        if not replicas:
            return
        outcomes = fan_out({replica.name: replica for replica in replicas}, bring_up)
        ready = values(outcomes)
        self._admit(each for each in replicas if each.name in ready)
        withdrawn = {
            each.document.replica
            for each in replicas
            if each.name not in ready and self._is_withdrawn(each)
        }
        left = [each for each in self._now.values() if each.replica not in withdrawn]
        self._declare_members(left)
        raise_all(failures(outcomes))

    def _declare(self, replica: PlannedReplica) -> None:
        """Declare and prove a replica; undo it if either fails."""
        assert self.lock  # noqa: S101 - something changes
        self._give_key(replica.host)
        services, document = self._services(replica.host), replica.document
        file = self._file(replica.host, document.name)
        services.declare(self.lock, document, replica.old, file, lambda: self._prove(replica))

    def _is_withdrawn(self, replica: PlannedReplica) -> bool:
        """Whether the document of a new replica that failed is gone from its host."""
        path = service_file(self.survey.inventory.cluster, replica.name)
        try:
            gone = self.survey.transports[replica.host].read_file(path) is None
        except ClusterctlError:
            return False
        return replica.old is None and gone

    def _change(self, replica: PlannedReplica) -> None:
        """Restart a replica with its new document, or only replace the document if that suffices.

        If the new version fails, the old one is restored and awaited before the error is raised."""
        old = replica.old
        assert old  # noqa: S101 - it is declared
        restarts = replica.restarts
        if restarts:
            self._drain(old)
        try:
            self._declare(replica)
        except (ContactLost, ChangedByOthers):
            raise
        except ClusterctlError:
            if restarts and len(self.replicas) > 1:
                self._await_old(replica, old)
            elif restarts:
                self._mark(old, draining=False)  # The gateway admits it once it is ready
            raise
        self._admit([replica])

    def _await_old(self, replica: PlannedReplica, old: ServiceDocument) -> None:
        """Wait for the previous version of a replica whose change failed, and let it serve again.
        The error of the change is the one to report."""
        try:
            self._services(replica.host).follow(old)
        except ClusterctlError as error:
            self.sink(Note(f"{old.name} runs its previous version, which is not ready: {error}"))
            return
        self._mark(old, draining=False)
        others = len(self.replicas) - 1
        self.sink(
            Note(
                f"{old.name} serves its previous version again; "
                f"{others} other{'s' * (others > 1)} never stopped"
            )
        )

    def _stop(self, replica: Replica) -> None:
        assert self.lock  # noqa: S101 - something changes
        self._drain(replica.document)
        file = self._file(replica.host, replica.name)
        self._services(replica.host).stop(self.lock, replica.document, file)
        left = [each for each in self._now.values() if each.replica != replica.number]
        self._declare_members(left)

    def _prove(self, replica: PlannedReplica) -> None:
        transport = self.survey.transports[replica.host]

        self.proofs[replica.name] = prove(
            replica,
            self.key,
            transport,
            lambda: read_reported_state(self.survey.inventory, transport),
            self.sink,
            {node.host: node.node_ip for node in self.survey.topology.nodes},
        )

    def _drain(self, document: ServiceDocument) -> None:
        """Take a serving replica out of the gateway, and wait for its running requests, for at most
        its shutdown timeout; vLLM itself then gives them the same time again."""
        member = self._now.get(document.replica)
        if member is None or not self._serves(document.name):
            return
        host, title = member.host, f"drain {document.name}"
        started = time.monotonic()
        numbers = (each.replica for each in self._now.values() if not each.draining)
        names = {replica_name(document.service, number) for number in numbers}
        others = any(map(self._serves, names - {document.name}))
        what = "send its new requests to the other replicas"
        change = Change(what if others else "finish its requests: no other replica serves")
        self.sink(StepStarted(host, title, change))
        self._mark(document, draining=True)
        transports = self.survey.transports
        hearing = {name: each for name, each in transports.items() if name not in self.deaf}

        head = self.survey.inventory.head.name

        def let_go() -> bool | None:
            states = gateway_states(self.survey.inventory, hearing)
            told = (one.gateway for one in states.values() if one)
            return (head in states and all(gateway_let_go(one, document) for one in told)) or None

        def idle() -> bool | None:
            state = read_reported_state(self.survey.inventory, transports[host])
            own = state.engines_of(document.name) if state else []
            return not any(each.running + each.waiting for each in own) or None

        limit = max(document.shutdown_timeout, deadlines.GATEWAY_NOTICE)
        deadlines.wait_until(let_go, limit, every=0.2)
        # A gateway that was reloaded meanwhile does not know what it had before.
        left = limit - (time.monotonic() - started)
        deadlines.wait_until(idle, left, every=0.5)
        self.sink(StepFinished(host, title, "changed", time.monotonic() - started))

    def _mark(self, document: ServiceDocument, *, draining: bool) -> None:
        if member := self._now.get(document.replica):
            self._now[document.replica] = replace(member, draining=draining)
            self._declare_members(self._now.values())

    def _admit(self, replicas: Iterable[PlannedReplica]) -> None:
        """Declare proven replicas as members."""
        proven = {replica.document.replica for replica in replicas}
        planned = self.members.members
        self._now |= {each.replica: each for each in planned if each.replica in proven}
        self._declare_members(self._now.values())

    def _declare_members(self, members: Iterable[Member]) -> None:
        """Write the members file on the head, unless it already matches."""
        if self.lock is None:
            return
        self._now = {member.replica: member for member in sorted(members, key=lambda m: m.replica)}
        listed = replace(self.members, members=list(self._now.values()))
        data: bytes | None = to_json(listed).encode()
        if not self._now and self.survey.service(listed.service).listed is None:
            data = None  # Nothing is left of a new service that did not start
        if data != self._written:
            self.lock.replace(self._members_file, data, before=self._written)
            self._written = data

    def _serves(self, name: str) -> bool:
        declared = self.survey.replicas.get(name)
        return declared is not None and declared.serves

    def _services(self, host: str) -> HostServices:
        return HostServices(self.survey.inventory, self.survey.transports[host], self.sink)

    def _file(self, host: str, name: str) -> bytes | None:
        """Return the document's file as the survey found it."""
        path = service_file(self.survey.inventory.cluster, name)
        return self.survey.answers[host].files.get(path)

    @property
    def _members_file(self) -> str:
        return members_file(self.survey.inventory.cluster, self.members.service)

    def _give_key(self, host: str) -> None:
        """Make sure that the host has the cluster's key, which its API servers require."""
        path = str(NodePaths(self.survey.inventory.cluster).api_key)
        transport = self.survey.transports[host]
        if host == self.survey.inventory.head.name or not self.key:
            return
        if (transport.read_file(path) or b"").decode(errors="replace").strip() != self.key:
            transport.put(self.key.encode(), path, mode=0o600, sudo=True)
