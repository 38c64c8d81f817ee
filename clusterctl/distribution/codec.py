"""Whether layers are compressed before they travel. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class Codec(StrEnum):
    """How plain layers travel; compressed ones always travel as they are."""

    PLAIN = "plain"
    GZIP = "gzip"
    ZSTD = "zstd"


def choose_codec(link: float | None, engines: Iterable[str], *, zstd_at_hand: bool) -> Codec:
    """For the slowest link of the way, in Mbit/s (None where nobody knows), and the versions
    of all hosts' engines."""
    raise NotImplementedError(link, engines, zstd_at_hand)
