"""Authorization for a registry: tokens and passwords, as the registry demands them."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import httpx2

from clusterctl.containers.reference import Reference
from clusterctl.transfer.registry.failures import RegistryFailed, answered, beginning
from clusterctl.transfer.registry.logins import Login, Logins

_CLIENT = "clusterctl"


class Authorization:
    """Sends requests, and repeats one answered with 401 with the credentials that are demanded.

    First with a login from a file, or anonymously; then with one that the user enters.
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
        with self._lock:
            if self._header != used:
                return True  # another thread has renewed it meanwhile
            if again:
                return self._ask_a_person(challenge)
            self._login = self._login or self._logins.find(self._reference.registry)
            return self._take(challenge) or self._ask_a_person(challenge)

    def _ask_a_person(self, challenge: Challenge) -> bool:
        """Ask the user for a login, once per run; return whether there is one to try."""
        if self._asked:
            return False
        self._asked = True
        given = self._logins.ask(self._reference.registry)
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
        """Request a token from the realm; None if the realm refuses the login."""
        self._insist_on_tls(challenge)
        with self._ask_realm(challenge) as response:
            if response.status_code in (400, 401, 403):
                return None
            if response.status_code != 200:
                raise answered(self._reference.registry, self._reference.name, response)
            document = beginning(response)
        try:
            said = json.loads(document)
            return str(said.get("token") or said["access_token"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RegistryFailed(f"{challenge.realm} gave no token") from error

    def _ask_realm(self, challenge: Challenge) -> AbstractContextManager[httpx2.Response]:
        scope = challenge.scope or f"repository:{self._reference.path}:pull"
        fields = {"service": challenge.service, "scope": scope}
        if self._login and self._login.is_token:
            grant = {"grant_type": "refresh_token", "refresh_token": self._login.password}
            form = {**grant, **fields, "client_id": _CLIENT}
            # A redirect would send the form, and with it the login, to any server.
            return self._http.stream("POST", challenge.realm, data=form, follow_redirects=False)
        login = (self._login.user, self._login.password) if self._login else None
        return self._http.stream("GET", challenge.realm, params=fields, auth=login)

    def _insist_on_tls(self, challenge: Challenge) -> None:
        """Raise RegistryFailed if a login for a registry with TLS would be sent without TLS."""
        realm = httpx2.URL(challenge.realm)
        if realm.scheme == "https" or not self._login or self.plain:
            return
        raise RegistryFailed(
            f"{self._reference.registry} asks for the password to be sent unencrypted to "
            f"{realm.host}",
            hint="ask the registry's operator: its realm must be https",
        )


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
            found.append(_one(header[start:end].lstrip(", ")))
    found.sort(key=lambda one: not one.bearer)
    return found[0] if found else None


def _one(text: str) -> Challenge:
    said = {key.lower(): value for key, value in _PARAMETER.findall(text)}
    return Challenge(
        text.lower().startswith("bearer"),
        said.get("realm", ""),
        said.get("service", ""),
        said.get("scope", ""),
    )
