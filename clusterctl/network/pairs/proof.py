"""Try every pair of hosts: routes, ports, packet sizes, round trips, throughput and clocks.

Each question goes to all hosts at once. Every pair is tried in both directions. Throughput is
measured in rounds, in which each host sends to one and receives from one, at times set beforehand
on each host's own clock.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from clusterctl import deadlines
from clusterctl.errors import CommandFailed
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Inventory
from clusterctl.network.pairs import orders
from clusterctl.network.pairs.model import Clock, PairResults, Way, lanes
from clusterctl.network.pairs.orders import Table
from clusterctl.network.pairs.session import DOING, PairProbeSession
from clusterctl.network.pairs.sizes import ray_port_names
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport import python
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import Failed, fan_out, values

IN_USE = (
    "throughput between hosts was not measured: the cluster is up, and its services would slow down"
)

NO_PYTHON = (
    f"it has {python.MISSING}, which bootstrap installs: its connections, throughput and clock "
    "are tested after that"
)

LEAD = 0.3  # seconds from sending the order to the first round: enough to reach 100 hosts

Answered = TypeVar("Answered")


def prove(
    inventory: Inventory,
    topology: Topology,
    facts: Mapping[str, HostFacts],
    transports: Mapping[str, Transport],
    *,
    unrated: str = "",
) -> PairResults:
    """Try every pair of the hosts in `facts`. `unrated`: if set, why throughput is not measured.

    Changes nothing on hosts and leaves nothing there. A host that cannot take part is in
    `PairResults.unproven`, with the reason; the others still try to reach it.
    """
    if len(facts) < 2:
        return PairResults((), {}, {})
    hosts = _Participants(inventory, topology, facts, transports)
    try:
        hosts.open()
        found = hosts.limits(hosts.reach())
        if not unrated:
            found, unrated = hosts.rates(found)
        return PairResults(tuple(found), hosts.clocks, hosts.unproven, unrated)
    finally:
        hosts.close()


def ray_ports(inventory: Inventory) -> dict[int, str]:
    """Return the ports of Ray that are tried, with their keys in the inventory."""
    return ray_port_names(inventory.ray_ports, head=True)


class _Participants:
    """The hosts that take part; each method sends one question to all of them."""

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
        """Start the program on every host that has Python, and make it listen."""
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
        """Find the largest packets that pass on ways where large ones were lost."""
        asked = {host: orders.limits_order(found, host) for host in self._table.members}
        asked = {host: order for host, order in asked.items() if order}
        answers = self._ask("echo", asked, orders.read_echoes)
        return orders.with_limits(found, answers)

    def rates(self, found: list[Way]) -> tuple[list[Way], str]:
        """Measure throughput; also return why some pairs were left out, or ""."""
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
        peers = len(self._table.members) - 1
        if planned.pairs_each >= peers:
            return rated, ""
        return rated, (
            f"throughput was measured from every host to {planned.pairs_each} of {peers} others, "
            "to save time; reachability and packet sizes to all"
        )

    def _ask(
        self, command: str, by_host: Mapping[str, Any], read: Callable[[Any], Answered]
    ) -> dict[str, Answered]:
        def ask(host: str) -> Answered:
            answer = self._sessions[host].ask(command, by_host[host], timeout=deadlines.PAIRS)
            try:
                return read(answer)
            except (TypeError, ValueError, LookupError) as error:
                raise CommandFailed(
                    f"{DOING} failed: unexpected answer", host=host, detail=repr(error)
                ) from error

        live = {host: host for host in by_host if host not in self.unproven}
        return self._values(fan_out(live, ask))

    def _values(self, outcomes: Mapping[str, Any]) -> dict[str, Any]:
        for host, outcome in outcomes.items():
            if isinstance(outcome, Failed):
                error = outcome.error
                last = (error.detail or "").strip().splitlines()[-1:]
                self.unproven[host] = ": ".join([error.summary, *last])
        return values(outcomes)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
