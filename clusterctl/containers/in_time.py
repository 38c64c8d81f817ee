"""Convert the timeout of a hanging command to an error that names its host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from clusterctl.errors import CommandTimedOut

ENGINE = "check the engine on the host: journalctl -u docker -n 50"
DISK = "check the disk of the host: dmesg | tail -n 30"


@contextmanager
def in_time(what: str, host: str, hint: str = ENGINE) -> Iterator[None]:
    """Raise CommandTimedOut if a Channel's `recv` or `wait` raises TimeoutError in the block."""
    try:
        yield
    except TimeoutError as error:
        words = str(error) or None
        raise CommandTimedOut(f"{what} hangs", host=host, hint=hint, detail=words) from error
