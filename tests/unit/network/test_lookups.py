"""What looking up names costs: the program that hosts run, and what is said of its answers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.model import Host
from clusterctl.network import host_lookups
from clusterctl.network.lookups import FOREIGN, PROGRAM, LookupAnswer, notes, read_answer
from clusterctl.transport import python
from clusterctl.transport.local import LocalTransport
from tests.fakes.name_server import NameServer, serving

MADE_UP = "no-such-1"
CLUSTER = {"10.0.0.1": "gpu1", "10.9.0.1": "gpu1.eth1"}
QUICK = 0.001


def answer(**changes: Any) -> LookupAnswer:
    """Of a place where everything is as it should be."""
    names = {name: ([ip], QUICK) for ip, name in CLUSTER.items()}
    base: dict[str, Any] = {
        "own": "gpu1", "search": [], "made_up": MADE_UP,
        "names": {**names, FOREIGN: (["203.0.113.1"], 0.04), MADE_UP: ([], 0.04)},
        "addresses": {ip: (name, QUICK) for ip, name in CLUSTER.items()},
        "servers": {"10.0.0.53": ("", 0.02)},
    }  # fmt: skip
    return LookupAnswer(**{**base, **changes})


def said(host: LookupAnswer, container: LookupAnswer | None = None) -> str:
    return "\n".join(notes({"gpu1": host}, {"gpu1": container} if container else {}, CLUSTER))


def test_nothing_is_said_where_names_are_quick_and_right() -> None:
    assert said(answer(), answer()) == ""
    without = answer(servers={}, names={**answer().names, FOREIGN: ([], QUICK)})
    assert said(without, without) == ""


def test_a_dead_name_server_is_named_once_with_what_it_costs() -> None:
    dead = answer(servers={"10.0.0.53": None}, names={**answer().names, FOREIGN: None})
    told = said(dead, dead)
    assert told.startswith(
        "gpu1: the name server 10.0.0.53 does not answer: looking up huggingface.co takes more "
        "than 6 s; nothing in the cluster waits for it"
    )
    assert told.count("10.0.0.53") == 1


def test_a_slow_name_server_is_told_with_its_seconds() -> None:
    slow = answer(servers={"10.0.0.53": ("", 4.02)}, names={**answer().names, FOREIGN: ([], 4.03)})
    assert "the name server 10.0.0.53 answers after 4.0 s: looking up" in said(slow)


def test_a_name_server_of_the_container_alone_is_said_to_be_there() -> None:
    old_copy = answer(servers={"10.0.0.99": None}, names={**answer().names, FOREIGN: (["x"], 5.0)})
    assert said(answer(), old_copy).startswith(
        "gpu1: in its container, the name server 10.0.0.99 does not answer: looking up "
        "huggingface.co takes 5.0 s"
    )


def test_a_made_up_name_that_exists_is_a_wildcard() -> None:
    wrong = answer(
        search=["corp.example"], names={**answer().names, MADE_UP: (["192.0.2.77"], 0.04)}
    )
    told = said(wrong, wrong)
    assert "the name server 10.0.0.53 resolves no-such-1" in told
    assert "192.0.2.77: a wildcard, in a search domain (corp.example)" in told
    assert told.count("wildcard") == 1


def test_a_host_that_asks_for_its_own_name_is_told_what_to_write() -> None:
    own = answer(own="rack7", names={**answer().names, "rack7": None})
    assert "its own name rack7 is looked up at a name server, which takes more than 6 s" in said(
        own
    )
    assert "add rack7 to its /etc/hosts" in said(own)


def test_a_container_that_asks_others_for_the_clusters_names() -> None:
    slow = answer(addresses={"10.0.0.1": ("gpu1", QUICK), "10.9.0.1": None})
    assert said(answer(), slow).startswith(
        "gpu1: in its container, 10.9.0.1 took longer than 1 s to look up: name servers are asked "
        "before /etc/hosts"
    )
    assert said(slow) == "", "hosts need not know them"


def test_a_container_that_takes_a_node_for_another_machine() -> None:
    wrong = answer(names={**answer().names, "gpu1": (["127.0.1.1"], QUICK)})
    assert said(answer(), wrong) == (
        "gpu1: in its container, gpu1 resolves to 127.0.1.1, not only to 10.0.0.1"
    )


@pytest.fixture
def server() -> Iterator[NameServer]:
    with serving(NameServer("127.0.0.1", port=0)) as running:
        yield running


def test_a_name_server_that_knows_no_name_has_answered(server: NameServer) -> None:
    assert host_lookups.asked(server.address, "a.example", server.port) == ""
    assert server.asked == ["a.example"]


def test_a_silent_name_server_takes_no_more_time_than_it_is_given(server: NameServer) -> None:
    server.silent = True
    started = time.monotonic()
    found = host_lookups.all_at_once(
        {
            ("servers", "silent"): partial(host_lookups.asked, "127.0.0.1", "a", server.port),
            ("servers", "none"): partial(host_lookups.asked, "no address", "a"),
        },
        within=0.5,
    )
    assert time.monotonic() - started < 5
    assert found["servers", "silent"] is None
    refusal = found["servers", "none"]
    assert refusal is not None
    assert refusal[0], "it says why"


def test_name_servers_are_those_that_the_resolver_asks(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    servers = "".join(f"nameserver 10.0.0.{n}\n" for n in range(1, 6))
    file.write_text(f"# nameserver 1.1.1.1\ndomain old\nsearch a.example b.example\n{servers}")
    assert host_lookups.configured(str(file)) == (
        ["10.0.0.1", "10.0.0.2", "10.0.0.3"], ["a.example", "b.example"],
    )  # fmt: skip
    assert host_lookups.configured(str(tmp_path / "missing")) == ([], [])


def test_the_program_answers_with_what_the_judgement_reads() -> None:
    order = {"names": ["localhost"], "addresses": ["127.0.0.1"], "made_up": "localhost",
             "foreign": "localhost", "within": 10.0}  # fmt: skip
    here = LocalTransport(Host(name="gpu1", address="localhost"))
    told_us = python.ask(here, PROGRAM, order, doing="looking up names", timeout=60)
    found = read_answer(told_us, order)
    assert found is not None
    assert found.own == os.uname().nodename
    told = found.names["localhost"]
    assert told is not None
    assert set(told[0]) <= {"127.0.0.1", "::1"}


@pytest.mark.parametrize(
    "said",
    [
        "", None, [1], {"own": "a"},
        {"own": "a", "search": [], "names": {"a": [1, 2]}, "addresses": {}, "servers": {}},
    ],
)  # fmt: skip
def test_what_is_no_answer_is_none(said: object) -> None:
    order = {"names": [], "addresses": [], "made_up": "a", "foreign": "a"}
    assert read_answer(said, order) is None
