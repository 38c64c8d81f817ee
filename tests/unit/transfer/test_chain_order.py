"""Which host comes after which, before the first byte and on the way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.inventory.model import Host
from clusterctl.transfer.chain_link import Link, LinkProgress
from clusterctl.transfer.chain_order import ChainOrder, first_order
from clusterctl.transport.local import LocalTransport
from tests.bench.chain_simulation import LAYERS, Finished, Simulation, Site, hosts, with_slow

LIMIT = sum(LAYERS) / 118.0
"""Seconds that the links of the simulation need."""


def link(name: str, speed: int | None = None, rack: str | None = None) -> Link:
    labels = {"rack": rack} if rack else {}
    transport = LocalTransport(Host(name=name, address="localhost", labels=labels))
    return Link(transport, "10.0.0.1", speed=speed)


def names(*links: Link) -> list[str]:
    return [each.host for each in first_order(links)]


def test_slow_links_come_last() -> None:
    assert names(link("a", 1_000), link("b", 10_000), link("c", 100), link("d", 10_000)) == [
        "b",
        "d",
        "a",
        "c",
    ]


def test_the_order_stays_where_nothing_is_known() -> None:
    assert names(link("b"), link("a"), link("c")) == ["b", "a", "c"]


def test_hosts_of_a_rack_follow_each_other_where_they_are_as_fast() -> None:
    mixed = [link("a", rack="r1"), link("b", rack="r2"), link("c", rack="r1"), link("d")]

    assert names(*mixed, link("e", 100, "r1"), link("f", rack="r2")) == list("acbfde")


def pushed(site: Site) -> tuple[Finished, float]:
    """How it went, and when the last host that is not slow had all bytes, by the limit."""
    finished = Simulation(site).run()
    fast = [each.name for each in site.members if each.receives == 118.0]
    return finished, max(finished.received[name] for name in fast) / LIMIT


@pytest.mark.parametrize("number", [0, 1, 5, 8])
def test_a_slow_host_is_moved_to_the_end(number: int) -> None:
    finished, part = pushed(Site(with_slow(hosts(10), [number], 0.1)))

    assert finished.order[-1] == f"h{number + 1}"
    assert part < 1.3


@pytest.mark.parametrize("numbers", [(4, 5), (4, 5, 6), (0, 1)])
def test_slow_hosts_beside_each_other_are_moved_to_the_end(numbers: tuple[int, ...]) -> None:
    finished, part = pushed(Site(with_slow(hosts(10), numbers, 0.1)))

    assert set(finished.order[-len(numbers) :]) == {f"h{number + 1}" for number in numbers}
    assert part < 1.3


@pytest.mark.parametrize(("count", "slow"), [(2, [0]), (2, [1]), (3, [1, 2]), (3, [0, 1])])
def test_few_hosts_are_not_slowed_by_trials(count: int, slow: list[int]) -> None:
    _, part = pushed(Site(with_slow(hosts(count), slow, 0.1)))

    assert part < 1.3


def test_slow_hosts_are_moved_one_after_the_other_the_slowest_last() -> None:
    members = with_slow(with_slow(hosts(12), [3, 9], 0.1), [6], 0.05)
    finished, part = pushed(Site(members))

    assert finished.order[-3:] in (("h4", "h10", "h7"), ("h10", "h4", "h7"))
    assert part < 1.3


def test_a_host_that_sends_slowly_is_found_behind_two_that_receive_slowly() -> None:
    members = list(hosts(10))
    members[4] = replace(members[4], sends=11.8)
    finished, part = pushed(Site(tuple(members)))

    assert finished.order[-1] == "h5"
    assert finished.order.index("h6") == 4, "h6 was not the reason"
    assert part < 1.3


def test_a_thin_network_between_racks_moves_nobody() -> None:
    members = tuple(replace(each, rack=n // 5) for n, each in enumerate(hosts(10)))
    finished = Simulation(Site(members, between_racks=11.8)).run()

    assert finished.order == tuple(f"h{n}" for n in range(1, 11))
    assert max(finished.received[f"h{n}"] for n in range(1, 6)) < 1.3 * LIMIT
    assert max(finished.received.values()) < 1.01 * sum(LAYERS) / 11.8 + 10


@pytest.mark.parametrize(
    ("count", "measured"), [(1, (60.1, 60.3)), (2, (62.0, 62.9)), (3, (63.7, 64.4))]
)
def test_the_simulation_takes_as_long_as_whole_hosts_did(
    count: int, measured: tuple[float, ...]
) -> None:
    """289 MB over links of 40 Mbit/s in each direction, which carry 4.81 MB/s without headers."""
    rate = 4.81
    site = Site(hosts(count, receives=rate, sends=rate), source=rate, layers=(289 / 12,) * 12)
    last = max(Simulation(site).run().received.values())

    assert all(0.95 < last / each < 1.01 for each in measured)


def test_a_slow_source_moves_nobody() -> None:
    finished = Simulation(Site(hosts(4), source=11.8)).run()

    assert finished.order == ("h1", "h2", "h3", "h4")
    assert max(finished.received.values()) < 1.01 * sum(LAYERS) / 11.8


def progress(**received: int) -> dict[str, LinkProgress]:
    """Megabytes that hosts have received of a hundred thousand."""
    return {
        host: LinkProgress(host, count * 10**6, 10**11, count * 10**6, 0.0, behind=True)
        for host, count in received.items()
    }


def test_a_host_that_heads_the_chain_stays_there() -> None:
    """It has all bytes, and there is no other source."""
    order = ChainOrder("abcd")
    for second in range(1, 60):
        moved = progress(a=0, b=10 * second, c=second, d=second)
        order.observe(float(second), {**moved, "a": LinkProgress("a", 0, 0, 0, 0.0)})

    assert order.hosts[0] == "a"


def test_a_host_that_was_moved_is_told_with_both_rates() -> None:
    said: list[tuple[str, str]] = []
    order = ChainOrder("abcd", say=lambda host, text: said.append((host, text)))
    for second in range(1, 7):
        order.observe(float(second), progress(a=100 * second, b=10 * second, c=0, d=0))
    assert (order.hosts, said) == (("a", "c", "d", "b"), [])
    for second in range(7, 13):
        order.observe(float(second), progress(a=700, b=70, c=100 * (second - 6), d=0))
    ((host, text),) = said
    assert host == "b"
    assert text == (
        "moved to the end of the chain: it received 9.5 MiB/s, without it c receives 95.4 MiB/s"
    )


def test_a_host_that_waits_is_not_moved() -> None:
    """It has the layers that the host before it receives now."""
    order = ChainOrder("abc")
    for second in range(1, 60):
        seen = progress(a=100 * second, b=0, c=0)
        order.observe(float(second), {**seen, "b": replace(seen["b"], waiting="a, silent for 5 s")})
    assert order.hosts == tuple("abc")


def test_a_host_that_starts_later_than_the_one_before_it_is_not_moved() -> None:
    """Its engine was asked 3 s after the other's."""
    order = ChainOrder("abcd")
    for second in range(1, 30):
        late = max(0, 100 * (second - 3))
        order.observe(float(second), progress(a=100 * second, b=late, c=late, d=late))
    assert order.hosts == tuple("abcd")


