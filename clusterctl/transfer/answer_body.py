"""What an HTTP answer says, as far as it is read: a server, or a proxy before it, may never end."""

from __future__ import annotations

import httpx

MOST_WORDS = 64 << 10  # Bytes that are read of an answer which only explains itself


def beginning(answer: httpx.Response, most: int = MOST_WORDS) -> bytes:
    """The body's first bytes, `most` at the utmost; the rest is not waited for."""
    data = bytearray()
    for chunk in answer.iter_bytes():
        data += chunk
        if len(data) >= most:
            break
    return bytes(data[:most])


def leave_unread(answer: httpx.Response) -> None:
    """Make the body of a redirect an empty one: httpx reads all of it before it goes on. For
    the hook of a client that is called with every answer."""
    if answer.has_redirect_location and isinstance(answer.stream, httpx.SyncByteStream):
        answer.stream.close()
        answer.stream = httpx.ByteStream(b"")
