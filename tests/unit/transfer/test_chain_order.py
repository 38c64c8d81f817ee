"""Which host comes after which in a chain."""

from __future__ import annotations

from clusterctl.inventory.model import Host
from clusterctl.transfer.chain_link import Link, in_order
from clusterctl.transport.local import LocalTransport


def link(name: str, speed: int | None = None, rack: str | None = None) -> Link:
    labels = {"rack": rack} if rack else {}
    transport = LocalTransport(Host(name=name, address="localhost", labels=labels))
    return Link(transport, "10.0.0.1", speed=speed)


def names(*links: Link) -> list[str]:
    return [each.host for each in in_order(links)]


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
