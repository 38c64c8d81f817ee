"""The proof between hosts: routes, ports, packet sizes, round trips, throughput and clocks.

A few questions to all hosts at once. Every pair is tried both ways; throughput in rounds, in each
of which a host sends to one and receives from one, at moments told ahead on each host's own clock.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError, CommandFailed
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.network.pairs import orders
from clusterctl.network.pairs.lanes import lanes
from clusterctl.network.pairs.model import Clock, Seen, Way
from clusterctl.network.pairs.orders import Table
from clusterctl.network.pairs.session import DOING, PairProbeSession
from clusterctl.network.pairs.sizes import ray_port_names
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport import python
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import Failed, fan_out, values

IN_USE = (
    "throughput between hosts was not measured: the cluster is up, and what it serves would feel it"
)

NO_PYTHON = (
    f"it has {python.MISSING}, which bootstrap installs: its ways to the others, its throughput "
    "and its clock are tried after that"
)

LEAD = 0.3  # seconds from the last question to the first round: by then, a hundred hosts have it


Answered = TypeVar("Answered")


def prove(
    inventory: Inventory,
    topology: Topology,
    facts: Mapping[str, HostFacts],
    transports: Mapping[str, Transport],
    *,
    unrated: str = "",
) -> Seen:
    """Try every pair of the hosts that have facts. `unrated`: why throughput is left alone.

    Changes nothing on hosts and leaves nothing there. A host that cannot take part is in
    `Seen.unproven`, with the reason; the others try their ways to it all the same.
    """
    if len(facts) < 2:
        return Seen((), {}, {})
    with _opened(_Crew(inventory, topology, facts, transports)) as crew:
        found = crew.reach()
        found = crew.limits(found)
        if not unrated:
            found, unrated = crew.rates(found)
        return Seen(tuple(found), crew.clocks, crew.unproven, unrated)


def ray_ports(inventory: Inventory) -> dict[int, str]:
    """Ports that hosts are tried on, with the inventory's words for them."""
    return ray_port_names(inventory.ray_ports, head=True)


class _Crew:
    """The hosts that take part, and one question after the other to all of them."""

    def __init__(
        self,
        inventory: Inventory,
        topology: Topology,
        facts: Mapping[str, HostFacts],
        transports: Mapping[str, Transport],
    ) -> None:
        self._inventory = inventory
        self._facts = facts
        self._transports = transports
        hosts = [node.host for node in topology.nodes if node.host in facts]
        greeting = f"clusterctl {secrets.token_hex(8)}"
        self._table = Table(lanes(topology, facts), hosts, {}, greeting)
        self._sessions: dict[str, PairProbeSession] = {}
        self.clocks: dict[str, Clock] = {}
        self.unproven: dict[str, str] = {}

    def open(self) -> None:
        """Start the program on every host that has a Python, and have it listen."""
        for host in self._table.hosts:
            if not self._facts[host].python3:
                self.unproven[host] = NO_PYTHON
        able = {host: host for host in self._table.hosts if host not in self.unproven}
        found = self._values(fan_out(able, self._open))
        self._table = replace(self._table, members=found)

    def _open(self, host: str) -> orders.Member:
        ports = ray_port_names(self._inventory.ray_ports, head=self._inventory.head.name == host)
        session = PairProbeSession(self._transports[host], sudo=self._facts[host].root)
        self._sessions[host] = session
        order = orders.open_order(self._table.lanes, host, ports, self._table.greeting)
        answer = session.ask("open", order)
        self.clocks[host], ahead = session.clocks()
        return replace(orders.member(self._table.lanes, host, ports, answer), ahead=ahead)

    def reach(self) -> list[Way]:
        order = {host: orders.reach_order(self._table, host) for host in self._table.members}
        answers = self._ask("reach", order, orders.read_reach)
        return [way for host, answer in answers.items()
                for way in orders.ways(self._table, host, answer)]  # fmt: skip

    def limits(self, found: list[Way]) -> list[Way]:
        """Where large packets were lost: up to which size they pass."""
        asked = {host: orders.limits_order(found, host) for host in self._table.members}
        asked = {host: order for host, order in asked.items() if order}
        answers = self._ask("echo", asked, orders.read_echoes)
        return orders.with_limits(found, answers)

    def rates(self, found: list[Way]) -> tuple[list[Way], str]:
        """Throughput, and what of it was left out."""
        planned = orders.plan_rounds(self._table, found)
        start = time.monotonic() + LEAD
        answers = self._ask(
            "rates",
            {
                host: orders.rates_order(self._table, planned, host, start + member.ahead)
                for host, member in self._table.members.items()
            },
            orders.read_rates,
        )
        rated = orders.with_rates(self._table, planned, found, answers)
        return rated, _left_out(planned.pairs_each, len(self._table.members) - 1)

    def _ask(
        self, command: str, by_host: Mapping[str, Any], read: Callable[[Any], Answered]
    ) -> dict[str, Answered]:
        def ask(host: str) -> Answered:
            answer = self._sessions[host].ask(command, by_host[host], timeout=deadlines.PAIRS)
            try:
                return read(answer)
            except (TypeError, ValueError, LookupError) as error:
                raise CommandFailed(
                    f"{DOING} failed: it answers something else", host=host, detail=repr(error)
                ) from error

        live = {host: host for host in by_host if host not in self.unproven}
        return self._values(fan_out(live, ask))

    def _values(self, outcomes: Mapping[str, Any]) -> dict[str, Any]:
        for host, outcome in outcomes.items():
            if isinstance(outcome, Failed):
                self.unproven[host] = _sentence(outcome.error)
        return values(outcomes)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


@contextmanager
def _opened(crew: _Crew) -> Iterator[_Crew]:
    try:
        crew.open()
        yield crew
    finally:
        crew.close()


def _sentence(error: ClusterctlError) -> str:
    last = (error.detail or "").strip().splitlines()[-1:]
    return ": ".join([error.summary, *last])


def _left_out(measured: int, peers: int) -> str:
    if measured >= peers:
        return ""
    return (
        f"throughput was measured from every host to {measured} of {peers} others, to save time; "
        "reachability and packet sizes to all"
    )
