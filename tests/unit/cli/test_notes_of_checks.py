"""Notes of `check` that several hosts share."""

from __future__ import annotations

from clusterctl.cli.check import _once


def test_what_several_hosts_share_is_said_once() -> None:
    notes = ["a: no clock", "the tag has moved", "b: no clock", "b: slow disk", "x: no host's"]
    assert _once(notes, {"a", "b"}) == [
        "a, b: no clock", "the tag has moved", "b: slow disk", "x: no host's",
    ]  # fmt: skip
