"""The relay of a host that reads blobs from a hub. Standard library only."""

import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, Iterator

from clusterctl.transfer.relay import wire
from clusterctl.transfer.relay.main import Relay, run
from clusterctl.transfer.relay.upstream import HUB, READ, Upstream, UpstreamFailed, UpstreamStats
from clusterctl.transfer.relay.web import NETWORK, TIMEOUT, failure, opener

# A hub has failed after TRIES failures without a byte between, over TRYING seconds or more.
TRIES = 5
TRYING = 120.0  # A hub that limits requests may want a pause of minutes


class Hub(Upstream):
    """A hub with the files at `urls`, by digest. `say` tells the controller what it does not
    serve."""

    def __init__(
        self,
        stats: UpstreamStats,
        say: Callable[..., None],
        through: urllib.request.OpenerDirector,
        headers: Dict[str, str],
        urls: Dict[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(HUB, stats)
        self._say, self._opener, self._headers, self._urls = say, through, headers, urls
        self._failures, self._since, self._clock = 0, 0.0, clock

    def pieces(self, digest: str, start: int, size: int, _tick: float) -> Iterator[Any]:
        """See Upstream; but the hub may be silent for TIMEOUT, since http.client cannot be read
        again after a timeout."""
        url, headers = self._urls[digest], {**self._headers, "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310  (http or https)
        try:
            with self._opener.open(request, timeout=TIMEOUT) as answer:
                yield from self._body(answer, start, size)
        except urllib.error.HTTPError as error:
            error.close()  # It is an open response
            lasting = 400 <= error.code < 500 and error.code not in (408, 429)
            said = {name.lower(): value for name, value in error.headers.items()}
            raise self._failed(
                digest, f"HTTP status {error.code}", lasting, status=error.code, headers=said
            ) from error
        except NETWORK as error:
            lasting = isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError)
            raise self._failed(digest, failure(url, error), lasting) from error

    def _body(self, answer: Any, start: int, size: int) -> Iterator[Any]:
        said = answer.headers.get("Content-Range", "")
        skip = 0 if answer.status == 206 and said.startswith(f"bytes {start}-") else start
        while size:
            data = answer.read1(READ)
            if not data:
                raise ConnectionError("the connection ended early")
            piece, skip = data[skip : skip + size], max(0, skip - len(data))
            size -= len(piece)
            self._failures = 0
            yield piece or wire.STILL_THERE

    def _failed(self, digest: str, text: str, lasting: bool, **answer: object) -> UpstreamFailed:
        now = self._clock()
        self._since = self._since if self._failures else now
        self._failures += 1
        if lasting or (self._failures >= TRIES and now - self._since >= TRYING):
            self._say("unserved", digest, json.dumps({"text": text, **answer}))
        return UpstreamFailed(text)


class HubRelay(Relay):
    """A relay that also has the upstream HUB."""

    def _on_hub(self, ca: str, proxy: str, headers: str, urls: str) -> None:
        """Set the hub to read from. `proxy`, `headers` and `urls`, by digest, in JSON."""
        through = opener(ca, json.loads(proxy))
        self._last[HUB] = Hub(
            self._stats_of(HUB), self.say, through, json.loads(headers), json.loads(urls)
        )


def main(_: None) -> None:
    """Run the relay until stdin ends."""
    run(HubRelay)
