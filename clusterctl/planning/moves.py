"""Which replicas of a service start, stay and stop. To clear a host, each moves to free GPUs of
other hosts, or is stopped if there are none; to change their number, copies start, or the least
useful stop. A move is a plan without that host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clusterctl.errors import ClusterctlError, RequirementsNotMet, UsageError, raise_all
from clusterctl.models.location import ModelLocation
from clusterctl.models.name import Model
from clusterctl.node.documents import Member, MembersDocument, ServiceDocument, from_json
from clusterctl.planning.question import Question, question_again
from clusterctl.planning.replicas import (
    ReplicaPorts,
    Seats,
    as_declared,
    as_if_declared,
    free_numbers,
    members_of,
    moved,
    require_replicas,
    seats_for,
    sizes_of,
)
from clusterctl.planning.sleepers import last_awake, require_one_replica, require_room_to_sleep
from clusterctl.planning.swaps import pair_stays
from clusterctl.serving.declaration import require_service
from clusterctl.serving.service import PlannedReplica
from clusterctl.survey.formation import require_formed
from clusterctl.survey.services import Replica, Service, partner_of
from clusterctl.survey.survey import Survey


@dataclass(frozen=True)
class ServiceMoves:
    """A service whose replicas leave a host."""

    service: str
    staying: tuple[PlannedReplica, ...]
    new: tuple[PlannedReplica, ...]  # In place of those that leave
    leaving: tuple[Replica, ...]
    lost: tuple[str, ...]  # Replicas of the host, if it is dead: nothing of them is left to stop
    members: MembersDocument  # In the end
    model: Model | None = None
    location: ModelLocation | None = None  # Of the model, on the hosts of new replicas

    @property
    def lines(self) -> list[str]:
        found = [f"{self.service}: start {each.name} on {each.host}" for each in self.new]
        if self.leaving:
            names = ", ".join(replica.name for replica in self.leaving)
            found.append(f"{self.service}: stop {names}, after the running requests")
        if self.lost:
            found.append(f"{self.service}: give up {', '.join(self.lost)}, whose host is dead")
        found += [f"{self.service}: {line}" for line in self.awake]
        lost = len(self.leaving) + len(self.lost) - len(self.new)
        if lost:
            left, on = len(self.staying) + len(self.new), self.members.on
            found.append(
                f"{self.service}: {left or 'no'} replica{'s' * (left != 1)} will be left: "
                f"no other host{f' of --on {on}' if on else ''} has free GPUs for {lost} of them"
            )
        return found

    @property
    def awake(self) -> list[str]:
        """What changes for those that stay, of a service that scales."""
        return [
            f"{each.name} {'stays awake' if each.document.stays_awake else 'may sleep'} from now on"
            for each in self.staying
            if each.differs
        ]

    @property
    def ends(self) -> bool:
        """Whether no replica is left."""
        return not self.staying and not self.new


def moves_from(survey: Survey, host: str) -> list[ServiceMoves]:
    """Return what to do with each service to clear `host` of replicas.

    The host may be one left out as dead. Raises RequirementsNotMet for services that cannot be
    moved: those without a list of replicas, and those whose model is not on the hosts that they
    would move to.
    """
    survey.require_supervised_head()
    for each in survey.services.values():
        each.require_list()
    node_ip = _node_ip(survey, host)
    ports, found, problems = ReplicaPorts(survey), list[ServiceMoves](), list[ClusterctlError]()
    for service in survey.services.values():
        leaving = [each for each in service.replicas if node_ip in each.document.node_ips]
        lost = [member for member in service.lost if member.host == host]
        if not leaving and not lost:
            continue
        if partner := partner_of(service.name, survey.replicas.values()):
            if partner.document.swap:  # Else it is said of the partner
                problems.append(pair_stays(service.name, partner, host))
            continue
        try:
            move = _moves_of(survey, service, host, leaving, lost, ports)
        except ClusterctlError as error:
            problems.append(error)
            continue
        found.append(move)
        survey = as_if_declared(survey, move.new)
    raise_all(problems)
    return found


def _node_ip(survey: Survey, host: str) -> str:
    """Return the host's node IP; for a dead host the one in Ray, or ""."""
    if host not in survey.left_out:
        return survey.topology.node(host).node_ip
    nodes = survey.require_supervised_head().nodes
    return next((node.node_ip for node in nodes if node.name == host), "")


