"""Documents of a host that are cut short, garbage, deleted or changed: named, with what a command
wrote. What a container says that they were counts for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from clusterctl.facts.parse import Probe
from clusterctl.node.documents import (
    CHANGED,
    DELETED,
    DrainedHosts,
    KeysDocument,
    Member,
    MembersDocument,
    NamedKey,
    NodeState,
    ServiceDocument,
    UnreadableDocument,
    to_json,
)
from clusterctl.survey.declared_documents import services_in, unreadable_in
from tests.fakes.host_facts import host_facts, nic

TINY = ServiceDocument(
    name="tiny", model="tiny", served_name="tiny", argv=["vllm", "serve", "/m"], env={},
    host="10.0.0.1", port=8000, tensor_parallel=1, pipeline_parallel=1, gpus=1, fingerprint="f",
)  # fmt: skip
ETC = "/etc/clusterctl/demo"
STATE = NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0)


def answer(state: NodeState, files: Mapping[str, bytes]) -> Probe:
    known = {"/run/clusterctl/demo/state.json": to_json(state).encode()}
    return Probe(host_facts(nic("eth0", "10.0.0.1")), {**known, **files}, (), (), None)


WRITTEN = {"services/tiny.json": to_json(TINY)}


def test_nothing_is_said_of_documents_that_are_fine() -> None:
    seen = answer(STATE, {f"{ETC}/services/tiny.json": to_json(TINY).encode()})
    for written in (WRITTEN, {}):
        assert services_in("demo", seen, written) == {"tiny": TINY}
        assert unreadable_in("demo", seen, written) == []


def test_of_one_cut_short_what_a_command_wrote_counts() -> None:
    cut = to_json(TINY).encode()[:50]
    known = UnreadableDocument("services/tiny.json", "cut", to_json(replace(TINY, model="evil")))
    node = UnreadableDocument("node.json", "cut", '{"cluster": "demo"}')
    files = {f"{ETC}/services/tiny.json": cut, f"{ETC}/node.json": b"{"}
    seen = answer(replace(STATE, unreadable=[known, node]), files)
    assert services_in("demo", seen, WRITTEN) == {"tiny": TINY}
    _, named = unreadable_in("demo", seen, WRITTEN)
    assert (named.file, named.last_good) == ("services/tiny.json", to_json(TINY))


def test_of_garbage_that_no_command_wrote_there_is_no_service() -> None:
    known = UnreadableDocument("services/tiny.json", "cut", to_json(TINY))
    files = {f"{ETC}/services/tiny.json": b"\x80garbage", f"{ETC}/node.json": b"{"}
    seen = answer(replace(STATE, unreadable=[known]), files)
    assert services_in("demo", seen, {}) == {}
    found = unreadable_in("demo", seen, {})
    assert [each.file for each in found] == ["node.json", "services/tiny.json"]
    assert [each.last_good for each in found] == ["", ""]


def test_one_that_was_changed_by_hand_is_named_and_its_content_counts() -> None:
    changed = replace(TINY, port=9000)
    seen = answer(STATE, {f"{ETC}/services/tiny.json": to_json(changed).encode()})
    assert services_in("demo", seen, WRITTEN) == {"tiny": changed}
    (named,) = unreadable_in("demo", seen, WRITTEN)
    assert (named.why, named.last_good) == (CHANGED, to_json(TINY))


def test_what_was_deleted_goes_on_as_a_command_wrote_it() -> None:
    node = UnreadableDocument("node.json", DELETED, '{"cluster": "demo"}')
    claim = to_json(replace(TINY, argv=["sh", "-c", "evil"]))
    tiny = UnreadableDocument("services/tiny.json", DELETED, claim)
    gone = answer(replace(STATE, unreadable=[node, tiny]), {})
    assert services_in("demo", gone, WRITTEN) == {"tiny": TINY}
    assert unreadable_in("demo", gone, WRITTEN) == [
        node,
        UnreadableDocument("services/tiny.json", DELETED, to_json(TINY)),
    ]


MEMBERS = MembersDocument("tiny", ["tiny"], 8000, [Member(1, "gpu1", "10.0.0.1", 8001)])
DOCUMENTS = {
    "services/tiny.json": to_json(TINY),
    "members/tiny.json": to_json(MEMBERS),
    "keys.json": to_json(KeysDocument([NamedKey("eve", "0" * 64, 0.0)])),
    "drained.json": to_json(DrainedHosts(["gpu2"])),
}


@pytest.mark.parametrize("file", DOCUMENTS)
def test_a_container_cannot_have_a_document_restored_that_no_command_wrote(file: str) -> None:
    state = replace(STATE, unreadable=[UnreadableDocument(file, DELETED, DOCUMENTS[file])])
    assert unreadable_in("demo", answer(state, {}), {}) == []
    assert services_in("demo", answer(state, {}), {}) == {}
    damaged = unreadable_in("demo", answer(state, {f"{ETC}/{file}": b"{"}), {})
    assert [each.last_good for each in damaged] == [""]


@pytest.mark.parametrize("file", DOCUMENTS)
def test_each_document_is_restored_from_the_heads_copy(file: str) -> None:
    damaged = unreadable_in("demo", answer(STATE, {f"{ETC}/{file}": b"{"}), DOCUMENTS)
    assert [(each.file, each.last_good) for each in damaged] == [(file, DOCUMENTS[file])]
    state = replace(STATE, unreadable=[UnreadableDocument(file, DELETED, "{}")])
    gone = unreadable_in("demo", answer(state, {}), DOCUMENTS)
    assert [(each.file, each.last_good) for each in gone] == [(file, DOCUMENTS[file])]


@pytest.mark.parametrize(
    "file",
    [
        "../../cron.d/x",
        "services/../../../cron.d/x.json",
        "services/a/../b.json",
        "/etc/cron.d/x",
        "services/other.json",
        "services/",
        "",
    ],
)
def test_a_container_cannot_name_a_file_to_be_written_or_removed(file: str) -> None:
    """Its report lists documents that bootstrap restores, as root."""
    state = replace(STATE, unreadable=[UnreadableDocument(file, DELETED, to_json(TINY))])
    assert unreadable_in("demo", answer(state, {}), DOCUMENTS) == []
    assert services_in("demo", answer(state, {}), DOCUMENTS) == {}


@pytest.mark.parametrize(
    "name",
    [
        "../../other/services/x@5",
        "x/y",
        "..",
        ".x",
        "x\n",
        "tiny@0",
        "tiny@2",
        "Tiny",
        "tiny;id",
        "",
    ],
)
def test_a_document_is_named_as_its_file_is(name: str) -> None:
    """Its name becomes a path on other hosts, and stands in commands that a user pastes."""
    text = to_json(replace(TINY, name=name)).encode()
    for file in ("services/tiny.json", f"services/{name}.json"):
        seen = answer(STATE, {f"{ETC}/{file}": text})
        assert services_in("demo", seen, {}) == {}


def test_a_replica_has_the_number_in_its_name() -> None:
    for number, valid in ((3, True), (2, False), (-1, False)):
        text = to_json(replace(TINY, name="tiny@3", replica=number)).encode()
        seen = answer(STATE, {f"{ETC}/services/tiny@3.json": text})
        assert bool(services_in("demo", seen, {})) == valid
