"""Registry client: reads manifests and blobs with tokens, resumes broken downloads, and turns
failures into errors with a fix."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx2

from clusterctl import __version__
from clusterctl.containers.driver import Say
from clusterctl.containers.reference import DOCKER_HUB, Reference
from clusterctl.errors import MALFORMED, RequirementsNotMet, StepFailed
from clusterctl.transfer.content import (
    INDEXES,
    LARGEST_DOCUMENT,
    MANIFESTS,
    Blob,
    NotAnImage,
    digest_of,
)
from clusterctl.transfer.registry.endpoint import RegistryEndpoint
from clusterctl.transfer.registry.logins import Login, Logins
from clusterctl.transfer.resuming import FetchFailed, Retries, resumed
from clusterctl.transport.http_answer import beginning

# Seconds without a byte after which a connection counts as broken.
TIMEOUT = httpx2.Timeout(30.0, connect=10.0)

FIRST_ATTEMPTS = 3  # For a manifest: a registry that is down is not worth a longer wait


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
        self._retries = Retries(say, pause)
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

        def ask(headers: Mapping[str, str]) -> AbstractContextManager[httpx2.Response]:
            return self._answer(f"blobs/{blob.digest}", headers, (200, 206))

        what = f"{blob.digest[:19]} of {self._reference.registry}"
        return resumed(ask, what, blob.size, offset, self._retries)

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
                self._retries.wait_or_raise(error, trouble, FIRST_ATTEMPTS)

    @contextmanager
    def _answer(
        self, path: str, headers: Mapping[str, str], good: tuple[int, ...]
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


class Authorization:
    """Sends requests with credentials; after a 401, gets the credentials that the response demands
    and sends the request again.

    It tries a login from a file, or none, then one that the user enters.
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
    def sent(self, url: str, headers: Mapping[str, str]) -> Iterator[httpx2.Response]:
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

    def _send(self, url: str, headers: Mapping[str, str]) -> tuple[httpx2.Response, str | None]:
        used = self._header
        known = {"Authorization": used} if used else {}
        request = self._http.build_request("GET", url, headers={**headers, **known})
        return self._http.send(request, stream=True), used

    def _renewed(self, response: httpx2.Response, used: str | None, *, again: bool) -> bool:
        """Get the credentials that `response` demands; False if nothing is left to try. `again`:
        the current ones are new but were refused."""
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


ELSEWHERE = (
    "on a machine that reaches it: clusterctl image bundle IMAGE -o image.tar; "
    "here: clusterctl image push --from image.tar"
)

MOST_WORDS = 64 << 10  # Bytes to read of the body of an error response


class RegistryFailed(FetchFailed):
    """The registry or the connection to it failed."""


class NoSuchImage(RegistryFailed):
    """The registry answered that it has no such name or tag."""


def refused(registry: str, reference: str, status: int, *, tried: str | None) -> RequirementsNotMet:
    """Return the error for 401 or 403. `tried`: the user name that was sent."""
    command = "docker login" if registry == DOCKER_HUB else f"docker login {registry}"
    if tried:
        return RequirementsNotMet(
            f"{registry} refuses user {tried} access to {reference} (HTTP {status})",
            hint=f"log in as a user with access: {command}",
        )
    return RequirementsNotMet(
        f"{registry} asks for a login for {reference}, or has no such image (HTTP {status})",
        hint=f"check the name; log in with `{command}` (or podman login), and run this again",
    )


def answered(registry: str, reference: str, response: httpx2.Response) -> StepFailed:
    """Return the error for a response whose status is neither a success nor 401 or 403."""
    status = response.status_code
    words = beginning(response, MOST_WORDS).decode(errors="replace")[:1000]
    if status == 404:
        return NoSuchImage(
            f"{reference} does not exist: {registry} knows no such name or tag",
            hint="check the name and the tag: every image has its own tags",
            detail=words or None,
        )
    if status == 429:
        wait = _seconds_to_wait(response.headers)
        when = ""
        if wait:
            when = f"; retry in {wait:.0f} s" if wait < 120 else f"; retry in {wait / 60:.0f} min"
        command = "docker login" if registry == DOCKER_HUB else f"docker login {registry}"
        return RegistryFailed(
            f"{registry} refuses more pulls for now (rate limit){when}",
            again=wait if wait and wait <= 60 else None,
            hint=f"wait, or log in for a higher limit: {command}",
            detail=words or None,
        )
    again = 1.0 if status >= 500 else None
    return RegistryFailed(f"{registry} answers HTTP {status}", again=again, detail=words or None)


def _seconds_to_wait(headers: Mapping[str, str]) -> float | None:
    """Return seconds from Retry-After (seconds, a date, or Docker Hub's Unix time),
    RateLimit-Reset, or the window of RateLimit-Limit (`100;w=21600`); None without them."""
    now = time.time()
    for name in ("retry-after", "x-retry-after", "ratelimit-reset", "x-ratelimit-reset"):
        said = headers.get(name, "")
        if said.isdigit():
            return float(said) if int(said) < 10**8 else max(float(said) - now, 1.0)
        if said:
            try:
                return max(parsedate_to_datetime(said).timestamp() - now, 1.0)
            except ValueError:
                continue
    window = re.search(r"w=(\d+)", headers.get("ratelimit-limit", ""))
    return float(window[1]) if window else None


def unreached(registry: str, error: httpx2.TransportError) -> RegistryFailed:
    """Return the error for a registry that did not answer. `again` is None if TLS, a proxy or an
    unknown name is the cause: a retry would not help."""
    words = str(error) or type(error).__name__
    lowered = words.lower()
    if "certificate" in lowered:
        return RegistryFailed(
            f"the certificate of {registry} is not trusted here",
            hint="name its CA in the inventory: packages.ca; or, for commands without inventory, "
            f"put it into /etc/docker/certs.d/{registry}/ca.crt",
            detail=words,
        )
    if "ssl" in lowered or "tls" in lowered:
        return RegistryFailed(
            f"the TLS handshake with {registry} failed",
            hint=f'if it does not use TLS: {{"insecure-registries": ["{registry}"]}} in '
            "/etc/docker/daemon.json",
            detail=words,
        )
    if isinstance(error, httpx2.ProxyError):
        return RegistryFailed(
            f"the proxy refuses connections to {registry}",
            hint="check HTTPS_PROXY and NO_PROXY: env | grep -i proxy",
            detail=words,
        )
    again: float | None = 1.0
    if "name or service" in lowered or "name resolution" in lowered or "nodename" in lowered:
        summary = f"the name of {registry} does not resolve on this machine (DNS)"
        again = 1.0 if "temporary" in lowered else None
    elif "unreachable" in lowered or "no route" in lowered:
        summary = f"this machine has no route to {registry}"
    elif "refused" in lowered:
        summary = f"{registry} refuses connections"
    elif isinstance(error, httpx2.TimeoutException):
        summary = f"{registry} does not answer"
    else:
        summary = f"the connection to {registry} broke"
    return RegistryFailed(summary, again=again, hint=ELSEWHERE, detail=words)


def leave_unread(answer: httpx2.Response) -> None:
    """Empty the body of a redirect, which httpx2 would read before following it. For use as a
    client's response hook."""
    if answer.has_redirect_location and isinstance(answer.stream, httpx2.SyncByteStream):
        answer.stream.close()
        answer.stream = httpx2.ByteStream(b"")
