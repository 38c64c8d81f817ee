"""What hosts are told to try: bounded for a hundred, complete for a few."""

from __future__ import annotations

from itertools import permutations

import pytest

from clusterctl.network.pairs.model import End, HostLink, Lane
from clusterctl.network.pairs.orders import (
    ROUNDS_WITHIN,
    SLOT,
    Listening,
    Table,
    packet_sizes,
    plan_rounds,
    reach_order,
    read_links,
    rounds,
)


def table(count: int, lanes: int = 1) -> Table:
    names = [f"h{n}" for n in range(count)]
    made = [
        Lane((f"p{lane}",), {name: End(name, "eth0", f"10.{lane}.0.{n + 1}", 16, 1500, None)
                             for n, name in enumerate(names)})
        for lane in range(lanes)
    ]  # fmt: skip
    ports = {
        6379: "ray_ports.gcs",
        6380: "ray_ports.node_manager",
        6381: "ray_ports.object_manager",
    }
    members = {
        name: Listening(
            {lane: 40_000 + lane for lane in range(lanes)},
            {lane: 50_000 + lane for lane in range(lanes)},
            frozenset(),
            ports if name == "h0" else {k: v for k, v in ports.items() if k != 6379},
        )
        for name in names
    }
    return Table(made, names, members, "hello")


def all_ways(made: Table) -> list[HostLink]:
    return [
        HostLink(lane, lane.ends[a], lane.ends[b], None, tcp={40_000: "ok"})
        for lane in made.lanes
        for a, b in permutations(lane.ends, 2)
    ]


def test_few_hosts_try_every_port_of_every_peer() -> None:
    made = table(4, lanes=2)
    order = reach_order(made, "h1")
    assert ("10.0.0.2", "10.0.0.1", 6379) in order["tcp"]
    assert len(order["tcp"]) == (1 + 3) + 2 * (1 + 2) + 3
    assert len(order["routes"]) == 2 * 6


def test_many_hosts_try_one_port_of_most_and_all_of_their_neighbours() -> None:
    made = table(100)
    order = reach_order(made, "h50")
    assert len(order["tcp"]) == 99 + 8 * 2 + 1
    assert {to for _, to, _ in order["tcp"]} == {f"10.0.0.{n + 1}" for n in range(100) if n != 50}


@pytest.mark.parametrize(("count", "lanes"), [(2, 1), (2, 2), (5, 1), (9, 2), (100, 1), (100, 2)])
def test_rounds_are_disjoint_bounded_and_complete_where_they_can_be(count: int, lanes: int) -> None:
    made = table(count, lanes)
    planned = plan_rounds(made, all_ways(made))
    assert planned.end <= ROUNDS_WITHIN + SLOT
    for moment in {moment for moment, _ in planned.slots}:
        at_once = [link for other, link in planned.slots if other == moment]
        assert len({link.sender for link in at_once}) == len(at_once)
        assert len({link.receiver for link in at_once}) == len(at_once)
    if count < 10:
        assert len(planned.slots) == count * (count - 1) * lanes


def test_a_way_on_which_nothing_connects_is_not_measured() -> None:
    made = table(2)
    lane = made.lanes[0]
    dead = HostLink(lane, lane.ends["h0"], lane.ends["h1"], None, tcp={40_000: "no answer"})
    assert plan_rounds(made, [dead]).slots == []


def test_packets_of_every_size_that_says_something() -> None:
    jumbo, small = End("a", "x", "::1", 64, 9000, None), End("b", "x", "::2", 64, 1500, None)
    assert packet_sizes(jumbo, jumbo) == (84, 1500, 9000)
    assert packet_sizes(jumbo, small) == (84, 1500, 9000)
    assert packet_sizes(small, jumbo) == (84, 1500)
    assert packet_sizes(End("c", "x", "::3", 64, 0, None), small) == (84,)


def test_the_largest_packet_that_passes_is_below_the_smallest_that_is_lost() -> None:
    made = table(3)
    a, b, c = (made.lanes[0].ends[name].ip for name in made.hosts)
    echo = [[[a, b, size], 0.001] for size in (84, 576, 1400)]
    echo += [[[a, c, size], 0.001] for size in (84, 1500)]
    answer = {"routes": [], "neighbours": None, "tcp": [], "echo": echo}
    links = read_links(made, "h0", answer)
    assert [(link.receiver.host, link.largest) for link in links] == [("h1", 1400), ("h2", None)]
    assert links[0].echo == {84: 0.001, 1500: None}
    unprivileged = read_links(made, "h0", {**answer, "echo": None})
    assert {(link.echo, link.largest) for link in unprivileged} == {(None, None)}


def test_shifts_are_spread_evenly_where_there_is_no_time_for_all() -> None:
    assert rounds(5, 10) == (1, 2, 3, 4)
    assert rounds(101, 4) == (1, 26, 51, 76)
