"""Have a host send requests to a hub: its own Python does, with a program that is sent over the SSH
session and ends with it. Credentials are sent on its stdin, so they appear in no argv, environment
or file on the host."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping

import httpx2

from clusterctl import deadlines
from clusterctl.errors import StepFailed
from clusterctl.inventory.outside import NOTHING, Outside
from clusterctl.transfer.weights.hub import UNTRUSTED
from clusterctl.transport import python
from clusterctl.transport.base import Transport

PROGRAM = python.Program("clusterctl.transfer.relay", ("web",))

# Headers that authenticate the user. The others describe this machine's HTTP client.
CREDENTIALS = frozenset({"authorization", "cookie"})


class HostTransport(httpx2.BaseTransport):
    """Sends this machine's HTTP requests from a host, which follows redirects. Only if it is
    `entrusted` does it get the user's credentials."""

    def __init__(
        self,
        transport: Transport,
        outside: Outside = NOTHING,
        timeout: float = deadlines.LISTING,
        *,
        entrusted: bool = True,
    ) -> None:
        self._transport, self._outside, self._timeout = transport, outside, timeout
        self._entrusted = entrusted

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2. Raises StepFailed when the host gets no answer from the hub."""
        part = {name: value for name, value in request.headers.items() if name == "range"}
        said = python.ask(
            self._transport,
            PROGRAM,
            {
                "ca": self._outside.ca,
                "proxy": dict(self._outside.proxy),
                "url": str(request.url),
                "headers": {**part, **(credentials(request.headers) if self._entrusted else {})},
            },
            doing="asking the hub",
            timeout=self._timeout,
        )
        if "failed" in said:
            raise unreached(said["failed"], self._transport.host.name)
        # The body is already decoded and complete, so these headers no longer apply.
        framing = {"transfer-encoding", "content-length", "content-encoding"}
        kept = {name: value for name, value in said["headers"].items() if name not in framing}
        body = _Body(base64.b64decode(said["body"]))
        return httpx2.Response(said["status"], headers=kept, stream=body, request=request)


class _Body(httpx2.SyncByteStream):
    """A response's body that is read once, as from a network."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def __iter__(self) -> Iterator[bytes]:
        yield self._data


def unreached(text: str, host: str) -> StepFailed:
    """Return the error of a host that gets no answer from a hub."""
    hint = "does the host have internet access? Set a proxy with packages.proxy"
    return StepFailed(text, host=host, hint=UNTRUSTED if "certificate" in text else hint)


def credentials(headers: Mapping[str, str]) -> dict[str, str]:
    """Return those of `headers` that authenticate the user."""
    return {name: value for name, value in headers.items() if name.lower() in CREDENTIALS}
