"""From what was seen between hosts to one problem for each cause."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.network.pairs.judgement import notes, problems
from clusterctl.network.pairs.model import Clock, End, HostLink, Lane, PairResults

PORTS = {6379: "ray_ports.gcs", 6380: "ray_ports.node_manager"}
EPHEMERAL = 41234


def end(number: int, **changes: Any) -> End:
    made = End(f"gpu{number}", f"eth{number}", f"10.78.0.{10 + number}", 24, 1500, 10_000)
    return replace(made, **changes)


def lane(count: int = 2, **changes: Any) -> Lane:
    return Lane(("nccl", "gloo"), {f"gpu{n}": end(n, **changes) for n in range(1, count + 1)})


def link(sender: End, receiver: End, **changes: Any) -> HostLink:
    """One that is as it should be."""
    made = HostLink(
        lane(),
        sender,
        receiver,
        route=sender.nic,
        tcp={EPHEMERAL: "ok", 6380: "ok"},
        echo={84: 0.0001, 1500: 0.0002},
        rate=9400.0,
        rated=True,
    )
    return replace(made, **changes)


def judged(
    links: Iterable[HostLink], clocks: dict[str, Clock] | None = None
) -> list[RequirementsNotMet]:
    return problems(PairResults(tuple(links), clocks or {}, {}), PORTS)


def the_one(*links: HostLink) -> RequirementsNotMet:
    (found,) = judged(links)
    return found


A, B = end(1), end(2)
LOST = {EPHEMERAL: "no answer", 6380: "no answer"}
SILENT: dict[str, Any] = {"tcp": LOST, "echo": {84: None, 1500: None}, "rate": None, "rated": False}


def test_a_pair_as_it_should_be_has_no_problem() -> None:
    assert judged([link(A, B), link(B, A)]) == []


def test_packets_that_leave_by_another_interface() -> None:
    found = the_one(link(A, B, route="eth0"), link(B, A))
    assert str(found) == (
        "gpu1: packets to gpu2 (10.78.0.12) leave through eth0, not eth1, which carries NCCL and "
        "Gloo"
    )
    assert found.hint == "sudo ip route replace 10.78.0.0/24 dev eth1 src 10.78.0.11"


def test_programs_that_bind_no_address_may_leave_by_another_interface() -> None:
    seen = PairResults((link(A, B, unbound="eth0"), link(B, A, unbound=B.nic)), {}, {})
    assert problems(seen, PORTS) == []
    assert next(notes(seen)).startswith("gpu1 reaches eth2 of gpu2 through eth0, not eth1, unless")


def test_no_route_is_told_once_though_both_are_silent() -> None:
    found = the_one(link(A, B, route="", **SILENT), link(B, A, **SILENT))
    assert found.host == "gpu1"
    assert "has no route from eth1 (10.78.0.11)" in found.summary


def test_a_route_that_could_not_be_asked_is_no_problem() -> None:
    assert judged([link(A, B, route=None)]) == []


def test_interfaces_of_different_networks() -> None:
    far = end(2, nic="ens2", ip="10.77.0.12")
    found = the_one(link(A, far, route="eth0"), link(far, A, route="ens3"))
    assert str(found) == (
        "gpu2: its NCCL and Gloo interface ens2 is in 10.77.0.0/24, and eth1 of gpu1 in "
        "10.78.0.0/24: they do not reach each other directly"
    )
    assert "nics.nccl" in (found.hint or "")


OWN, OTHERS = "02:00:00:00:00:02", "02:00:00:00:00:99"
TAKEN = end(2, mac=OWN, macs=frozenset({OWN, "02:00:00:00:00:22"}))
REFUSED = {EPHEMERAL: "refused", 6380: "refused"}


@pytest.mark.parametrize(
    ("neighbours", "tcp"),
    [((OTHERS, OWN), link(A, B).tcp), ((OTHERS, OWN), REFUSED), ((OTHERS,), REFUSED)],
    ids=["both answer", "both answer and it refuses", "only the other one answers"],
)
def test_another_machine_that_has_the_address_is_told_once_with_its_mac(
    neighbours: tuple[str, ...], tcp: dict[int, str]
) -> None:
    """Nothing comes back to gpu2 either: gpu1's answers go to the other machine."""
    found = the_one(link(A, TAKEN, neighbours=neighbours, tcp=tcp), link(TAKEN, A, **SILENT))
    assert str(found) == (
        "gpu2: another machine has its address 10.78.0.12: gpu1 (10.78.0.11) finds "
        "02:00:00:00:00:99 at it, but eth2 has 02:00:00:00:00:02"
    )
    assert "switch's table of MAC addresses" in (found.hint or "")


