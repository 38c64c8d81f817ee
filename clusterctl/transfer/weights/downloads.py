"""Have a host ask a hub, or download a model from it.

The host's own Python runs `host_fetch`, which is sent over the SSH session and ends with it.
Credentials are sent on its stdin, so they appear in no argv, environment or file on the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import httpx2

from clusterctl import deadlines
from clusterctl.errors import (
    MALFORMED,
    ClusterctlError,
    CommandTimedOut,
    StepFailed,
    raise_all,
)
from clusterctl.inventory.outside import NOTHING, Outside
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.weights.hashing import Hashed
from clusterctl.transfer.weights.hub import (
    UNTRUSTED,
    Hub,
    Listing,
    refusal_of_file,
)
from clusterctl.transport import python
from clusterctl.transport.base import Transport, lines

PROGRAM = python.Program(
    "clusterctl.transfer.weights", ("clusterctl.transfer.reaching", "host_hash", "host_fetch")
)

# Seconds without a report, where one per second is due, after which the host counts as gone.
SILENCE = 60.0

# Headers that authenticate the user. The others describe this machine's HTTP client.
CREDENTIALS = frozenset({"authorization", "cookie"})


class HostTransport(httpx2.BaseTransport):
    """Sends this machine's HTTP requests from a host, which follows redirects."""

    def __init__(
        self,
        transport: Transport,
        outside: Outside = NOTHING,
        timeout: float = deadlines.LISTING,
    ) -> None:
        self._transport, self._outside, self._timeout = transport, outside, timeout

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """See httpx2. Raises StepFailed when the host gets no answer from the hub."""
        said = python.ask(
            self._transport,
            PROGRAM,
            {
                "ca": self._outside.ca,
                "proxy": dict(self._outside.proxy),
                "url": str(request.url),
                "headers": _credentials(request.headers),
            },
            doing="asking the hub",
            timeout=self._timeout,
        )
        if "failed" in said:
            raise StepFailed(
                said["failed"],
                host=self._transport.host.name,
                hint=UNTRUSTED
                if "certificate" in said["failed"]
                else "does the host have internet access? Set a proxy with packages.proxy",
            )
        # The body is already decoded and complete, so these headers no longer apply.
        framing = {"transfer-encoding", "content-length", "content-encoding"}
        kept = {name: value for name, value in said["headers"].items() if name not in framing}
        return httpx2.Response(said["status"], headers=kept, text=said["body"], request=request)


def download_on_host(
    transport: Transport,
    hub: Hub,
    listing: Listing,
    directory: str,
    *,
    told: Callable[[int], None],
    outside: Outside = NOTHING,
) -> dict[str, Hashed]:
    """Have the host download all files of `listing` below `directory` (owned by root). Return their
    hashes by path.

    `told` is called with the bytes present. `outside`: how the host reaches the hub. Raises the
    errors of all files together; what arrived is kept, and the next call resumes from it.
    """
    by_path = {file.path: file for file in listing.files}
    asked = {
        "ca": outside.ca,
        "proxy": dict(outside.proxy),
        "headers": _credentials(hub.headers),
        "piece": PIECE,
        "directory": directory,
        "files": [[f.url, f.path, f.size, f.sha256, f.git_sha1] for f in listing.files],
    }
    found: dict[str, Hashed] = {}
    errors: dict[str, ClusterctlError] = {}
    with python.start(transport, PROGRAM, asked, sudo=True) as channel:
        channel.settimeout(SILENCE)
        try:
            for line in lines(channel):
                said = json.loads(line)
                if "have" in said:
                    told(said["have"])
                elif "done" in said:
                    found[by_path[said["done"]].path] = Hashed(
                        said["sha256"], tuple(said["pieces"])
                    )
                elif "refused" in said:
                    named = {"x-error-code": said["code"], "x-error-message": said["message"]}
                    url = by_path[said["refused"]].url
                    error = refusal_of_file(hub, listing, url, said["status"], named)
                    errors[error.summary] = error
                elif "failed" in said:
                    text = f"{by_path[said['failed']].path} did not arrive: {said['text']}"
                    errors[text] = StepFailed(text, host=transport.host.name)
        except TimeoutError:
            raise CommandTimedOut(
                f"the download reported nothing for {SILENCE:.0f} s",
                host=transport.host.name,
                hint="run the same command again: it resumes where it stopped",
            ) from None
        except MALFORMED as error:
            raise StepFailed(
                "the download's report cannot be read", host=transport.host.name, detail=repr(error)
            ) from error
        raise_all(errors.values())
        if len(found) < len(listing.files):
            raise python.failure(channel, "the download", transport.host.name)
    return found


def _credentials(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() in CREDENTIALS}