def _moves_of(
    survey: Survey,
    service: Service,
    host: str,
    leaving: Sequence[Replica],
    lost: Sequence[Member],
    ports: ReplicaPorts,
) -> ServiceMoves:
    staying = [replica for replica in service.replicas if replica not in leaving]
    away = [member for member in service.lost if member not in lost]
    if not service.replicas:  # What it was asked to be is lost with the host
        members = replace(service.require_list(), members=away)
        return ServiceMoves(service.name, (), (), (), tuple(service.replica_names(lost)), members)

    pattern = _as_written(survey, (*leaving, *staying)[0])
    asked = question_again(survey, pattern, without=(host,))
    many = len(leaving) + len(lost)
    seats = seats_for(asked.hardware, sizes_of(pattern), (), many, asked.known_request())
    return _moves_to(seats, asked, pattern, ports, staying, leaving, lost, away)


def scaling(survey: Survey, name: str, number: int) -> ServiceMoves:
    """Return the changes that give a service `number` replicas: copies of existing ones, or
    stopping the least useful. Raises UsageError for an unknown service, RequirementsNotMet,
    DoesNotFit."""
    require_formed(survey)
    service = survey.service(name)
    if not service.replicas:
        require_service(name, {each: one.document for each, one in survey.replicas.items()})
    serving_first = sorted(service.replicas, key=lambda each: (not each.serves, each.number))
    staying, leaving = serving_first[:number], serving_first[number:]
    service.require_list()

    pattern = _as_written(survey, staying[0])
    require_one_replica(pattern, name, number)
    asked, sizes = question_again(survey, pattern), sizes_of(pattern)
    hosts = {node.node_ip: node.host for node in survey.topology.nodes}
    kept = [tuple(hosts[ip] for ip in one.document.node_ips if ip in hosts) for one in staying]
    seats = seats_for(asked.hardware, sizes, kept, number, asked.known_request())

    # Those of dead hosts stay members where there is no room for others, until these are back.
    possible = len(staying) + len(seats)
    away, lost = service.lost[: number - possible], service.lost[number - possible :]
    require_replicas(name, number, possible + len(away), sizes.gpus, "clusterctl scale {} {}")
    moves = _moves_to(seats, asked, pattern, ReplicaPorts(survey), staying, leaving, lost, away)
    return replace(moves, members=replace(moves.members, asked=number))


def _moves_to(
    seats: Sequence[Seats],
    asked: Question,
    pattern: ServiceDocument,
    ports: ReplicaPorts,
    staying: Sequence[Replica],
    leaving: Sequence[Replica],
    lost: Sequence[Member],
    away: Sequence[Member],
) -> ServiceMoves:
    """Return the moves of a service whose new replicas, with the settings of `pattern`, sit there.

    lost  members on dead hosts that are given up
    away  those that stay members, until their hosts are back
    """
    survey, service = asked.survey, asked.service
    listed = service.require_list()
    location = asked.require_location({name for each in seats for name in each}) if seats else None

    new, numbers = list[PlannedReplica](), free_numbers(service, len(seats))
    least = last_awake(listed.least, [*(each.number for each in staying), *numbers])
    pattern = replace(pattern, least=least)
    for number, hosts in zip(numbers, seats, strict=True):
        port = ports.new(hosts[0], listed.port)
        standby = ports.new(hosts[0], listed.port) if pattern.standby_port else 0
        new.append(moved(survey, pattern, number, hosts, port, asked.hardware, standby))

    kept = tuple(_staying(survey, replica, least) for replica in staying)
    require_room_to_sleep(survey, [each for each in (*kept, *new) if each.differs])
    members = replace(
        listed,
        members=members_of((*kept, *new), away),
        stall_timeout=pattern.stall_timeout,
        on=asked.request.on or "",
    )
    return ServiceMoves(
        service.name,
        kept,
        tuple(new),
        tuple(leaving),
        tuple(service.replica_names(lost)),
        members,
        asked.model,
        location,
    )


def _staying(survey: Survey, replica: Replica, least: int) -> PlannedReplica:
    """Return a replica that stays: as declared, unless it is now to stay awake, or no longer."""
    planned = as_declared(survey, replica)
    if replace(replica.document, least=least).stays_awake == replica.document.stays_awake:
        return planned
    return replace(planned, document=replace(_as_written(survey, replica), least=least))


def _as_written(survey: Survey, replica: Replica) -> ServiceDocument:
    """Return what a command wrote for a replica, since its host's own file may say anything. Raises
    RequirementsNotMet if the head has no copy of it."""
    file = f"services/{replica.name}.json"
    if file not in survey.written:
        raise RequirementsNotMet(
            f"no copy of {file} is kept there, from which {replica.name} could be moved",
            host=survey.inventory.head.name,
            hint=f"clusterctl bootstrap {survey.inventory.file}",
        )
    return from_json(ServiceDocument, survey.written[file])


def require_known(survey: Survey, host: str) -> None:
    """Raise UsageError unless the inventory has the host."""
    names = [each.name for each in survey.inventory.hosts]
    if host not in {*names, *survey.left_out}:
        raise UsageError(
            f"no host named {host} in {survey.inventory.file}", hint=f"hosts: {', '.join(names)}"
        )
