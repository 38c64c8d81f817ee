"""The timeline of `report`: journals of hosts in, events out, whatever a container wrote there."""

from __future__ import annotations

import json

import pytest

from clusterctl.commands.report import _journal_events


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
