"""Which host comes after which."""

from __future__ import annotations

from clusterctl.inventory.model import Host
from clusterctl.transfer.chain_link import Link, slow_last
from clusterctl.transport.local import LocalTransport


def link(name: str, speed: int | None = None) -> Link:
    transport = LocalTransport(Host(name=name, address="localhost"))
    return Link(transport, "10.0.0.1", speed=speed)


def names(*links: Link) -> list[str]:
    return [each.host for each in slow_last(links)]


def test_slow_links_come_last() -> None:
    assert names(link("a", 1_000), link("b", 10_000), link("c", 100), link("d", 10_000)) == [
        "b",
        "d",
        "a",
        "c",
    ]


def test_the_order_stays_where_nothing_is_known() -> None:
    assert names(link("b"), link("a"), link("c")) == ["b", "a", "c"]
