"""Read a file over HTTP from any byte on; a broken connection is reopened and resumed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import httpx2

from clusterctl.containers.driver import Say
from clusterctl.errors import StepFailed

ATTEMPTS = 8  # Consecutive attempts without a byte; about two minutes with the pauses between them

LONGEST_PAUSE = 30.0

READ = 256 << 10  # Bytes at a time

# Sends a GET with these headers. Raises FetchFailed for what a retry may cure, and for network
# errors while the response is read.
Ask = Callable[[Mapping[str, str]], AbstractContextManager[httpx2.Response]]


class FetchFailed(StepFailed):
    """A server or the connection to it failed. `again`: seconds until a retry may help; None: it
    will not."""

    def __init__(self, summary: str, *, again: float | None = None, **more: str | None) -> None:
        super().__init__(summary, hint=more.get("hint"), detail=more.get("detail"))
        self.again = again


@dataclass(frozen=True)
class Retries:
    """Waits between attempts, and says so."""

    say: Say
    pause: Callable[[float], None] = time.sleep

    def wait_or_raise(self, error: FetchFailed, trouble: int, attempts: int = ATTEMPTS) -> None:
        """Wait before the next attempt. Raises `error` if it is permanent, or if `trouble`
        attempts have failed in a row and no more than `attempts` are worth it."""
        if error.again is None or trouble >= attempts:
            raise error
        seconds = max(error.again, min(2.0 ** (trouble - 1), LONGEST_PAUSE))
        self.say(f"{error.summary}: trying again in {seconds:.0f} s")
        self.pause(seconds)


def resumed(ask: Ask, what: str, size: int, offset: int, retries: Retries) -> Iterator[bytes]:
    """Yield the bytes from `offset` on of a file of `size` bytes, which messages call `what`.
    Raises FetchFailed after ATTEMPTS without a byte, and what `ask` raises."""
    trouble = 0
    while offset < size:
        begun = offset
        try:
            with ask({"Range": f"bytes={offset}-"} if offset else {}) as response:
                skip = max(0, offset - _start(response))
                for chunk in _batches(response):
                    piece = chunk[skip : skip + size - offset]
                    if piece:
                        offset += len(piece)
                        yield piece
                    if offset >= size:
                        return  # whatever the server adds to it
                    skip = max(0, skip - len(chunk))
            failure = FetchFailed(f"{what} ended too early", again=1.0)
        except FetchFailed as error:
            failure = error
        trouble = 1 if offset > begun else trouble + 1
        retries.wait_or_raise(failure, trouble)


def _batches(response: httpx2.Response) -> Iterator[bytes]:
    """Yield READ bytes or more at a time, and before an error what has arrived."""
    batch = bytearray()
    try:
        for chunk in response.iter_raw():
            batch += chunk
            if len(batch) >= READ:
                yield bytes(batch)
                batch.clear()
    except httpx2.TransportError:
        yield bytes(batch)
        raise
    yield bytes(batch)


def _start(response: httpx2.Response) -> int:
    """Return the offset of the first byte: servers may ignore the requested range."""
    if response.status_code == 200:
        return 0
    said = response.headers.get("Content-Range", "")
    first = said.removeprefix("bytes ").partition("-")[0]
    if not first.isdigit():
        raise FetchFailed(f"a range was requested, but the response has {said!r}")
    return int(first)
