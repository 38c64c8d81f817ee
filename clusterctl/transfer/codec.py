"""Whether plain layers are compressed before they travel. Pure.

What is compressed already always travels as it is: to unpack and pack it again would change its
digest, and take longer than it saves.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

# Mbit/s from which plain layers are there before they would be compressed: level 1 packs some 60 to
# 100 MB/s on a core, and a link of that speed takes 60 MB/s.
FAST_LINK = 500.0

# First major version of Docker whose overlay2 unpacks zstd layers (moby, pkg/archive).
ZSTD_SINCE = 23


class Codec(StrEnum):
    """How plain layers travel."""

    PLAIN = "plain"
    GZIP = "gzip"
    ZSTD = "zstd"


def choose_codec(link: float | None, engines: Iterable[str], *, zstd_at_hand: bool) -> Codec:
    """For the slowest link of the way, in Mbit/s (None where nobody knows), and the versions
    of all hosts' engines (20.10.24+dfsg1)."""
    if link is None or link >= FAST_LINK:
        return Codec.PLAIN
    if zstd_at_hand and all(major(version) >= ZSTD_SINCE for version in engines):
        return Codec.ZSTD
    return Codec.GZIP


def major(version: str) -> int:
    """Of an engine; 0 for what is no version: such an engine gets what all understand."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0
