"""`logs` of replicas, whose lines are labelled with host and replica."""

from __future__ import annotations

import queue

import pytest

from clusterctl.commands.logs import _Item, _pump, _replicas
from clusterctl.inventory.model import Host, Inventory
from clusterctl.node.documents import Member, MembersDocument, to_json
from clusterctl.transport.python import NOT_FOUND, PythonMissing
from tests.fakes.transport import FakeTransport


def test_the_fix_of_an_error_names_the_host_and_not_the_label() -> None:
    host = Host(name="gpu2", address="192.0.2.2")
    transport = FakeTransport(host).on(lambda _: True, status=NOT_FOUND)
    arriving: queue.SimpleQueue[tuple[str, _Item]] = queue.SimpleQueue()
    _pump("gpu2 chat@2", transport, {}, "chat", arriving)
    _, error = arriving.get_nowait()
    assert isinstance(error, PythonMissing)
    assert "--limit gpu2 --" in str(error.hint)


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("chat", ["gpu1 chat", "gpu2 chat@2"]),
        ("chat@2", ["gpu2 chat@2"]),
        ("chat@standby", ["gpu1 chat@standby"]),
    ],
)
def test_a_standby_has_a_log_of_its_own_name(name: str, labels: list[str]) -> None:
    hosts = (
        Host(name="gpu1", address="192.0.2.1", role="head"),
        Host(name="gpu2", address="192.0.2.2"),
    )
    members = [Member(n, f"gpu{n}", f"192.0.2.{n}", 8100, standby_port=8101) for n in (1, 2)]
    listed = to_json(MembersDocument("chat", ["m"], 8000, members))
    head = FakeTransport(hosts[0]).on(lambda argv: argv[0] == "cat", stdout=listed)
    found = _replicas(Inventory(cluster="demo", image="v", hosts=hosts), head, name)
    assert [label for label, *_ in found] == labels
