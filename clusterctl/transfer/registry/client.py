"""Registry client: reads manifests and blobs, with tokens, and resumes broken downloads."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx2

from clusterctl import __version__
from clusterctl.containers.driver import Say
from clusterctl.containers.reference import Reference
from clusterctl.errors import MALFORMED
from clusterctl.transfer.content import Blob
from clusterctl.transfer.manifests import (
    INDEXES,
    LARGEST_DOCUMENT,
    MANIFESTS,
    NotAnImage,
    digest_of,
)
from clusterctl.transfer.registry.endpoint import RegistryEndpoint
from clusterctl.transfer.registry.failures import (
    MOST_WORDS,
    RegistryFailed,
    answered,
    leave_unread,
    refused,
    unreached,
)
from clusterctl.transfer.registry.logins import Login, Logins
from clusterctl.transport.http_answer import beginning

# Seconds without a byte after which a connection counts as broken.
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)

ATTEMPTS = 8  # Consecutive attempts without a byte; about two minutes with the pauses between them

FIRST_ATTEMPTS = 3  # For a manifest: a registry that is down is not worth a longer wait

LONGEST_PAUSE = 30.0

READ = 256 << 10  # Bytes of a blob at a time


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
        data, kind = self._document(f"manifests/{name}", accept)
        if name.startswith("sha256:") and digest_of(data) != name:
            raise NotAnImage(f"{self._reference.registry} sent bytes that do not match {name}")
        return data, kind

    def config(self, blob: Blob) -> bytes:
        return self._document(f"blobs/{blob.digest}", "*/*")[0]

    def blob(self, blob: Blob, offset: int = 0) -> Iterator[bytes]:
        """Yield the blob's bytes from `offset` on; a broken connection is reopened and resumed."""
        trouble = 0
        while offset < blob.size:
            begun = offset
            try:
                headers = {"Range": f"bytes={offset}-"} if offset else {}
                with self._answer(f"blobs/{blob.digest}", headers, (200, 206)) as response:
                    skip = max(0, offset - _start(response))
                    for chunk in response.iter_raw(READ):
                        piece = chunk[skip : skip + blob.size - offset]
                        if piece:
                            offset += len(piece)
                            yield piece
                        if offset >= blob.size:
                            return  # whatever the registry adds to it
                        skip = max(0, skip - len(chunk))
            except RegistryFailed as error:
                failure = error
            else:
                if offset >= blob.size:
                    return
                summary = f"{self._reference.registry} ended {blob.digest[:19]} too early"
                failure = RegistryFailed(summary, again=1.0)
            trouble = 1 if offset > begun else trouble + 1
            self._wait_or_raise(failure, trouble, ATTEMPTS)

    def _document(self, path: str, accept: str) -> tuple[bytes, str]:
        """Return a document and its media type."""
        trouble = 0
        while True:
            try:
                with self._answer(path, {"Accept": accept}, (200,)) as response:
                    data = b""
                    for chunk in response.iter_raw():
                        data += chunk
                        if len(data) > LARGEST_DOCUMENT:
                            raise NotAnImage(f"{path} is larger than a manifest or config may be")
                    return data, response.headers.get("Content-Type", "").partition(";")[0]
            except RegistryFailed as error:
                trouble += 1
                self._wait_or_raise(error, trouble, FIRST_ATTEMPTS)

    @contextmanager
    def _answer(
        self, path: str, headers: dict[str, str], good: tuple[int, ...]
    ) -> Iterator[httpx2.Response]:
        """Yield the response to an authorized GET, with a status in `good`. Raises RegistryFailed
        for network errors."""
        registry, name = self._reference.registry, self._reference.name
        try:
            url = f"{self._found()}/v2/{self._reference.path}/{path}"
            with self._authorization.sent(url, headers) as response:
                if response.status_code in (401, 403):
                    user = self._authorization.user
                    raise refused(registry, name, response.status_code, tried=user)
                if response.status_code not in good:
                    raise answered(registry, name, response)
                yield response
        except httpx2.TransportError as error:
            raise unreached(registry, error) from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RegistryFailed(
                f"{registry} did not respond like a container registry", detail=str(error)
            ) from error

    def _found(self) -> str:
        """Return the URL at which the registry answers, probed on first use."""
        with self._finding:
            if self._url is None:
                *maybe, url = self._endpoint.urls
                for each in maybe:
                    with (
                        suppress(httpx2.TransportError),
                        self._http.stream("GET", f"{each}/v2/", follow_redirects=False),
                    ):
                        url = each
                        break
                self._url = url
                self._authorization.plain = url.startswith("http:")
            return self._url

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


