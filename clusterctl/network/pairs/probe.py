"""Test every pair of hosts: routes, ports, packet sizes, round trips, throughput and clocks.

Each question goes to all hosts at once. Every pair is tested in both directions. Throughput is
measured in rounds, in which each host sends to one host and receives from one, at times set
beforehand on its own clock.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from clusterctl import deadlines
from clusterctl.errors import MALFORMED, CommandFailed, CommandTimedOut
from clusterctl.facts.model import HostFacts
from clusterctl.facts.network_requirements import EVERY_NODE
from clusterctl.inventory.model import Inventory
from clusterctl.network.pairs import orders
from clusterctl.network.pairs.model import Clock, HostLink, PairResults
from clusterctl.network.pairs.model import lanes as lanes_of
from clusterctl.ray_cluster.topology import Topology
from clusterctl.transport import python
from clusterctl.transport.base import Transport, lines
from clusterctl.transport.fanout import Failed, fan_out, values

IN_USE = (
    "throughput between hosts was not measured: the cluster is up, and its services would slow down"
)

NOT_SEEN = (
    "throughput between hosts was not measured: without root, it is unknown whether services are "
    "running"
)

NO_PYTHON = (
    f"it has {python.MISSING}, which bootstrap installs: its connections, throughput and clock are "
    "tested afterwards"
)

PROGRAM = python.Program("clusterctl.network.pairs", ("host_program",))
DOING = "testing its connections to the other hosts"

LEAD = 0.3  # seconds from sending the order to the first round: enough to reach 100 hosts

Answered = TypeVar("Answered")


def probe_pairs(
    inventory: Inventory,
    topology: Topology,
    facts: Mapping[str, HostFacts],
    transports: Mapping[str, Transport],
    *,
    unrated: str = "",
) -> PairResults:
    """Test every pair of the hosts in `facts`. `unrated`: why throughput is not measured, if so.

    Changes nothing on hosts and leaves nothing behind. A host that cannot take part is in
    `PairResults.unverified`, with the reason; the others still try to reach it.
    """
    if len(facts) < 2:
        return PairResults((), {}, {})
    hosts = _Participants(inventory, topology, facts, transports)
    try:
        hosts.open()
        found = hosts.reach()
        if not unrated:
            found, unrated = hosts.rates(found)
        return PairResults(tuple(found), hosts.clocks, hosts.unverified, unrated)
    finally:
        hosts.close()


def ray_ports(inventory: Inventory, *, head: bool = True) -> dict[int, str]:
    """Return the ports of Ray that other hosts connect to, with their keys in the inventory."""
    ports = inventory.ray_ports
    names = ("gcs", *EVERY_NODE) if head else EVERY_NODE
    found = {getattr(ports, name): f"ray_ports.{name}" for name in names}
    return {**found, ports.min_worker: "ray_ports.min_worker"}


@contextmanager
def _well_formed(host: str) -> Iterator[None]:
    """Raise CommandFailed if an answer of the host is malformed."""
    try:
        yield
    except MALFORMED as error:
        raise CommandFailed(
            f"{DOING} failed: unexpected answer", host=host, detail=repr(error)
        ) from error


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
        self._table = orders.Table(lanes_of(topology, facts), hosts, {}, greeting)
        self._sessions: dict[str, PairProbeSession] = {}
        self.clocks: dict[str, Clock] = {}
        self.unverified: dict[str, str] = {}

    def open(self) -> None:
        """Start the program on every host that has Python, and make it listen."""
        table = self._table

        def start(host: str) -> orders.Listening:
            ports = ray_ports(self._inventory, head=self._inventory.head.name == host)
            session = PairProbeSession(self._transports[host], sudo=self._facts[host].root)
            self._sessions[host] = session
            lanes = orders.held(table.lanes, host)
            order = {
                "ips": [table.lanes[lane].ends[host].ip for lane in lanes],
                "ports": sorted(ports) if 0 in lanes else [],
                "greeting": table.greeting,
                "warm_up": orders.WARM_UP,
                "window": orders.WINDOW,
            }
            with _well_formed(host):
                answer = session.ask("open", order)
                self.clocks[host], ahead = session.clocks()
                ephemeral = dict(zip(lanes, map(int, answer["ephemeral"]), strict=True))
                counting = dict(zip(lanes, map(int, answer["counting"]), strict=True))
                return orders.Listening(
                    ephemeral, counting, frozenset(answer["busy"]), ports, ahead
                )

        for host in table.hosts:
            if not self._facts[host].python3:
                self.unverified[host] = NO_PYTHON
        able = {host: host for host in table.hosts if host not in self.unverified}
        self._table = replace(table, members=self._values(fan_out(able, start)))

    def reach(self) -> list[HostLink]:
        table = self._table
        order = {host: orders.reach_order(table, host) for host in table.members}
        answers = self._ask("reach", order, partial(orders.read_links, table))
        return [link for found in answers.values() for link in found]

    def rates(self, found: list[HostLink]) -> tuple[list[HostLink], str]:
        """Measure throughput; also return why some pairs were left out, or ""."""
        planned = orders.plan_rounds(self._table, found)
        start = time.monotonic() + LEAD
        asked = {
            host: orders.rates_order(self._table, planned, host, start + member.ahead)
            for host, member in self._table.members.items()
        }
        answers = self._ask("rates", asked, orders.read_rates)
        rated = orders.with_rates(self._table, planned, found, answers)
        peers = len(self._table.members) - 1
        if planned.pairs_each >= peers:
            return rated, ""
        return rated, (
            f"throughput was measured from every host to {planned.pairs_each} of {peers} others, "
            "to save time; reachability and packet sizes were tested to all"
        )

    def _ask(
        self, command: str, by_host: Mapping[str, Any], read: Callable[[str, Any], Answered]
    ) -> dict[str, Answered]:
        """Send `command` to each host with its argument from `by_host`. Return `read(host, answer)`
        by host; a host that fails is added to `unverified`."""

        def ask(host: str) -> Answered:
            answer = self._sessions[host].ask(command, by_host[host], timeout=deadlines.PAIRS)
            with _well_formed(host):
                return read(host, answer)

        live = {host: host for host in by_host if host not in self.unverified}
        return self._values(fan_out(live, ask))

    def _values(self, outcomes: Mapping[str, Any]) -> dict[str, Any]:
        for host, outcome in outcomes.items():
            if isinstance(outcome, Failed):
                error = outcome.error
                last = (error.detail or "").strip().splitlines()[-1:]
                self.unverified[host] = ": ".join([error.summary, *last])
        return values(outcomes)

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()


class PairProbeSession:
    """A session with the program on one host. Methods raise ConnectionFailed, PythonMissing,
    CommandFailed and CommandTimedOut."""

    def __init__(self, transport: Transport, *, sudo: bool) -> None:
        """Start the program on the host, as root with `sudo`, which raw sockets need."""
        self._host = transport.host.name
        self._channel = python.start(transport, PROGRAM, sudo=sudo)
        self._answers: Iterator[str] = lines(self._channel)
        self.close = self._channel.close

    def ask(self, command: str, argument: object = None, *, timeout: float = deadlines.PAIR) -> Any:
        """Return the answer to one command. Raises CommandTimedOut after `timeout` seconds."""
        self._channel.settimeout(timeout)
        self._channel.send(json.dumps([command, argument]).encode() + b"\n")
        try:
            answer = next(self._answers, None)
        except TimeoutError as error:
            raise CommandTimedOut(
                f"{DOING} took longer than {timeout:g} s",
                host=self._host,
                hint=f"clusterctl exec --limit {self._host} -- uptime",
            ) from error
        if answer is None:
            raise python.failure(self._channel, DOING, self._host)
        try:
            return json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise CommandFailed(
                f"{DOING} failed: its answer is not JSON", host=self._host
            ) from error

    def clocks(self) -> tuple[Clock, float]:
        """Return how many seconds the host's clock and its monotonic clock are ahead of ours. Uses
        the fastest of several measurements: half its round trip bounds the error."""
        found = []
        for _ in range(3):
            asked, started = time.time(), time.monotonic()
            said, monotonic = self.ask("clock")
            trip = time.monotonic() - started
            found.append((trip, said - asked - trip / 2, monotonic - started - trip / 2))
        trip, offset, ahead = min(found)
        return Clock(offset, trip / 2), ahead
