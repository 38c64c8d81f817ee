"""`logs` of replicas, whose lines are labelled with host and replica."""

from __future__ import annotations

import queue

from clusterctl.commands.logs import _Item, _pump
from clusterctl.inventory.model import Host
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