@pytest.mark.parametrize(
    ("neighbours", "tcp"),
    [
        ((OWN,), REFUSED),
        (("02:00:00:00:00:22",), REFUSED),
        ((), REFUSED),
        ((OTHERS,), link(A, B).tcp),
    ],
    ids=["its own", "its other NIC's", "not asked", "a router's, and all is well"],
)
def test_a_neighbour_that_proves_no_other_machine(
    neighbours: tuple[str, ...], tcp: dict[int, str]
) -> None:
    found = judged([link(A, TAKEN, neighbours=neighbours, tcp=tcp), link(TAKEN, A)])
    assert not any("another machine" in problem.summary for problem in found)


def test_a_router_that_answers_for_all_is_no_machine_with_their_addresses() -> None:
    found = the_one(
        link(A, TAKEN, neighbours=(OTHERS,), tcp=REFUSED), link(TAKEN, A, neighbours=(OTHERS,))
    )
    assert "a firewall refuses" in found.summary


def test_a_router_between_two_networks_is_no_problem() -> None:
    far = end(2, ip="10.99.0.12")
    assert judged([link(A, far), link(far, A)]) == []


def test_silence_is_told_of_the_host_that_all_silent_pairs_share() -> None:
    ends = [end(n) for n in range(1, 7)]
    links = [link(a, b, **(SILENT if "gpu3" in (a.host, b.host) else {}))
            for a in ends for b in ends if a != b]  # fmt: skip
    found = the_one(*links)
    assert str(found) == (
        "gpu3: eth3, which carries NCCL and Gloo, and gpu1 (10.78.0.11), gpu2 (10.78.0.12), "
        "gpu4 (10.78.0.14) and 2 more do not reach each other"
    )
    assert found.hint is not None
    assert "ping -I eth3 10.78.0.11" in found.hint


@pytest.mark.parametrize(
    ("tcp", "words"),
    [
        (
            {EPHEMERAL: "ok", 6380: "no answer"},
            "a firewall drops connections from gpu1 (10.78.0.11) to 6380 (ray_ports.node_manager) "
            "on eth2",
        ),
        (
            {EPHEMERAL: "no answer", 6380: "ok"},
            "a firewall drops connections from gpu1 (10.78.0.11) to ephemeral ports on eth2",
        ),
        (
            {EPHEMERAL: "ok", 6380: "refused"},
            "a firewall refuses connections from gpu1 (10.78.0.11) to 6380 "
            "(ray_ports.node_manager) on eth2",
        ),
        (LOST, "a firewall drops connections from gpu1 (10.78.0.11) to all ports tried on eth2"),
    ],
)
def test_a_firewall_is_the_receivers(tcp: dict[int, str], words: str) -> None:
    found = the_one(link(A, B, tcp=tcp), link(B, A))
    assert (found.host, found.summary) == ("gpu2", words)
    assert "iptables" in (found.hint or "")


def test_another_machine_with_the_address() -> None:
    found = the_one(link(A, B, tcp={EPHEMERAL: "another program answers"}))
    assert found.host == "gpu2"
    assert "10.78.0.12" in found.summary


def test_jumbo_frames_on_one_side() -> None:
    big = end(1, mtu=9000)
    lost = {84: 0.0001, 1500: 0.0001, 9000: None}
    found = the_one(link(big, B, echo=lost, largest=1500), link(B, big))
    assert str(found) == (
        "gpu1: its MTU on eth1 is 9000, but 1500 on eth2 of gpu2: larger packets are lost"
    )
    assert (found.hint or "").startswith("sudo ip link set eth1 mtu 1500")


def test_an_mtu_that_only_one_host_has_is_mended_there() -> None:
    """Not on the healthy hosts, which each see packets lost."""
    small, lost = end(2, mtu=500), {84: 0.0001, 500: 0.0001, 1500: None}
    found = the_one(link(A, small, echo=lost, largest=500), link(small, A))
    assert (
        str(found)
        == "gpu2: its MTU on eth2 is 500, but 1500 on gpu1 (10.78.0.11): larger packets are lost"
    )
    assert found.hint == "sudo ip link set eth2 mtu 1500"

    jumbo, other, odd = end(1, mtu=9000), end(3, mtu=9000), end(2, mtu=1500)
    lost = {84: 0.0001, 1500: 0.0001, 9000: None}
    links = [link(each, odd, echo=lost, largest=1500) for each in (jumbo, other)]
    found = the_one(*links, link(jumbo, other), link(other, jumbo))
    assert (found.host, found.hint) == ("gpu2", "sudo ip link set eth2 mtu 9000")


