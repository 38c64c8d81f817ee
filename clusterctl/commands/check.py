"""`check`: the inventory against what hosts report, and every pair of hosts tried. Changes
nothing; all problems at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from clusterctl.accelerators.registry import accelerator_named
from clusterctl.commands.alike import differences
from clusterctl.commands.built import unlike_ray, unlike_the_plan, unwritten_logs
from clusterctl.commands.gpus_inside import lost_in_containers
from clusterctl.commands.lacking import name_listeners, place, requirements, running
from clusterctl.commands.reach import look, node_files, reach
from clusterctl.errors import ClusterctlError
from clusterctl.facts.cluster_requirements import CLOCK_HINT
from clusterctl.facts.model import HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.facts.requirements import notes
from clusterctl.inventory.model import Host, Inventory
from clusterctl.network.gate_record import FabricRecord
from clusterctl.network.lookups import lookup_notes
from clusterctl.network.pairs import judgement
from clusterctl.network.pairs.lanes import default_route_notes
from clusterctl.network.pairs.model import Seen, Way
from clusterctl.network.pairs.proof import IN_USE, prove, ray_ports
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport.base import Transport
from clusterctl.transport.credentials import Credentials
from clusterctl.transport.fanout import failures, values


@dataclass(frozen=True)
class Report:
    """What was found; `errors` empty means that bootstrap may begin."""

    facts: dict[str, HostFacts]
    choices: dict[str, tuple[str, ...]]
    """Which address and interfaces each host uses, and why."""
    notes: tuple[str, ...]
    errors: tuple[ClusterctlError, ...]
    ways: tuple[Way, ...] = ()
    """What was seen between hosts, both directions of every pair."""
    fabric: FabricRecord | None = None
    """What the gate proved, where it was asked for."""


def run(inventory: Inventory, hosts: Iterable[Host], credentials: Credentials) -> Report:
    """Look at `hosts`, at how they fit together, and, where the cluster is up, at what differs
    from what bootstrap made."""
    with reach(hosts, credentials) as transports:
        found = look(inventory, transports, files=node_files(inventory.cluster))
        answers = values(found)
        lacking = requirements(inventory, answers)
        name_listeners(lacking, transports)
        topology, misplaced = place(inventory, answers)
        told = [*failures(found), *lacking, *_new(misplaced, lacking)]
        seen = _pairs(inventory, topology, answers, transports)
        facts = {name: answer.facts for name, answer in answers.items()}
        up = running(inventory, answers)
        names = lookup_notes(inventory, topology, facts, transports, up)
        drift = [
            *lost_in_containers(inventory, answers),
            *unlike_the_plan(inventory, topology, answers, transports),
            *unwritten_logs(inventory, answers),
        ]
        in_ray = _new(unlike_ray(inventory, topology, answers), drift)
        unlike = [*differences(inventory, answers, transports), *drift, *in_ray]
    choices = {node.host: node.explain for node in topology.nodes} if topology else {}
    between = _clocks_once(told, judgement.problems(seen, ray_ports(inventory)))
    beside = default_route_notes(topology, facts) if topology else ()
    noted = (
        *notes(inventory, facts, accelerator_named(inventory.accelerator)),
        *beside,
        *names,
        *judgement.notes(seen),
    )
    return Report(facts, choices, noted, (*told, *between, *unlike), seen.ways)


def _new(
    consequences: Iterable[ClusterctlError], causes: Iterable[ClusterctlError]
) -> list[ClusterctlError]:
    """Those of hosts of which no cause is told: one without a place in the cluster lacks the NIC
    that is missing, one that left Ray has no container."""
    known = {error.host for error in causes}
    return [error for error in consequences if error.host not in known]


def _pairs(
    inventory: Inventory,
    topology: Topology | None,
    answers: Mapping[str, Probe],
    transports: Mapping[str, Transport],
) -> Seen:
    """What is seen between the hosts that have a place."""
    if topology is None:
        return Seen((), {}, {})
    placed = {node.host: answers[node.host].facts for node in topology.nodes}
    unrated = IN_USE if running(inventory, answers) else ""
    return prove(inventory, topology, placed, transports, unrated=unrated)


def _clocks_once(
    told: Iterable[ClusterctlError], between: Iterable[ClusterctlError]
) -> list[ClusterctlError]:
    """A clock that is minutes off shows in a host's facts, and again between hosts."""
    wrong = {error.host for error in told if error.hint == CLOCK_HINT}
    return [error for error in between if error.hint != CLOCK_HINT or error.host not in wrong]
