"""Taking down what does not answer: nothing is claimed, and every host's error is told."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from clusterctl.cli.session import show_plan
from clusterctl.commands import down
from clusterctl.engine.events import Event, Note
from clusterctl.engine.plan import Plan
from clusterctl.errors import Problems, Unreachable
from clusterctl.inventory.model import Host, Inventory, Ssh
from clusterctl.operations.session import Session
from clusterctl.transport.credentials import Credentials


@pytest.fixture
def silent() -> Iterator[Inventory]:
    """Two hosts at a port of this machine that nothing listens on."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        ssh = Ssh(port=taken.getsockname()[1], user="root")
        hosts = (
            Host(name="gpu1", address="127.0.0.1", role="head", ssh=ssh),
            Host(name="gpu2", address="127.0.0.1", ssh=ssh),
        )
        yield Inventory(cluster="demo", image="vllm/vllm-openai:v0.33.0", hosts=hosts)


def test_a_dry_run_over_silent_hosts_says_so(
    silent: Inventory, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(silent, silent.hosts, lambda _: None, Credentials())
    planned = down.make_plan(session, purge=False)
    errors = tuple(planned.set_aside.values())
    assert {type(error) for error in errors} == {Unreachable}
    with pytest.raises(Problems) as raised:
        show_plan(planned.plan, as_json=False, errors=errors)
    assert raised.value.exit_code == 4
    assert capsys.readouterr().out == ""


def test_without_the_head_a_worker_is_taken_down_without_the_lock_and_that_is_said(
    silent: Inventory,
) -> None:
    told: list[Event] = []
    session = Session(silent, silent.hosts[1:], told.append, Credentials())
    with pytest.raises(Unreachable) as raised:
        down.run(session, purge=False, agree=lambda _: None)
    assert raised.value.host == "gpu2", "the head was not asked to come down"
    assert told == [Note("does not answer: continuing without the cluster's lock", "gpu1")]


def test_an_empty_plan_is_said_in_the_commands_own_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert show_plan(Plan(()), as_json=False, nothing="Nothing to take down.").exit_code == 0
    assert capsys.readouterr().out == "Nothing to take down.\n"
