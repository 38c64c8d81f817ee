"""HTTP to model hubs: one client for huggingface_hub's requests and for our own.

huggingface_hub sends all requests through one client, created by `_client` here, so that they and
ModelScope's have the same limits, the same proxies (httpx2 reads the environment's) and, for
`model pull --on HOST`, the same route through that host.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx2
import huggingface_hub
from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError

from clusterctl import __version__, deadlines
from clusterctl.errors import StepFailed
from clusterctl.transfer.registry.failures import leave_unread
from clusterctl.transfer.weights.hub import Hub

# Bytes of a listing: 3000 files of ModelScope, or all of a Hugging Face repository, are some MB.
LARGEST_LISTING = 64 << 20

# Bytes read of an error response, of which one sentence is shown.
LARGEST_REFUSAL = 64 << 10

# Marks requests (httpx2's `extensions`) for files, whose length is not limited.
FILE = {"clusterctl-file": True}

NO_ROUTE = (
    "does this machine have internet access? HTTPS_PROXY is honored, HF_ENDPOINT names a mirror; "
    "or let a host that has it download: clusterctl model pull ... --on HOST"
)

# It logs URLs, and those of the Hub's storage are signed: anyone who has one can download.
logging.getLogger("huggingface_hub").propagate = False
logging.getLogger("huggingface_hub").addHandler(logging.NullHandler())

# Its telemetry includes a request of its own to huggingface.co before the first one that is asked
# of it (utils/_detect_agent.py in 2.4), also if HF_ENDPOINT was not set when it was imported.
constants.HF_HUB_DISABLE_TELEMETRY = True


@contextmanager
def hub_session(through: httpx2.BaseTransport | None = None) -> Iterator[None]:
    """Send requests to hubs from this machine, or `through` a host, until the end of the block."""
    huggingface_hub.set_client_factory(partial(_client, through))
    try:
        yield
    finally:
        huggingface_hub.set_client_factory(_client)


def _client(through: httpx2.BaseTransport | None = None) -> httpx2.Client:
    # httpx2 drops credentials on a redirect to another server, such as the Hub's redirects to
    # its storage.
    return httpx2.Client(
        transport=through,
        follow_redirects=True,
        timeout=deadlines.WEB,
        headers={"User-Agent": f"clusterctl/{__version__}"},
        event_hooks={"response": [_limit]},
    )


def _limit(answer: httpx2.Response) -> None:
    """Bound the bytes read of a response: a server, or a proxy, may send one that never ends."""
    leave_unread(answer)
    if not isinstance(answer.stream, httpx2.SyncByteStream) or answer.has_redirect_location:
        return
    if not answer.is_success:
        answer.stream = _Beginning(answer.stream, LARGEST_REFUSAL)
    elif not answer.request.extensions.keys() & FILE.keys():
        answer.stream = _Bounded(answer.stream, LARGEST_LISTING, answer.request.url.host)


class _Beginning(httpx2.SyncByteStream):
    """The first `most` bytes of a response."""

    def __init__(self, stream: httpx2.SyncByteStream, most: int) -> None:
        self._stream, self._most = stream, most

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for piece in self._stream:
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return

    def close(self) -> None:
        self._stream.close()


class _Bounded(_Beginning):
    """A response of at most `most` bytes. Raises StepFailed when it is longer."""

    def __init__(self, stream: httpx2.SyncByteStream, most: int, server: str) -> None:
        super().__init__(stream, most)
        self._server = server

    def __iter__(self) -> Iterator[bytes]:
        left = self._most
        for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise StepFailed(
                    f"{self._server} sent more than {self._most >> 20} MiB, "
                    "too much for a list of a model's files",
                    hint="check HF_ENDPOINT and MODELSCOPE_ENDPOINT",
                )
            yield piece


@contextmanager
def hub_errors(hub: Hub, model_id: str, revision: str) -> Iterator[None]:
    """Convert errors of a request to `hub` into errors with a hint."""
    try:
        yield
    except HfHubHTTPError as error:
        raise hub.refusal(error.response, model_id, revision) from error
    except httpx2.InvalidURL as error:
        raise StepFailed(
            f"{hub.endpoint} is not a valid address: {error}",
            hint="check HF_ENDPOINT and MODELSCOPE_ENDPOINT",
        ) from error
    except httpx2.HTTPError as error:
        timed_out = isinstance(error, httpx2.TimeoutException)
        server = error.request.url.netloc.decode()
        text = "did not respond in time" if timed_out else f"cannot be reached: {error}"
        raise StepFailed(f"{server} {text}", hint=NO_ROUTE, detail=repr(error)) from error
