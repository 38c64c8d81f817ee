"""A relay process on a host, as the operator's machine sees it: frames over its channel."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError, ConnectionFailed, StepFailed
from clusterctl.transfer.chain_link import PIECE, Link
from clusterctl.transfer.content import Blob
from clusterctl.transfer.relay import frames
from clusterctl.transport import python
from clusterctl.transport.base import Channel

# Age in seconds at which an interrupted run's files in a cache are removed, not resumed.
LEFT_BEHIND = 7 * 24 * 3600

CLEAN_UP = 15.0  # Seconds for a relay to clean up after the command `end`


# The relay as it is sent to hosts.
PROGRAM = python.Program(
    "clusterctl.transfer.relay",
    (
        "frames",
        "wire",
        "stored",
        "parts",
        "upstream",
        "roster",
        "fetching",
        "holdings",
        "delivery",
        "serving",
        "main",
    ),
)


class RelayNotStarted(StepFailed):
    """The relay did not start on the host; `detail` has the error output of its Python."""


@dataclass(frozen=True)
class Ports:
    """Ports on which a relay listens."""

    engine: int  # On 127.0.0.1, for the host's own engine
    peer: int  # On the link's address, for the next relays


NO_PORTS = Ports(0, 0)


class EndedEarly(Exception):
    """A relay ended before it reported its ports."""


class RelayProcess:
    """A relay process, created by `start`; its `frames` must be read to the end."""

    def __init__(self, channel: Channel, host: str) -> None:
        self._channel = channel
        self._host = host
        self._sending = threading.Lock()
        self._pending = b""
        self._early: list[frames.Frame] = []

    def command(self, *rows: str) -> None:
        """Send commands: rows made by `frames.fields`. Raises ConnectionFailed."""
        self.send(frames.COMMAND, 0, frames.lines(rows))

    def send(self, kind: bytes, stream: int, payload: bytes) -> None:
        """Send a frame. Raises ConnectionFailed if the relay is gone."""
        with self._sending:
            self._channel.send(frames.pack(kind, stream, payload))

    def receive(self, timeout: float | None = None) -> frames.Frame | None:
        """Return the next frame; None at the end of the output. Raises TimeoutError."""
        self._channel.settimeout(timeout)
        header = self._exactly(frames.HEADER.size)
        if header is None:
            return None
        kind, stream, length = frames.HEADER.unpack(header)
        payload = self._exactly(length) if length <= frames.LARGEST else None
        return None if payload is None else (kind, stream, payload)

    def frames(self) -> Iterator[frames.Frame]:
        yield from self._early
        while frame := self.receive():
            yield frame

    def await_ports(self) -> Ports:
        """Wait for the ports; keep other frames for `frames`. Raises EndedEarly, TimeoutError."""
        while frame := self.receive(deadlines.RELAY_START):
            name, *values = frames.parse(frame[2])[0]
            if (frame[0], name) == (frames.EVENT, "ports"):
                return Ports(*map(int, values))
            self._early.append(frame)
        raise EndedEarly

    def last_words(self) -> str:
        return self._channel.stderr_tail().strip()

    def close(self) -> None:
        self._channel.close()

    def _exactly(self, size: int) -> bytes | None:
        while len(self._pending) < size:
            data = self._channel.recv(65536)
            if not data:
                return None
            self._pending += data
        found, self._pending = self._pending[:size], self._pending[size:]
        return found


def start(
    link: Link, rows: Sequence[str], token: str, stall: float, ports: Ports
) -> tuple[RelayProcess, Ports]:
    """Start the relay of `link`, on its previous `ports` if they are free. It serves no request
    until it has processed the commands in `rows`.

    Raises PythonMissing, RelayNotStarted, and what `Transport.open_channel` raises.
    """
    channel = link.transport.open_channel(python.argv(link.python), sudo=True)
    relay = RelayProcess(channel, link.host)
    try:
        channel.send(PROGRAM.sent())
        relay.command(
            *rows, frames.fields("start", token, stall, link.address, ports.engine, ports.peer)
        )
        return relay, relay.await_ports()
    except (ConnectionFailed, TimeoutError, EndedEarly):
        error = _not_started(link, channel)
        relay.close()
        raise error from None
    except BaseException:
        relay.close()
        raise


def _not_started(link: Link, channel: Channel) -> ClusterctlError:
    error = python.failure(channel, "starting the relay", link.host)
    if isinstance(error, python.PythonMissing):
        return error
    return RelayNotStarted(
        f"the relay did not start at {link.address}",
        host=link.host,
        hint=f"clusterctl exec --limit {link.host} -- ip -brief address",
        detail=error.detail,
    )


def holdings(link: Link, blobs: Mapping[str, Blob]) -> list[str]:
    """Return the commands that give a relay the path of every blob, present or to be written."""
    sweep = frames.fields("sweep", link.cache, LEFT_BEHIND)
    return [sweep, *(_holding(link, blob) for blob in blobs.values())]


def _holding(link: Link, blob: Blob) -> str:
    cached = f"{link.cache}/{blob.hex}"
    if blob.digest in link.origin:
        return frames.fields("origin", blob.hex, blob.size, link.origin[blob.digest], cached)
    place = link.places.get(blob.digest)
    if place is None:
        return frames.fields("blob", blob.hex, blob.size, cached)
    return frames.fields(
        "place", blob.hex, blob.size, place.path, f"{place.mode:o}", PIECE, *place.pieces
    )
