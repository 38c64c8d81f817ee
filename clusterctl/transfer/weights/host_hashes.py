"""The hashes of files on a host, taken there, with a word on how far that is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from clusterctl import deadlines
from clusterctl.containers.driver import Say
from clusterctl.containers.in_time import DISK, in_time
from clusterctl.containers.meter import Meter
from clusterctl.errors import CommandFailed, ConnectionFailed
from clusterctl.transfer.weights.hashing import Hashed
from clusterctl.transport.base import Channel, Transport, lines

EVERY = 2.0  # Seconds between two words of the host


def hashes(
    transport: Transport,
    paths: Sequence[str],
    size: int,
    *,
    piece_size: int | None = None,
    say: Say = lambda _: None,
    every: float = EVERY,
    stalled: float = deadlines.HASHING_SILENCE,
) -> dict[str, Hashed]:
    """The hashes of files on the host, by path, those of their pieces too where `piece_size` is
    given. A file that cannot be read is left out. `size`: bytes of all of them, for `say`.

    Raises CommandTimedOut for a disk that gives nothing more, CommandFailed, ConnectionFailed.
    """
    if not paths:
        return {}
    host = transport.host.name
    meter = Meter(lambda text: say(f"{text} hashed"), size * (2 if piece_size else 1))
    argv = ("sh", "-c", _script(), "hash", str(piece_size or ""), f"{every:g}")
    with transport.open_channel(argv, sudo=True) as channel, in_time("hashing files", host, DISK):
        channel.settimeout(stalled)
        with contextlib.suppress(ConnectionFailed):  # what it says at its end tells more
            channel.send("".join(f"{path}\n" for path in paths).encode())
            channel.close_stdin()
        found = dict(_heard(channel, meter, stalled))
        _require_end(channel, host)
    return found


def sums(found: Mapping[str, Hashed]) -> dict[str, str]:
    """Only the sha256 of whole files, by path."""
    return {path: hashed.sha256 for path, hashed in found.items()}


def _heard(channel: Channel, meter: Meter, stalled: float) -> Iterator[tuple[str, Hashed]]:
    """Raises TimeoutError when the host talks and gets no further."""
    moved = time.monotonic()
    for line in lines(channel):
        match line.split("\t", 3):
            case ["hash", whole, pieces, path]:
                yield path, Hashed(whole, tuple(pieces.split()))
            case ["at", count]:
                now = time.monotonic()
                if int(count) == meter.bytes and now - moved > stalled:
                    raise TimeoutError(f"no byte was read for {stalled:.0f} s")
                moved = moved if int(count) == meter.bytes else now
                meter.reached(int(count))


def _require_end(channel: Channel, host: str) -> None:
    status = channel.wait(timeout=deadlines.STREAM_END)
    if status == -1:
        text, hint = "the connection was lost while files were hashed", "run the same command again"
        raise ConnectionFailed(text, host=host, hint=hint)
    if status != 0:
        said = channel.stderr_tail().strip()
        why = said.splitlines()[-1] if said else f"status {status}"
        raise CommandFailed(f"hashing files failed: {why}", host=host, detail=said or None)


def _script() -> str:
    return resources.files(__package__).joinpath("hash.sh").read_text(encoding="utf-8")