def test_a_black_hole_says_what_passes() -> None:
    lost = {84: 0.0001, 1500: None}
    found = the_one(link(A, B, echo=lost, largest=1400), link(B, A, echo=lost, largest=1400))
    assert "1400 bytes pass: an MTU black hole" in found.summary
    assert "mtu 1400" in (found.hint or "")


def test_a_transfer_that_sticks_where_echo_is_forbidden() -> None:
    found = the_one(link(A, B, echo=None, rate=None), link(B, A, echo=None))
    assert "no data arrives: an MTU black hole" in found.summary


def test_connections_that_carry_nothing_while_services_forbid_a_transfer() -> None:
    stuck = {EPHEMERAL: "no data", 6380: "ok"}
    found = the_one(link(A, B, tcp=stuck, rate=None, rated=False), link(B, A))
    assert "connect, but no data arrives: an MTU black hole" in found.summary
    alone = link(A, B, tcp={EPHEMERAL: "no data"}, echo=dict.fromkeys((84, 1500)), rated=False)
    assert "no data arrives" in the_one(alone).summary


@pytest.mark.parametrize(
    ("speed", "rate", "red"),
    [(10_000, 4_900, True), (10_000, 5_100, False), (400_000, 12_000, False), (None, 10, False)],
)
def test_half_of_the_link_is_the_least(speed: int | None, rate: float, red: bool) -> None:
    slow, other = end(1, speed=speed), end(2, speed=None)
    assert bool(judged([link(slow, other, rate=rate)])) is red


def test_the_slower_link_counts() -> None:
    found = the_one(link(A, end(2, speed=1000), rate=300.0))
    assert "300 Mbit/s between eth2 and gpu1 (10.78.0.11), over a link of 1000" in found.summary


@pytest.mark.parametrize(
    ("clock", "off"),
    [
        (Clock(0.9, 0.001), []),
        (Clock(1.4, 0.001), ["its clock is 1.4 s ahead of the others"]),
        (Clock(1.4, 0.6), []),
        (Clock(-300.2, 0.001), ["its clock is 300 s behind the others"]),
    ],
)
def test_clocks_differ_by_a_second_less_what_is_uncertain(clock: Clock, off: list[str]) -> None:
    clocks = {"gpu1": Clock(0.0, 0.001), "gpu2": clock}
    assert [problem.summary for problem in judged([], clocks)] == off


def test_what_was_measured_and_what_not_is_noted() -> None:
    seen = PairResults(
        (link(A, B, rate=940.4), link(B, A, echo=None)), {}, {"gpu3": "it has no python3"}
    )
    assert list(notes(seen)) == [
        "gpu3: not tested: it has no python3",
        "packet sizes were not tested: raw sockets need root on the hosts",
        "between hosts, for NCCL and Gloo: round trip at most 0.10 ms, 940 to 9400 Mbit/s",
    ]


@pytest.mark.parametrize(
    ("firewall", "fix"),
    [
        ("firewalld", "sudo firewall-cmd --permanent --zone=trusted --add-source=10.78.0.0/24 && "),
        ("ufw", "sudo ufw allow from 10.78.0.0/24"),
        ("iptables", "sudo iptables -I INPUT -s 10.78.0.0/24 -j ACCEPT; to keep it: "),
        ("nftables", "put `ip saddr 10.78.0.0/24 accept` before the refusing rule"),
        ("", "systemctl is-active firewalld ufw; sudo nft list ruleset; sudo iptables -S INPUT; "),
    ],
)
def test_a_firewall_is_opened_by_what_rules_there(firewall: str, fix: str) -> None:
    """https://github.com/firewalld/firewalld/issues/527, ray-project/ray/issues/35254"""
    shut = link(end(1), end(2, firewall=firewall), tcp={EPHEMERAL: "no answer", 6380: "no answer"})
    (found,) = problems(PairResults((shut,), {}, {}), PORTS)
    assert found.host == "gpu2"
    assert fix in (found.hint or "")
    assert ("iptables" in (found.hint or "")) == (firewall in ("iptables", ""))
