"""Turns a registry's error responses and network failures into errors with a fix."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx2

from clusterctl.containers.reference import DOCKER_HUB
from clusterctl.errors import RequirementsNotMet, StepFailed
from clusterctl.transport.http_answer import beginning

ELSEWHERE = (
    "on a machine that reaches it: clusterctl image bundle IMAGE -o image.tar; "
    "here: clusterctl image push --from image.tar"
)

MOST_WORDS = 64 << 10  # Bytes to read of the body of an error response


class RegistryFailed(StepFailed):
    """The registry or the connection to it failed. `again`: seconds until a retry may help; None:
    it will not."""

    def __init__(self, summary: str, *, again: float | None = None, **more: str | None) -> None:
        super().__init__(summary, hint=more.get("hint"), detail=more.get("detail"))
        self.again = again


class NoSuchImage(RegistryFailed):
    """The registry answered that it has no such name or tag."""


def refused(registry: str, reference: str, status: int, *, tried: str | None) -> RequirementsNotMet:
    """Return the error for 401 or 403. `tried`: the user name that was sent."""
    command = "docker login" if registry == DOCKER_HUB else f"docker login {registry}"
    if tried:
        return RequirementsNotMet(
            f"{registry} refuses {reference} to the user {tried} (HTTP {status})",
            hint=f"log in as a user who may read it: {command}",
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
            hint="check name and tag; each of a registry's images has its own tags",
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


def _seconds_to_wait(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Return seconds from Retry-After (seconds, a date, or Docker Hub's Unix time),
    RateLimit-Reset, or the window of RateLimit-Limit (`100;w=21600`); None without them."""
    now = time.time() if now is None else now
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
            hint="see HTTPS_PROXY and NO_PROXY: env | grep -i proxy",
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
