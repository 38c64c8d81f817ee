"""Another host is made the head: what it gets, from whose copy, and when it must not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.node.documents import (
    ExpectedNode,
    KeysDocument,
    Member,
    MembersDocument,
    NamedKey,
    NodeDocument,
    config_dir,
    declared_dir,
    from_json,
    to_json,
)
from clusterctl.node.files import NodePaths
from clusterctl.survey.survey import Survey
from clusterctl.survey.taking_over import TakeOver, rivals
from clusterctl.transport.head_copy import HeadCopy, copy_file, serial_file
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import Said, survey_of
from tests.unit.serving.test_rolling_changes import document

NAMES = ("gpu1", "gpu2", "gpu3")
CLOCK = 7200.0
CONFIG, DECLARED = config_dir("demo"), declared_dir("demo")
EXPECTED = [ExpectedNode(name, f"10.0.0.{n}", 1) for n, name in enumerate(NAMES, 1)]
KEYS = KeysDocument([NamedKey("alice", "0" * 64, 0.0)])


def inventory(head: str, *names: str) -> Inventory:
    return Inventory(
        cluster="demo",
        image="vllm:1",
        hosts=tuple(
            Host(
                name=name,
                address=f"10.0.0.{name[-1]}",
                role="head" if name == head else "worker",
                gpus=(Gpu(),),
            )
            for name in names
        ),
    )


def listed(*hosts: str, listen: str = "10.0.0.1") -> str:
    members = [Member(int(host[-1]), host, f"10.0.0.{host[-1]}", 8100) for host in hosts]
    return to_json(MembersDocument("tiny", ["m"], 8000, members, listen=listen))


def documents(*hosts: str, listen: str = "10.0.0.1") -> dict[str, str]:
    replicas = [document(int(host[-1])) for host in hosts]
    files = {f"services/{each.name}.json": to_json(each) for each in replicas}
    return {**files, "members/tiny.json": listed(*hosts, listen=listen), "keys.json": to_json(KEYS)}


def said(name: str, files: Mapping[str, str], *, head: str = "gpu1") -> Said:
    role, ip = ("head" if name == head else "worker"), f"10.0.0.{name[-1]}"
    head_ip = f"10.0.0.{head[-1]}"
    node = NodeDocument("demo", name, role, ip, head_ip, [], {}, EXPECTED)
    texts = {str(NodePaths("demo").node_document): to_json(node), **files}
    facts = replace(host_facts(nic("eth0", f"{ip}/24")), clock=CLOCK)
    return Said(facts, container="running", files={path: x.encode() for path, x in texts.items()})


def kept(serial: int, texts: Mapping[str, str], head: str = "gpu1") -> dict[str, str]:
    copy = HeadCopy(head, serial, CLOCK - 600, dict(texts))
    return {copy_file("demo"): to_json(copy)}


def looked(survey: Survey) -> tuple[Survey, TakeOver]:
    found = survey.with_earlier_documents()
    assert found.taking_over
    return found, found.taking_over


def test_the_newest_copy_that_a_host_keeps_makes_another_head() -> None:
    answers = {
        "gpu2": said("gpu2", kept(3, documents("gpu1", "gpu2"))),
        "gpu3": said("gpu3", kept(4, documents("gpu1", "gpu2", "gpu3"))),
    }
    survey, found = looked(survey_of(inventory("gpu2", "gpu2", "gpu3"), answers))

    assert (found.before, found.keeper, found.age) == ("gpu1", "gpu3", 600.0)
    assert found.files[serial_file("demo")] == b"5\n"
    assert found.files[f"{CONFIG}/keys.json"] == to_json(KEYS).encode()
    assert found.files[f"{DECLARED}/keys.json"] == to_json(KEYS).encode()
    members = from_json(MembersDocument, found.files[f"{CONFIG}/members/tiny.json"].decode())
    assert [each.host for each in members.members] == ["gpu2", "gpu3"]
    assert [each.host for each in found.lost["tiny"]] == ["gpu1"]
    assert f"{DECLARED}/services/tiny.json" not in found.files, "the replica of the lost host"
    assert f"{DECLARED}/services/tiny@3.json" in found.files
    assert f"{CONFIG}/services/tiny@3.json" not in found.files, "it is another host's"
    assert [each.host for each in survey.service("tiny").members] == ["gpu2", "gpu3"]


def test_the_clock_decides_nothing() -> None:
    """The head's went back by an hour between two changes, or is ahead of the others'."""
    old, new = documents("gpu2"), documents("gpu2", "gpu3")
    later = HeadCopy("gpu1", 3, CLOCK + 3600, old)
    answers = {
        "gpu2": said("gpu2", {copy_file("demo"): to_json(later)}),
        "gpu3": said("gpu3", kept(4, new)),
    }
    _, found = looked(survey_of(inventory("gpu2", "gpu2", "gpu3"), answers))
    assert found.keeper == "gpu3"
    answers["gpu3"] = said("gpu3", kept(2, new))
    _, found = looked(survey_of(inventory("gpu2", "gpu2", "gpu3"), answers))
    assert (found.keeper, found.age) == ("gpu2", 0.0)


@pytest.mark.parametrize(
    ("listen", "then"),
    [("10.0.0.1", "10.0.0.2"), ("0.0.0.0", "0.0.0.0"), ("127.0.0.1", "127.0.0.1"), ("", "")],
)
def test_clients_reach_it_at_its_own_address(listen: str, then: str) -> None:
    answers = {"gpu2": said("gpu2", kept(1, documents("gpu2", listen=listen)))}
    _, found = looked(survey_of(inventory("gpu2", "gpu2"), answers))
    text = found.files[f"{CONFIG}/members/tiny.json"].decode()
    assert from_json(MembersDocument, text).listen == then


def test_a_head_that_answers_has_its_documents_itself() -> None:
    own = {f"{DECLARED}/{file}": text for file, text in documents("gpu1", "gpu2").items()}
    answers = {
        "gpu1": said("gpu1", {**own, serial_file("demo"): "4\n"}),
        "gpu2": said("gpu2", kept(4, documents("gpu1"))),
    }
    survey, found = looked(survey_of(inventory("gpu2", "gpu1", "gpu2"), answers))
    assert (found.keeper, found.lost) == ("gpu1", {})
    assert [each.host for each in survey.service("tiny").members] == ["gpu1", "gpu2"]


def test_documents_from_an_earlier_time_as_the_head_go() -> None:
    stale = {
        f"{CONFIG}/members/old.json": listed("gpu2").replace("tiny", "old"),
        f"{CONFIG}/drained.json": '{"hosts": ["gpu3"]}',
        f"{DECLARED}/members/old.json": listed("gpu2").replace("tiny", "old"),
        f"{CONFIG}/services/tiny@2.json": to_json(document(2)),
    }
    answers = {"gpu2": said("gpu2", {**stale, **kept(9, documents("gpu2"))})}
    survey, found = looked(survey_of(inventory("gpu2", "gpu2"), answers))
    assert set(found.gone) == {path for path in stale if "services" not in path}
    assert set(survey.services) == {"tiny"}
    assert survey.drained == ()


def test_nothing_is_taken_over_where_nobody_is_replaced() -> None:
    copy = kept(3, documents("gpu1"))
    for survey in (
        survey_of(inventory("gpu1", *NAMES), {name: said(name, copy) for name in NAMES}),
        survey_of(inventory("gpu2", "gpu2"), {"gpu2": said("gpu2", {})}),
        survey_of(inventory("gpu2", "gpu2"), {"gpu2": said("gpu2", kept(3, {}, head="gpu9"))}),
        survey_of(inventory("gpu2", "gpu2"), {"gpu2": Said(host_facts(), files={})}),
        survey_of(inventory("gpu2", "gpu2"), {"gpu2": said("gpu2", {copy_file("demo"): "{"})}),
    ):
        assert survey.with_earlier_documents().taking_over is None


def test_a_head_that_comes_back_after_another_took_over_is_refused() -> None:
    both = {
        "gpu1": said("gpu1", {serial_file("demo"): "4\n"}),
        "gpu2": said("gpu2", {serial_file("demo"): "5\n"}, head="gpu2"),
    }
    (error,) = rivals(survey_of(inventory("gpu1", "gpu1", "gpu2"), both))
    assert error.host == "gpu2"
    assert "became the head while gpu1 was away" in error.summary
    assert rivals(survey_of(inventory("gpu2", "gpu1", "gpu2"), both)) == []
