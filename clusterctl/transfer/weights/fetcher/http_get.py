"""As much of an HTTP client as hubs need, for Pythons that have none.

Debian's python3-minimal has no http and no urllib, and a host need not have more. Credentials go
to the first server alone, not to where it redirects; the environment's proxies are used.
"""

import base64
import os
import socket
import ssl
from typing import BinaryIO, Dict, Iterator, Optional

READ = 1 << 20
TIMEOUT = 30.0
MOST_REDIRECTS = 10
MOST_HEAD = 64 * 1024

Headers = Dict[str, str]


class Failed(Exception):
    """It did not work; the text says why, and it may work later."""


class Url:
    """The parts of an address."""

    def __init__(self, text: str) -> None:
        self.scheme, _, rest = text.partition("://")
        where, slash, path = rest.partition("/")
        self.authority = where.rpartition("@")[2]
        self.login = where.rpartition("@")[0]
        self.path = slash + path or "/"
        host, colon, port = self.authority.rpartition(":")
        named = colon and port.isdigit()
        self.host = (host if named else self.authority).strip("[]")
        self.port = int(port) if named else (443 if self.scheme == "https" else 80)

    def joined(self, location: str) -> str:
        """Where a redirect from here leads."""
        if "://" in location:
            return location
        if location.startswith("//"):
            return f"{self.scheme}:{location}"
        return f"{self.scheme}://{self.authority}{location}"

    def same_server(self, other: "Url") -> bool:
        return (self.scheme, self.host, self.port) == (other.scheme, other.host, other.port)


class Answer:
    """The head of an answer, and its body as it comes."""

    def __init__(self, reader: BinaryIO, connection: socket.socket) -> None:
        self._reader, self._connection = reader, connection
        first = self._line().split(" ", 2)
        if len(first) < 2 or not first[1].isdigit():
            raise Failed("it did not answer as a web server does")
        self.status = int(first[1])
        self.headers: Headers = {}
        while True:
            line = self._line()
            if not line:
                break
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()

    def body(self) -> Iterator[bytes]:
        """Its pieces. Raises Failed when it ends early."""
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return self._chunks()
        length = self.headers.get("content-length")
        return self._exactly(int(length)) if length else self._all()

    def close(self) -> None:
        self._reader.close()
        self._connection.close()

    def _line(self) -> str:
        line = self._reader.readline(MOST_HEAD)
        if not line:
            raise Failed("the connection ended early")
        return line.decode("latin-1").rstrip("\r\n")

    def _exactly(self, count: int) -> Iterator[bytes]:
        while count:
            piece = self._reader.read1(min(READ, count))  # type: ignore[attr-defined]
            if not piece:
                raise Failed("the connection ended early")
            count -= len(piece)
            yield piece

    def _chunks(self) -> Iterator[bytes]:
        while True:
            size = int(self._line().partition(";")[0] or "0", 16)
            if not size:
                return
            yield from self._exactly(size)
            self._line()

    def _all(self) -> Iterator[bytes]:
        while True:
            piece = self._reader.read1(READ)  # type: ignore[attr-defined]
            if not piece:
                return
            yield piece


def proxy_for(url: Url, environment: Dict[str, str]) -> Optional[Url]:
    """The proxy that the environment names for `url`, as curl and others read it."""
    exempt = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    for name in (part.strip().lstrip(".") for part in exempt.split(",")):
        if name == "*" or (name and (url.host == name or url.host.endswith("." + name))):
            return None
    key = f"{url.scheme}_proxy"
    value = environment.get(key) or environment.get(key.upper()) or environment.get("ALL_PROXY")
    if not value:
        return None
    return Url(value if "://" in value else "http://" + value)


def ask(url: Url, headers: Headers) -> Answer:
    """Send a GET. Raises Failed."""
    try:
        return _asked(url, headers, proxy_for(url, dict(os.environ)))
    except ssl.SSLError as error:
        raise Failed(f"{url.host}: no trusted TLS (is ca-certificates installed?): {error}")
    except (OSError, ValueError) as error:
        raise Failed(f"{url.host} cannot be reached: {error}")


def _asked(url: Url, headers: Headers, proxy: Optional[Url]) -> Answer:
    to = proxy or url
    connection = socket.create_connection((to.host, to.port), timeout=TIMEOUT)
    connection.settimeout(TIMEOUT)
    login: Headers = {}
    if proxy and proxy.login:
        secret = base64.b64encode(proxy.login.encode()).decode()
        login = {"Proxy-Authorization": "Basic " + secret}
    if url.scheme == "https":
        if proxy:
            _tunnel(connection, url, login)
        connection = ssl.create_default_context().wrap_socket(connection, server_hostname=url.host)
        login = {}
    whole = f"{url.scheme}://{url.authority}{url.path}"
    path = whole if proxy and url.scheme == "http" else url.path
    _send(connection, "GET", path, dict(headers, Host=url.authority, **login))
    return Answer(connection.makefile("rb"), connection)


def _tunnel(connection: socket.socket, url: Url, login: Headers) -> None:
    where = f"{url.host}:{url.port}"
    _send(connection, "CONNECT", where, dict(login, Host=where))
    answer = Answer(connection.makefile("rb", buffering=0), connection)  # type: ignore[arg-type]
    if answer.status != 200:
        raise Failed(f"the proxy answered {answer.status}")


def _send(connection: socket.socket, method: str, path: str, headers: Headers) -> None:
    lines = [f"{method} {path} HTTP/1.1", "User-Agent: clusterctl", "Accept: */*"]
    lines += ["Accept-Encoding: identity", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def follow(text: str, headers: Headers, extra: Headers) -> Answer:
    """The answer where the redirects end; `headers` go to the first server alone."""
    first = url = Url(text)
    for _ in range(MOST_REDIRECTS):
        own = headers if url.same_server(first) else {}
        answer = ask(url, dict(extra, **own))
        location = answer.headers.get("location")
        if answer.status not in (301, 302, 303, 307, 308) or not location:
            return answer
        answer.close()
        url = Url(url.joined(location))
    raise Failed(f"{first.host} redirects without end")
