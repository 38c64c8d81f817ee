"""Bounds what is read of an HTTP response: a server may send one that never ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


def beginning(answer: httpx2.Response, most: int) -> bytes:
    """Return at most `most` bytes of the body, without waiting for the rest."""
    data = bytearray()
    for chunk in answer.iter_bytes():
        data += chunk
        if len(data) >= most:
            break
    return bytes(data[:most])
