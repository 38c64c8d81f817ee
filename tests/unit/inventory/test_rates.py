"""Rates as people write them: bits a second by the network, bytes by the disk."""

from __future__ import annotations

import pytest

from clusterctl.inventory.values import parse_rate


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400mbit", 50_000_000),
        ("1gbit", 125_000_000),
        ("2.5 Gbit/s", 312_500_000),
        ("50MB", 50_000_000),
        ("50 MiB/s", 50 * 2**20),
        ("8kbit", 1000),
    ],
)
def test_bytes_a_second(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0mbit", "-1gbit", "400bits", "1 qbit", "0.1"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate; write it as 400mbit"):
        parse_rate(text)
