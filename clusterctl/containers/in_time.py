"""A command on a channel that says nothing more, or does not end, told as an error of its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.errors import CommandTimedOut

ENGINE = "look at the engine there: journalctl -u docker -n 50"
DISK = "look at the disk there: dmesg | tail -n 30"


@contextmanager
def in_time(what: str, host: str, hint: str = ENGINE) -> Iterator[None]:
    """For the body's `recv` and `wait` of a Channel: raises CommandTimedOut where they raise
    TimeoutError. Their own limits hold."""
    try:
        yield
    except TimeoutError as error:
        words = str(error) or None
        raise CommandTimedOut(
            f"{what} came to a stop", host=host, hint=hint, detail=words
        ) from error
