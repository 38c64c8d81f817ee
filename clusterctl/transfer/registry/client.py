"""Registry client: reads manifests and blobs, with tokens, and resumes broken downloads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import httpx2

from clusterctl import __version__
from clusterctl.containers.driver import Say
from clusterctl.containers.reference import Reference
from clusterctl.transfer.content import Blob
from clusterctl.transfer.manifests import (
    INDEXES,
    LARGEST_DOCUMENT,
    MANIFESTS,
    NotAnImage,
    digest_of,
)
from clusterctl.transfer.registry.authorization import Authorization
from clusterctl.transfer.registry.endpoint import RegistryEndpoint
from clusterctl.transfer.registry.failures import (
    RegistryFailed,
    answered,
    leave_unread,
    refused,
    unreached,
)
from clusterctl.transfer.registry.logins import Logins

# Seconds without a byte after which a connection counts as broken.
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)

ATTEMPTS = 8  # Consecutive attempts without a byte; about two minutes with the pauses between them

FIRST_ATTEMPTS = 3  # For a manifest: a registry that is down is not worth a longer wait

LONGEST_PAUSE = 30.0

T = TypeVar("T")


class RegistryClient:
    """Client for one repository of one registry. Thread-safe.

    Methods raise RequirementsNotMet (login), RegistryFailed.
    """

    def __init__(
        self,
        reference: Reference,
        endpoint: RegistryEndpoint,
        logins: Logins,
        *,
        say: Say,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._reference, self._endpoint = reference, endpoint
        self._say, self._pause = say, pause
        self._http = httpx2.Client(
            verify=endpoint.trust(),
            trust_env=not endpoint.loopback,  # no proxies for loopback
            timeout=TIMEOUT,
            # One connection per response: images are never closed, and blobs are large.
            limits=httpx2.Limits(max_keepalive_connections=0),
            follow_redirects=True,  # Authorization is dropped on another host
            event_hooks={"response": [leave_unread]},
            headers={"User-Agent": f"clusterctl/{__version__}", "Accept-Encoding": "identity"},
        )
        self._authorization = Authorization(self._http, reference, logins)
        self._url: str | None = None
        self._finding = threading.Lock()

    def manifest(self, name: str) -> tuple[bytes, str]:
        """Return a manifest or index, by tag or digest, and its media type."""
        accept = ", ".join((*INDEXES, *MANIFESTS))
        data, kind = self._persistently(lambda: self._document(f"manifests/{name}", accept))
        if name.startswith("sha256:") and digest_of(data) != name:
            raise NotAnImage(f"{self._reference.registry} sent bytes that do not match {name}")
        return data, kind

    def config(self, blob: Blob) -> bytes:
        return self._persistently(lambda: self._document(f"blobs/{blob.digest}", "*/*"))[0]

    def blob(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the blob's bytes from `offset` on; a broken connection is reopened and resumed."""
        trouble = 0
        while offset < blob.size:
            begun = offset
            try:
                for chunk in self._part(blob, offset):
                    offset += len(chunk)
                    yield chunk
                self._require_all(blob, offset)
            except RegistryFailed as error:
                trouble = 1 if offset > begun else trouble + 1
                self._wait_or_raise(error, trouble, ATTEMPTS)

    def _require_all(self, blob: Blob, count: int) -> None:
        if count < blob.size:
            summary = f"{self._reference.registry} ended {blob.digest[:19]} too early"
            raise RegistryFailed(summary, again=1.0)

    def _document(self, path: str, accept: str) -> tuple[bytes, str]:
        with self._answer(path, {"Accept": accept}) as response:
            if response.status_code != 200:
                raise self._problem(response)
            data = b""
            for chunk in response.iter_raw():
                data += chunk
                if len(data) > LARGEST_DOCUMENT:
                    raise NotAnImage(f"{path} is larger than a manifest or config may be")
            return data, response.headers.get("Content-Type", "").partition(";")[0]

    def _part(self, blob: Blob, offset: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        with self._answer(f"blobs/{blob.digest}", headers) as response:
            if response.status_code not in (200, 206):
                raise self._problem(response)
            skip = offset - _start(response)
            for chunk in response.iter_raw():
                if skip < len(chunk):
                    yield chunk[skip:]
                skip = max(0, skip - len(chunk))

    @contextmanager
    def _answer(self, path: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        """Yield the response to an authorized GET. Raises RegistryFailed for network errors."""
        try:
            url = f"{self._found()}/v2/{self._reference.path}/{path}"
            with self._authorization.sent(url, headers) as response:
                yield response
        except httpx2.TransportError as error:
            raise unreached(self._reference.registry, error) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RegistryFailed(
                f"{self._reference.registry} did not respond like a container registry",
                detail=str(error),
            ) from error

    def _found(self) -> str:
        """Return the URL at which the registry answers, probed on first use."""
        with self._finding:
            if self._url is None:
                *maybe, last = self._endpoint.urls
                self._url = next(filter(self._answers, maybe), last)
                self._authorization.plain = self._url.startswith("http:")
            return self._url

    def _answers(self, url: str) -> bool:
        try:
            with self._http.stream("GET", f"{url}/v2/", follow_redirects=False):
                return True
        except httpx2.TransportError:
            return False

    def _problem(self, response: httpx2.Response) -> Exception:
        registry, name = self._reference.registry, self._reference.name
        if response.status_code in (401, 403):
            return refused(registry, name, response.status_code, tried=self._authorization.user)
        return answered(registry, name, response)

    def _persistently(self, work: Callable[[], T]) -> T:
        trouble = 0
        while True:
            try:
                return work()
            except RegistryFailed as error:
                trouble += 1
                self._wait_or_raise(error, trouble, FIRST_ATTEMPTS)

    def _wait_or_raise(self, error: RegistryFailed, trouble: int, attempts: int) -> None:
        if error.again is None or trouble >= attempts:
            raise error
        seconds = max(error.again, min(2.0 ** (trouble - 1), LONGEST_PAUSE))
        self._say(f"{error.summary}: trying again in {seconds:.0f} s")
        self._pause(seconds)


def _start(response: httpx2.Response) -> int:
    """Return the offset of the first byte: registries may send all when a range was requested."""
    if response.status_code == 200:
        return 0
    said = response.headers.get("Content-Range", "")
    first = said.removeprefix("bytes ").partition("-")[0]
    if not first.isdigit():
        raise RegistryFailed(f"a range was requested, but the response is of {said!r}")
    return int(first)
