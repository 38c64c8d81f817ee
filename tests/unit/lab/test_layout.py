"""Names and addresses follow from a host's number alone."""

from __future__ import annotations

import pytest

from clusterctl.errors import UsageError
from clusterctl.lab.layout import (
    CONTROL,
    FABRIC,
    LIGHT,
    MAX_HOSTS,
    MAX_LIGHT_HOSTS,
    LabHost,
    lab_host,
    lab_hosts,
    light_hosts,
)

IFNAMSIZ = 15


def test_a_host_has_one_nic_on_each_network_at_a_fixed_address() -> None:
    control, fabric = lab_host(2).nics
    assert (str(control.address), control.network) == ("10.77.0.12/24", CONTROL)
    assert (str(fabric.address), fabric.network) == ("10.78.0.12/24", FABRIC)
    assert lab_host(2).address == "10.77.0.12"


def test_neighbours_never_share_a_nic_name() -> None:
    first, second = ({nic.name for nic in host.nics} for host in lab_hosts(2))
    assert not first & second


@pytest.mark.parametrize("hosts", [lab_hosts(MAX_HOSTS), light_hosts(MAX_LIGHT_HOSTS)])
def test_every_link_address_and_namespace_is_one_of_its_kind(hosts: tuple[LabHost, ...]) -> None:
    nics = [nic for host in hosts for nic in host.nics]
    assert len({nic.peer for nic in nics}) == len(nics)
    assert len({nic.address for nic in nics}) == len(nics)
    assert len({host.namespace for host in hosts}) == len(hosts)
    assert all(len(nic.peer) <= IFNAMSIZ for nic in nics)


def test_light_hosts_stay_inside_their_network() -> None:
    last = light_hosts(MAX_LIGHT_HOSTS)[-1].nics[0].address
    assert last.ip in LIGHT.subnet
    assert last.ip != LIGHT.subnet.broadcast_address


@pytest.mark.parametrize("count", [0, -1, MAX_HOSTS + 1])
def test_a_senseless_number_of_hosts_is_refused(count: int) -> None:
    with pytest.raises(UsageError, match="1 to"):
        lab_hosts(count)


def test_an_unknown_nic_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(UsageError, match="ens2, ens3"):
        lab_host(2).nic("eth0")
