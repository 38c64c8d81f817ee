"""The current services of a cluster, each with its replicas. Built once by the survey."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from clusterctl.errors import RequirementsNotMet
from clusterctl.node.documents import (
    Member,
    MembersDocument,
    Rank,
    ServiceDocument,
    ServiceState,
    replica_name,
    standby_name,
)
from clusterctl.node.rank_placement import gpu_share
from clusterctl.ray_cluster.topology import REPLICA_PORTS


@dataclass(frozen=True)
class Replica:
    """A declared vLLM instance."""

    document: ServiceDocument
    host: str  # Where it is declared, and its API server runs
    state: ServiceState | None = None  # As that host's supervisor reports it now
    member: Member | None = None  # None: the gateway sends it nothing
    standby: ServiceState | None = None  # Of its standby, likewise as that host reports it

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def number(self) -> int:
        return self.document.replica

    @property
    def condition(self) -> str:
        """The state that the supervisor reports, or `declared` before it read the document."""
        return self.state.state if self.state else "declared"

    @property
    def serves(self) -> bool:
        """Whether it answers requests: its supervisor reports it, or its standby, as ready."""
        return "ready" in (self.condition, self.standby.state if self.standby else "")

    @property
    def drained(self) -> bool:
        """Whether the gateway sends it no new requests."""
        return self.member is not None and self.member.draining

    @property
    def gpu_share(self) -> float:
        """The share of a GPU that each of its ranks takes."""
        return gpu_share(self.document.env)

    @property
    def swaps(self) -> bool:
        """Whether it has whole GPUs in turn with another service, of which these are shares."""
        return self.document.swap or bool(self.document.swap_with)

    @property
    def ranks(self) -> list[Rank]:
        """The running ranks."""
        return self.state.ranks if self.state else []


@dataclass(frozen=True)
class Service:
    """A service: its entry in the head's list, and its declared replicas."""

    name: str
    replicas: tuple[Replica, ...] = ()  # By number
    # None for one that an older clusterctl declared, or whose list was lost: `serve` writes it
    listed: MembersDocument | None = None
    lost: tuple[Member, ...] = ()  # On dead hosts: they start again with their host

    @property
    def members(self) -> list[Member]:
        return self.listed.members if self.listed else []

    @property
    def port(self) -> int:
        """The port that clients use; 0 if it is lost."""
        if self.listed:
            return self.listed.port
        # Older versions declared a single process, which clients reached directly.
        ports = [each.port for each in self.documents if each.port not in REPLICA_PORTS]
        return ports[0] if ports else 0

    def require_list(self) -> MembersDocument:
        """Raise RequirementsNotMet for a service without a list of members."""
        if self.listed:
            return self.listed
        first = self.replicas[0]
        raise RequirementsNotMet(
            f"the service {self.name} is not behind the gateway: an older version declared it, or "
            "the list of its replicas is lost",
            host=first.host,
            hint=f"clusterctl serve {first.document.model} --name {self.name}, with the same flags",
        )

    @property
    def documents(self) -> list[ServiceDocument]:
        return [replica.document for replica in self.replicas]

    @property
    def on(self) -> str:
        """The hosts that `--on` limits it to; empty for all."""
        return self.listed.on if self.listed else ""

    @property
    def undeclared(self) -> list[Member]:
        """Members that no answering host declares."""
        declared = {replica.number for replica in self.replicas}
        return [member for member in self.members if member.replica not in declared]

    @property
    def numbers(self) -> set[int]:
        """Numbers that a new replica cannot have."""
        return {*(each.number for each in self.replicas), *(each.replica for each in self.lost)}

    def replica_names(self, members: Iterable[Member]) -> list[str]:
        return [replica_name(self.name, member.replica) for member in members]


def partner_of(service: str, replicas: Iterable[Replica]) -> Replica | None:
    """Return the replica that has the GPUs of this service's in turn, of these."""
    declared = list(replicas)
    first = {each.document.swap_with for each in declared if each.document.service == service}
    for each in declared:
        if each.document.service in first or each.document.swap_with == service:
            return each
    return None


def declared_replicas(
    documents: Mapping[str, Mapping[str, ServiceDocument]],
    lists: Mapping[str, MembersDocument],
    states: Mapping[str, Mapping[str, ServiceState]],
    head: str,
) -> dict[str, Replica]:
    """Return the replicas by name, grouped by service.

    documents  by host and name, as declared there
    lists      the head's lists of members, by service
    states     by host and name, as reported there

    A host can speak only for itself: a worker's document counts if the head's list has the replica
    on that worker, the head's own unless the list has it elsewhere.
    """
    found: dict[str, Replica] = {}
    for host, declared in documents.items():
        for name, document in declared.items():
            member = member_of(document, lists.get(document.service))
            listed_here = member is not None and member.host == host
            if listed_here or (host == head and name not in found):
                own = states.get(host, {})
                standby = own.get(standby_name(name))
                found[name] = Replica(document, host, own.get(name), member, standby)

    ordered = sorted(found.values(), key=lambda each: (each.document.service, each.number))
    return {replica.name: replica for replica in ordered}


def member_of(document: ServiceDocument, listed: MembersDocument | None) -> Member | None:
    """Return the replica's entry in its service's list."""
    members = listed.members if listed else []
    return next((each for each in members if each.replica == document.replica), None)


def services_of(
    replicas: Iterable[Replica], lists: Mapping[str, MembersDocument], dead: Collection[str]
) -> dict[str, Service]:
    """Return the services by name: those with a replica or a list."""
    by_service: dict[str, list[Replica]] = {name: [] for name in lists}
    for replica in replicas:
        by_service.setdefault(replica.document.service, []).append(replica)

    found = {}
    for name, own in sorted(by_service.items()):
        listed = lists.get(name)
        lost = [each for each in (listed.members if listed else ()) if each.host in dead]
        found[name] = Service(name, tuple(own), listed, tuple(lost))
    return found
