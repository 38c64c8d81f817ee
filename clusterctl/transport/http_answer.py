"""Read an HTTP response up to a limit: a server may send one that never ends."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx2


def beginning(answer: httpx2.Response, most: int, *, seconds: float = math.inf) -> bytes:
    """Return at most `most` bytes of the body, without waiting for the rest. Raises TimeoutError if
    bytes still arrive after `seconds`."""
    data, started = bytearray(), time.monotonic()
    for chunk in answer.iter_bytes():
        data += chunk
        if len(data) >= most:
            break
        if time.monotonic() - started > seconds:
            raise TimeoutError(f"the response did not end within {seconds:g} s")
    return bytes(data[:most])