class Authorization:
    """Sends requests with credentials; after a 401, gets the credentials that the response demands
    and sends the request again.

    It tries a login from a file, or none, and then a login that the user enters.
    """

    def __init__(self, http: httpx2.Client, reference: Reference, logins: Logins) -> None:
        self._http, self._reference, self._logins = http, reference, logins
        self._lock = threading.Lock()
        self._header: str | None = None
        self._login: Login | None = None
        self._asked = False
        self.plain = False  # Whether the registry itself is reached without TLS

    @property
    def user(self) -> str | None:
        """The user name sent to the registry; None without a login."""
        return self._login.user if self._login else None

    @contextmanager
    def sent(self, url: str, headers: dict[str, str]) -> Iterator[httpx2.Response]:
        """Yield the response to GET `url`, which may still be a refusal."""
        response, used = self._send(url, headers)
        try:
            for again in (False, True):
                if response.status_code != 401 or not self._renewed(response, used, again=again):
                    break
                response.close()
                response, used = self._send(url, headers)
            yield response
        finally:
            response.close()

    def _send(self, url: str, headers: dict[str, str]) -> tuple[httpx2.Response, str | None]:
        used = self._header
        known = {"Authorization": used} if used else {}
        request = self._http.build_request("GET", url, headers={**headers, **known})
        return self._http.send(request, stream=True), used

    def _renewed(self, response: httpx2.Response, used: str | None, *, again: bool) -> bool:
        """Get the credentials that `response` demands; False if nothing is left to try. `again`:
        the current ones are new, and were refused."""
        challenge = parse_challenges(response.headers.get_list("WWW-Authenticate"))
        if challenge is None:
            return False
        registry = self._reference.registry
        with self._lock:
            if self._header != used:
                return True  # another thread has renewed it meanwhile
            if not again:
                self._login = self._login or self._logins.find(registry)
                if self._take(challenge):
                    return True
            if self._asked:  # the user, once per run
                return False
            self._asked = True
            given = self._logins.ask(registry)
            if given is None:
                return False
            self._login = given
            return self._take(challenge)

    def _take(self, challenge: Challenge) -> bool:
        """Set the header that `challenge` demands; False if the login is missing or refused."""
        if challenge.bearer:
            token = self._token(challenge)
            self._header = f"Bearer {token}" if token else None
        elif self._login:
            pair = f"{self._login.user}:{self._login.password}".encode()
            self._header = f"Basic {base64.b64encode(pair).decode()}"
        else:
            return False
        return self._header is not None

    def _token(self, challenge: Challenge) -> str | None:
        """Request a token from the realm; None if the realm refuses the login. Raises
        RegistryFailed if a login for a registry with TLS would be sent without TLS."""
        login, realm = self._login, httpx2.URL(challenge.realm)
        if login and realm.scheme != "https" and not self.plain:
            raise RegistryFailed(
                f"{self._reference.registry} asks for the password to be sent unencrypted to "
                f"{realm.host}",
                hint="ask the registry's operator: its realm must be https",
            )
        scope = challenge.scope or f"repository:{self._reference.path}:pull"
        fields = {"service": challenge.service, "scope": scope}
        if login and login.is_token:
            grant = {"grant_type": "refresh_token", "refresh_token": login.password}
            form = {**grant, **fields, "client_id": "clusterctl"}
            # A redirect would send the form, and with it the login, to any server.
            asked = self._http.stream("POST", challenge.realm, data=form, follow_redirects=False)
        else:
            pair = (login.user, login.password) if login else None
            asked = self._http.stream("GET", challenge.realm, params=fields, auth=pair)
        with asked as response:
            if response.status_code in (400, 401, 403):
                return None
            if response.status_code != 200:
                raise answered(self._reference.registry, self._reference.name, response)
            document = beginning(response, MOST_WORDS)
        try:
            said = json.loads(document)
            return str(said.get("token") or said["access_token"])
        except MALFORMED as error:
            raise RegistryFailed(f"{challenge.realm} returned no token") from error


_SCHEME = re.compile(r"(?:^|,\s*)(Bearer|Basic)\s", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Challenge:
    """A challenge in WWW-Authenticate. `realm`: for Bearer, the URL that issues tokens."""

    bearer: bool
    realm: str = ""
    service: str = ""
    scope: str = ""


def parse_challenges(headers: Iterable[str]) -> Challenge | None:
    """Return the best challenge in WWW-Authenticate: a token before a password; None if none is
    understood."""
    found = []
    for header in headers:
        starts = [match.start() for match in _SCHEME.finditer(header)]
        for start, end in zip(starts, [*starts, len(header)][1:], strict=True):
            text = header[start:end].lstrip(", ")
            said = {key.lower(): value for key, value in _PARAMETER.findall(text)}
            known = {key: said[key] for key in ("realm", "service", "scope") if key in said}
            found.append(Challenge(text.lower().startswith("bearer"), **known))
    return min(found, key=lambda one: not one.bearer, default=None)
