"""Parse versions of vLLM."""

from __future__ import annotations

import re

# Major, minor, patch. Suffixes (post1, +cpu, rc2) are ignored.
Version = tuple[int, int, int]

_NUMBERS = re.compile(r"^v?(\d+)\.(\d+)(?:\.(\d+))?")


def parse_version(text: str) -> Version | None:
    """Parse `0.33.0`, `v0.8.5.post1`, `0.32.0+cpu`, or an image with such a tag.

    Returns None without a version number: `latest`, `nightly`, a digest, an empty string.
    """
    tag = text.partition("@")[0].rpartition(":")[2] if "/" in text or ":" in text else text
    match = _NUMBERS.match(tag)
    if match is None:
        return None
    major, minor, patch = match.groups(default="0")
    return int(major), int(minor), int(patch)


def show_version(version: Version) -> str:
    return ".".join(str(number) for number in version)
