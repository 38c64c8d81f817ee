"""The address that gateways of several hosts share: who may have it, what keepalived is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.steps.virtual_address import VirtualAddress, found_in
from tests.unit.steps.stage import Cluster, cluster, shared_address


@pytest.fixture
def made() -> Cluster:
    return cluster()


def test_each_host_names_the_others_and_its_own_network(made: Cluster) -> None:
    step = shared_address(made)
    first, second = step.config("gpu1"), step.config("gpu2")
    assert "unicast_src_ip 10.0.0.11" in first
    assert "unicast_peer {\n        10.0.0.12\n    }" in first
    assert "unicast_peer {\n        10.0.0.11\n    }" in second
    assert "10.0.0.100/24 dev eth0" in first
    assert "priority 200" in first
    assert "priority 199" in second
    routers = {
        line for text in (first, second) for line in text.splitlines() if "router_id " in line
    }
    assert len({line for line in routers if "virtual" in line}) == 1, "they would not be one group"


def test_a_host_outside_of_its_network_is_named_before_anything_changes(made: Cluster) -> None:
    step = VirtualAddress("demo", shared_address(made)._address, {"gpu1": made.head_view.facts})
    with pytest.raises(RequirementsNotMet, match="not in the network of any of its interfaces"):
        step.check(made.head_view)


def test_an_address_that_another_machine_has_is_refused(made: Cluster) -> None:
    made.head.neighbours["10.0.0.100"] = "0c:c4:7a:00:00:01"
    with pytest.raises(RequirementsNotMet, match=r"is taken: .*0c:c4:7a:00:00:01") as raised:
        shared_address(made).check(made.head_view)
    assert "10.0.0.0/24" in (raised.value.hint or "")


def test_another_host_of_the_cluster_may_have_it(made: Cluster) -> None:
    made.head.neighbours["10.0.0.100"] = "02:00:00:00:00:12"  # gpu2's
    change = shared_address(made).check(made.head_view)
    assert change
    assert "share 10.0.0.100 on eth0" in change.summary


def test_without_systemd_it_says_so(made: Cluster) -> None:
    made.head.systemd = False
    with pytest.raises(RequirementsNotMet, match="needs systemd"):
        shared_address(made).check(made.head_view)


def test_what_the_host_prints_is_read_with_defaults() -> None:
    assert found_in("") == replace(found_in("garbage\n"), digests=())
    found = found_in("systemd yes\nactive yes\nfile ab\nfile none\ntaken 02:00:00:00:00:01\n")
    assert (found.active, found.digests, found.taken) == (True, ("ab", "none"), "02:00:00:00:00:01")
