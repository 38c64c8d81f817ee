"""Documents on the head that are cut short or garbage: named, and what is known of them kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from clusterctl.facts.parse import Probe
from clusterctl.node.documents import (
    DELETED,
    DrainedHosts,
    KeysDocument,
    Member,
    MembersDocument,
    NodeState,
    ServiceDocument,
    UnreadableDocument,
    to_json,
)
from clusterctl.survey.survey import services_in, unreadable_in
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


def test_nothing_is_said_of_documents_that_are_fine() -> None:
    seen = answer(STATE, {f"{ETC}/services/tiny.json": to_json(TINY).encode()})
    assert services_in("demo", seen) == {"tiny": TINY}
    assert unreadable_in("demo", seen) == []


def test_of_one_cut_short_the_supervisors_last_version_counts() -> None:
    cut = to_json(TINY).encode()[:50]
    known = UnreadableDocument("services/tiny.json", "cut", to_json(TINY))
    node = UnreadableDocument("node.json", "cut", '{"cluster": "demo"}')
    files = {f"{ETC}/services/tiny.json": cut, f"{ETC}/node.json": b"{"}
    seen = answer(replace(STATE, unreadable=[known, node]), files)
    assert services_in("demo", seen) == {"tiny": TINY}
    _, named = unreadable_in("demo", seen)
    assert (named.file, named.last_good) == ("services/tiny.json", to_json(TINY))


def test_of_garbage_that_nobody_ever_read_there_is_no_service() -> None:
    files = {
        f"{ETC}/services/tiny.json": b"\x80garbage",
        f"{ETC}/node.json": b"{",
    }
    seen = answer(STATE, files)
    assert services_in("demo", seen) == {}
    assert [each.file for each in unreadable_in("demo", seen)] == [
        "node.json",
        "services/tiny.json",
    ]


def test_one_that_was_mended_counts_before_the_supervisor_has_seen_it() -> None:
    old = replace(TINY, port=9000)
    known = UnreadableDocument("services/tiny.json", "cut", to_json(old))
    file = {f"{ETC}/services/tiny.json": to_json(TINY).encode()}
    assert services_in("demo", answer(replace(STATE, unreadable=[known]), file)) == {"tiny": TINY}


def test_what_was_deleted_goes_on_by_what_the_supervisor_holds() -> None:
    node = UnreadableDocument("node.json", DELETED, '{"cluster": "demo"}')
    tiny = UnreadableDocument("services/tiny.json", DELETED, to_json(TINY))
    state = replace(STATE, unreadable=[node, tiny])
    gone = answer(state, {})
    assert services_in("demo", gone) == {"tiny": TINY}
    assert unreadable_in("demo", gone) == [node, tiny]
    written = {f"{ETC}/services/tiny.json": to_json(replace(TINY, port=9000)).encode()}
    assert unreadable_in("demo", answer(state, written)) == [node]
    assert services_in("demo", answer(state, written))["tiny"].port == 9000


def test_a_gateways_members_are_restored_as_well() -> None:
    text = to_json(MembersDocument("tiny", ["tiny"], 8000, [Member(1, "gpu1", "10.0.0.1", 8001)]))
    known = UnreadableDocument("members/tiny.json", "cut", text)
    seen = answer(replace(STATE, unreadable=[known]), {f"{ETC}/members/tiny.json": b"{"})
    (named,) = unreadable_in("demo", seen)
    assert (named.file, named.last_good) == ("members/tiny.json", text)
    other = replace(known, file="members/other.json", why=DELETED)
    assert unreadable_in("demo", answer(replace(STATE, unreadable=[other]), {})) == []


def test_keys_are_restored_and_a_damaged_list_of_drained_hosts_is_told() -> None:
    keys = UnreadableDocument("keys.json", DELETED, to_json(KeysDocument()))
    hosts = UnreadableDocument("drained.json", DELETED, to_json(DrainedHosts(["gpu2"])))
    state = replace(STATE, unreadable=[keys, hosts])
    seen = answer(state, {f"{ETC}/drained.json": b"{"})
    drained, restored = unreadable_in("demo", seen)
    assert (drained.file, drained.last_good, restored) == ("drained.json", "", keys)


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
    assert unreadable_in("demo", answer(state, {})) == []
    assert services_in("demo", answer(state, {})) == {}


@pytest.mark.parametrize("text", ["* * * * * root id", "[]", '{"name": "tiny"}', "null"])
def test_what_a_container_calls_a_document_must_be_one(text: str) -> None:
    state = replace(STATE, unreadable=[UnreadableDocument("services/tiny.json", DELETED, text)])
    assert unreadable_in("demo", answer(state, {})) == []
    assert services_in("demo", answer(state, {})) == {}
