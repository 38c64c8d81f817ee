"""What happens to the replicas of a host that is drained: each moves to free GPUs of other hosts,
or is stopped where there are none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

from clusterctl.errors import RequirementsNotMet, UsageError, raise_all
from clusterctl.node.documents import (
    MembersDocument,
    ServiceDocument,
    replica_name,
)
from clusterctl.node.rank_placement import placed_on
from clusterctl.planning.free_gpus import gpus_held, hosts_on, on_of
from clusterctl.planning.replicas import Seats, seat_replicas, sites_of_unknown_gpus
from clusterctl.planning.service_plan import members_of, replica_layout
from clusterctl.serving.arguments import UNDECIDED
from clusterctl.serving.service import PlannedService, fingerprint, replica_port
from clusterctl.survey.services import Replica
from clusterctl.survey.survey import Survey


@dataclass(frozen=True)
class ServiceMoves:
    """A service whose replicas leave a host."""

    service: str
    staying: tuple[PlannedService, ...]
    new: tuple[PlannedService, ...]  # In place of those that leave
    leaving: tuple[Replica, ...]
    lost: tuple[str, ...]  # Replicas of the host, if it is dead: nothing of them is left to stop
    members: MembersDocument  # In the end

    @property
    def lines(self) -> list[str]:
        found = [
            f"{self.service}: start {each.document.name} on {each.layout.hosts[0]}"
            for each in self.new
        ]
        if self.leaving:
            names = ", ".join(replica.name for replica in self.leaving)
            found.append(f"{self.service}: stop {names}, after the running requests")
        if self.lost:
            found.append(f"{self.service}: give up {', '.join(self.lost)}, whose host is dead")
        lost = len(self.leaving) + len(self.lost) - len(self.new)
        if lost:
            left, on = len(self.staying) + len(self.new), self.members.on
            found.append(
                f"{self.service}: {left or 'no'} replica{'s' * (left != 1)} will be left: "
                f"no other host{f' of --on {on}' if on else ''} has free GPUs for {lost} of them"
            )
        return found

    @property
    def ends(self) -> bool:
        """Whether no replica is left."""
        return not self.staying and not self.new


def moves_from(survey: Survey, host: str) -> list[ServiceMoves]:
    """Return what to do with each service that has replicas on `host`, so that it has none.

    The host may be one that is left out as dead. Raises RequirementsNotMet for services that cannot
    be moved: those without replicas, whose hosts Ray chose.
    """
    in_ray = {node.name: node.node_ip for node in survey.require_supervised_head().nodes}
    dead = host in survey.left_out
    node_ip = in_ray.get(host, "") if dead else survey.topology.node(host).node_ip
    services: dict[str, list[Replica]] = {
        name: []
        for name, service in survey.services.items()
        if dead and any(member.host == host for member in service.members)
    }
    stuck = []
    for replica in survey.replicas.values():
        document = replica.document
        if replica.placed_by_ray and host in {replica.host, *(rank.host for rank in replica.ranks)}:
            stuck.append(
                RequirementsNotMet(
                    f"the service {document.name} runs there and has no replicas, so that nothing "
                    "serves while it moves",
                    host=host,
                    hint=f"clusterctl stop {document.name}, or give it replicas: "
                    f"clusterctl serve {document.model} --replicas 2",
                )
            )
        elif node_ip in document.node_ips:
            services.setdefault(document.service, []).append(replica)
    raise_all(stuck)
    held = gpus_held(survey, survey.require_supervised_head().nodes)
    free = held.without_drained({*survey.drained, host}).free
    taken = [(host_name, one.port) for host_name, each in survey.documents.items()
             for one in each.values()]  # fmt: skip
    found = []
    for service, leaving in sorted(services.items()):
        now = survey.service(service)
        staying = [one for one in now.replicas if one not in leaving]
        away = now.lost
        lost = [member for member in away if member.host == host]
        known = now.listed
        new: list[PlannedService] = []
        first = next((one.document for one in (*leaving, *staying)), None)
        if first is None:  # What it was asked to be is lost with the host
            assert known  # noqa: S101 - its members are on the host
            members = replace(known, members=[each for each in away if each not in lost])
            names = tuple(replica_name(service, member.replica) for member in lost)
            found.append(ServiceMoves(service, (), (), (), names, members))
            continue
        sizes = (first.tensor_parallel, first.pipeline_parallel)
        number_of_new = len(leaving) + len(lost)
        on = on_of(survey, service)
        allowed = hosts_on(survey, on)
        there = [each for each in free if each.host in allowed]
        seats = seat_replicas(sites_of_unknown_gpus(there), sizes, (), number_of_new)
        numbers = (number for number in count(1) if number not in now.numbers)
        public = known.port if known else first.port
        for number, hosts in zip(numbers, seats, strict=False):
            ports = {public, *(port for name, port in taken if name == hosts[0])}
            port = replica_port(ports, survey.facts[hosts[0]].listening_ports)
            taken.append((hosts[0], port))
            new.append(as_planned(survey, _moved(survey, first, number, hosts, port)))
            free = [
                replace(each, free=each.free - hosts.count(each.host))
                if each.host in hosts
                else each
                for each in free
            ]
        kept = [as_planned(survey, one.document) for one in staying]
        found.append(
            ServiceMoves(
                service=service,
                staying=tuple(kept),
                new=tuple(new),
                leaving=tuple(leaving),
                lost=tuple(replica_name(service, member.replica) for member in lost),
                members=MembersDocument(
                    service=service,
                    served_names=known.served_names if known else [first.served_name],
                    port=public,
                    members=members_of((*kept, *new), [one for one in away if one not in lost]),
                    stall_timeout=first.stall_timeout,
                    listen=known.listen if known else "",
                    on=on,
                ),
            )
        )
    return found


def require_known(survey: Survey, host: str) -> None:
    """Raise UsageError unless the inventory has the host."""
    names = [each.name for each in survey.inventory.hosts]
    if host not in {*names, *survey.left_out}:
        raise UsageError(
            f"no host named {host} in {survey.inventory.file}", hint=f"hosts: {', '.join(names)}"
        )


def _moved(
    survey: Survey, document: ServiceDocument, number: int, hosts: Seats, port: int
) -> ServiceDocument:
    """Return the document of a replica with the same settings on other hosts."""
    first = survey.topology.node(hosts[0])
    argv = list(document.argv)
    for flag, value in (("--host", first.node_ip), ("--port", str(port))):
        argv[argv.index(flag) + 1] = value
    return replace(
        document,
        name=replica_name(document.service, number),
        replica=number,
        argv=argv,
        host=first.node_ip,
        port=port,
        node_ips=[survey.topology.node(host).node_ip for host in hosts],
        fingerprint=fingerprint(argv, document.env),
    )


def as_planned(survey: Survey, document: ServiceDocument) -> PlannedService:
    """Return a declared replica as a plan. A plain completion proves it, with any tokenizer."""
    hosts = {node.node_ip: node.host for node in survey.topology.nodes}
    sizes = replace(
        UNDECIDED,
        tensor_parallel=document.tensor_parallel,
        pipeline_parallel=document.pipeline_parallel,
        data_parallel=document.gpus // (document.tensor_parallel * document.pipeline_parallel),
        keeps_tp_in_host=False,
    )
    # A host that was taken out of the inventory is named by its address.
    node_ips = document.node_ips or placed_on(document.env)
    seats = tuple(hosts.get(node_ip, node_ip) for node_ip in node_ips)
    layout = replica_layout(sizes, seats) if seats else sizes
    return PlannedService(document=document, layout=layout, head_address=document.host, chat=False)
