"""What relays and the control side say to each other, as bytes."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.transfer.relay import wire

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(rows=st.lists(st.lists(TEXT, min_size=1), min_size=1))
def test_lines_of_fields_arrive_as_they_were(rows: list[list[str]]) -> None:
    assert wire.parse(wire.lines(wire.fields(*row) for row in rows)) == rows


@given(content=st.binary(min_size=1))
def test_any_bytes_travel_in_a_field(content: bytes) -> None:
    row = wire.fields("image", content.decode("utf-8", "surrogateescape"))

    (found,) = wire.parse(wire.lines([row]))
    assert found[1].encode("utf-8", "surrogateescape") == content


def test_frames_are_read_one_after_the_other() -> None:
    stream = io.BytesIO(wire.pack(b"D", 7, b"abc") + wire.pack(b"E", 7) + b"D\0")

    assert wire.read(stream) == (b"D", 7, b"abc")
    assert wire.read(stream) == (b"E", 7, b"")
    assert wire.read(stream) is None


def test_something_else_on_the_wire_is_no_frame() -> None:
    with pytest.raises(wire.NotAFrame):
        wire.read(io.BytesIO(b"Welcome to this host!"))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", None),
        ("bytes=0-", (0, 100)),
        ("bytes=10-19", (10, 20)),
        ("bytes=90-1000", (90, 100)),
        ("bytes=-10", (90, 100)),
        ("bytes=-1000", (0, 100)),
        ("bytes=-", None),
        ("bytes=1-2,5-6", None),
        ("pages=1-2", None),
    ],
)
def test_ranges(header: str, expected: tuple[int, int] | None) -> None:
    assert wire.range_of(header, 100) == expected


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=5-4", "bytes=-0"])
def test_ranges_outside_of_a_blob(header: str) -> None:
    with pytest.raises(wire.Unsatisfiable):
        wire.range_of(header, 100)


@given(noise=st.binary(max_size=200))
def test_noise_has_no_status(noise: bytes) -> None:
    assert wire.status_of(noise) == 0 or noise.startswith(b"HTTP/1.")
