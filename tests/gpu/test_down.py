"""The end of the cluster that test_cluster.py brings up."""

from __future__ import annotations

import os

import pytest

from tests.gpu.conftest import Table, state_of_hosts
from tests.lab.cluster import Operator
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]


def test_down_leaves_the_hosts_as_found(
    as_found: list[str], inventory: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    ran = operator.ok("down", "--purge", "--yes", "-i", inventory)
    table.add("down --purge", seconds=round(ran.seconds, 1))
    left = state_of_hosts(inventory, on_host)
    assert (set(left) - set(as_found), set(as_found) - set(left)) == (set(), set())