def test_a_host_whose_relay_was_restarted_is_not_moved() -> None:
    order = ChainOrder("abc")
    for second in range(1, 30):
        behind = 100 * min(second, max(5, second - 3))
        seen = progress(a=100 * second, b=behind, c=behind)
        if 5 < second < 9:
            seen["b"] = replace(seen["b"], waiting="waiting for its relay to restart")
        order.observe(float(second), seen)
    assert order.hosts == tuple("abc")


def test_the_place_of_a_slow_first_host_is_given_to_one_that_is_not_lost() -> None:
    order = ChainOrder("abcd")
    for second in range(1, 7):
        seen = progress(a=second, b=0, c=second, d=second)
        order.observe(float(second), {**seen, "b": replace(seen["b"], lost=True)})
    assert [host for host in order.hosts if host != "b"] == ["c", "a", "d"]


def test_nothing_is_told_where_nobody_receives_more_than_before() -> None:
    said: list[tuple[str, str]] = []
    order = ChainOrder("abcd", say=lambda host, text: said.append((host, text)))
    for second in range(1, 60):
        order.observe(float(second), progress(a=100 * second, b=1, c=1, d=1))
    assert said == []


def test_hosts_that_get_what_the_one_before_them_has_not_got_either_are_not_moved() -> None:
    """They lack the last layer only, and a little of it comes before its turn."""
    order = ChainOrder("abcd")
    for second in range(1, 60):
        seen = progress(a=100 * second, b=second, c=second, d=second)
        for host in "bcd":
            seen[host] = replace(seen[host], behind=False)
        order.observe(float(second), seen)
    assert order.hosts == tuple("abcd")


@pytest.mark.parametrize(("megabytes", "first"), [(300, "a"), (600, "b")])
def test_little_is_not_worth_to_be_sent_twice(megabytes: int, first: str) -> None:
    """Half a minute and more is left either way, since the first host is slow."""
    order = ChainOrder("abc")
    for second in range(1, 7):
        seen = progress(a=second, b=second, c=second)
        total = {host: replace(each, total=megabytes * 10**6) for host, each in seen.items()}
        order.observe(float(second), total)
    assert order.hosts[0] == first
