"""The document of `report`: what hosts answered in, with the page made of it; journals in, events
out, whatever a container wrote there."""

from __future__ import annotations

import json
from typing import cast

import pytest

from clusterctl.commands.report import _hosts, _journal_events, _memory, _pairs
from clusterctl.facts.model import HostFacts
from clusterctl.reporting import page
from clusterctl.survey.status import assess
from clusterctl.transport.base import Transport
from tests.fakes.surveys import Said, survey_of
from tests.unit.survey.test_cluster_status import INVENTORY, facts, healthy

__all__ = ["facts"]


def line(**changes: object) -> bytes:
    entry = {"time": 5.0, "host": "gpu9", "subject": "chat", "event": "stalled", "text": "no token"}
    return json.dumps({**entry, **changes}).encode() + b"\n"


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("stalled", "fault"),
        ("backing-off", "fault"),
        ("ready", "recovered"),
        ("up", "recovered"),
        ("loading", "phase"),
    ],
)
def test_the_word_of_an_entry_says_what_it_is(word: str, kind: str) -> None:
    (event,) = _journal_events("gpu1", line(event=word))
    # The host is the one that was asked, whatever the entry says.
    assert event == {
        "time": 5.0,
        "host": "gpu1",
        "subject": "chat",
        "kind": kind,
        "text": f"{word} no token",
    }


def test_damaged_entries_are_left_out_and_long_ones_cut() -> None:
    broken = [b"", b"{", b"[]", b"{}", b'{"time": "x"}', b"\xff\xfe", line(time=float("inf"))]
    # A browser has no date that far away, and would draw nothing more.
    broken += [line(time=1e300), line(time=-5.0), line(time=float("nan"))]
    data = b"\n".join((*broken, line(text="x" * 10_000)))
    (event,) = _journal_events("gpu1", data)
    assert len(event["text"]) == 500
    assert list(_journal_events("gpu1", None)) == []


def test_a_host_without_an_answer_is_on_the_page_with_the_reason(
    facts: HostFacts,
) -> None:
    answers = {**healthy(facts), "gpu2": Said(problem="timed out <b>")}
    nobody = cast("Transport", object())  # With one host there is no pair to ask
    survey = survey_of(INVENTORY, answers, {"gpu1": nobody, "gpu2": nobody})
    status = assess(survey)
    document = {
        "cluster": "demo",
        "time": 1e9,
        "healthy": status.healthy,
        "problems": [*status.problems],
        "versions": {"Ray": "", "vLLM": "0.33.0"},
        "image": INVENTORY.image,
        "hosts": _hosts(survey, status),
        **_pairs(survey, bandwidth=False),
    }
    assert [host["ray"] for host in document["hosts"]] == ["up", "no answer"]
    assert document["pairs"] == []
    drawn = page.page(document)
    assert '<p class="problem">gpu2: timed out &lt;b&gt;</p>' in drawn
    assert "<td>1 expected</td>" in drawn
    assert f" · degraded · vLLM 0.33.0 · {INVENTORY.image}</p>" in drawn


def test_a_document_that_is_no_service_has_no_forecast(facts: HostFacts) -> None:
    survey = survey_of(INVENTORY, healthy(facts))
    assert [replica.document.argv for replica in survey.replicas.values()] == [[]]
    assert _memory(survey) == []
