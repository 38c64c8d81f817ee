"""A program on a host that downloads files from a hub, resumed and verified, or sends it a single
request.

Python 3.9, standard library only. The argument of `main`, sent on stdin since the headers are
secret, has CA certificates in PEM as "ca" and a proxy's variables as "proxy" (both may be empty),
and is one of

    {"headers": {...}, "url": URL}
        one request, answered as {"status", "headers", "body"} or {"failed": TEXT}
    {"headers": {...}, "piece": BYTES, "directory": PATH,
     "files": [[URL, PATH, SIZE, SHA256, GIT_SHA1], ...]}
        files to download below the directory; hashes may be empty, and every `piece` bytes are
        hashed separately

Downloads print lines of JSON: {"have": BYTES} once a second, and for every file {"done": PATH,
"sha256", "pieces"}, {"refused": PATH, "status", "code", "message"} or {"failed": PATH, "text"}.
"""

import hashlib
import json
import os
import queue
import socket
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, BinaryIO, Optional
from urllib.parse import urlsplit

from clusterctl.transfer.weights.host_hash import hash_file

READ = 1 << 20
TIMEOUT = 30.0
TRIES = 5  # attempts in a row without a new byte
PAUSE = 2.0  # seconds before the second attempt; then twice as long each time
AT_ONCE = 4
LARGEST_LISTING = 8 << 20
LARGEST_REFUSAL = 64 << 10


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, without credentials if the target is a different server."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):  # type: ignore[no-untyped-def]
        # 308 is 307 for a GET, and unknown to urllib before Python 3.11.
        new = super().redirect_request(req, fp, 307 if code == 308 else code, msg, headers, newurl)
        if new is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            new.headers.pop("Authorization", None)
            new.headers.pop("Cookie", None)
        return new

    def http_error_302(self, req, fp, code, msg, headers):  # type: ignore[no-untyped-def]
        fp.close()  # urllib would read the whole body, which may never end
        return super().http_error_302(req, fp, code, msg, headers)

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


# Errors of a request; any other OSError comes from the disk. Before Python 3.10 socket.timeout is
# not a TimeoutError.
NETWORK = (
    urllib.error.URLError,
    HTTPException,
    ssl.SSLError,
    socket.timeout,
    TimeoutError,
    ConnectionError,
)


TRUST = ssl.create_default_context()
OPENER = urllib.request.build_opener(
    urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=TRUST), Redirects()
)


def reach(ca: str, proxy: dict[str, str]) -> None:
    """Trust `ca` besides this host's CAs; use `proxy`, whose variables replace this host's."""
    if ca:
        TRUST.load_verify_locations(cadata=ca)
    os.environ.update(proxy)
    # urllib knows no ALL_PROXY, which curl and this machine's HTTP client use.
    proxies = urllib.request.getproxies()
    if "all" in proxies:
        proxies = {"http": proxies["all"], "https": proxies["all"], **proxies}
    OPENER.add_handler(urllib.request.ProxyHandler(proxies))


class FetchFault(Exception):
    """The file did not arrive; the message says why."""


def reason_of(error: Exception) -> str:
    """Return in a few words why a request failed."""
    return str(getattr(error, "reason", None) or error) or type(error).__name__


def show(url: str, headers: dict[str, str]) -> dict[str, Any]:
    """Send one request and return the response, after following redirects."""
    try:
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310  (http or https)
            answer: Any = OPENER.open(request, timeout=TIMEOUT)
            most = LARGEST_LISTING
        except urllib.error.HTTPError as error:
            answer, most = error, LARGEST_REFUSAL
        with answer:
            body = answer.read(most + 1)
    except (OSError, HTTPException, ValueError) as error:
        return {"failed": f"{urlsplit(url).netloc} cannot be reached: {reason_of(error)}"}
    if answer.status == 200 and len(body) > most:
        text = f"sent more than {most >> 20} MiB, too much for a list of a model's files"
        return {"failed": f"{urlsplit(url).netloc} {text}"}
    named = {name.lower(): value for name, value in answer.headers.items()}
    return {"status": answer.status, "headers": named, "body": body[:most].decode(errors="replace")}


class File:
    """One file to download."""

    def __init__(self, url: str, path: str, size: int, sha256: str, git_sha1: str) -> None:
        self.url, self.path, self.size = url, path, size
        self.sha256, self.git_sha1 = sha256, git_sha1
        self.have = 0  # bytes that can be read from its part file

    def fetch(self, headers: dict[str, str], piece: int) -> tuple[str, list[str]]:
        """Download the file, verify it, and return its SHA-256 and those of its pieces."""
        part = self.path + ".part"
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        if os.path.exists(self.path):
            os.rename(self.path, part)  # of an earlier run; verified below
        for _ in range(2):
            with open(part, "r+b" if os.path.exists(part) else "w+b") as opened:
                self.fill(opened, headers)
                # Per file: one sync at the end would report no progress for minutes.
                os.fsync(opened.fileno())
            # Git's name of a blob, which the hub publishes of small files.
            git = hashlib.sha1(b"blob %d\0" % self.size)  # noqa: S324
            whole, pieces = hash_file(part, piece, lambda _: None, git)
            named = self.sha256 or self.git_sha1 in ("", git.hexdigest())
            if self.sha256 in ("", whole) and named:
                os.rename(part, self.path)
                return whole, pieces
            self.have = 0
            os.unlink(part)
        raise FetchFault("it arrived twice with a hash other than the hub's")

    def fill(self, opened: BinaryIO, headers: dict[str, str]) -> None:
        """Download all missing bytes. Raises HTTPError if the server would refuse them again,
        FetchFault, and OSError of the disk."""
        self.have = opened.seek(0, 2)
        if self.have > self.size:  # of another version: a file without a hash would pass
            self.have = opened.truncate(0)
        failures = 0
        while self.have < self.size:
            before, text = self.have, "the connection ended early"
            try:
                self.attempt(opened, headers)
            except urllib.error.HTTPError as error:
                error.close()  # It is an open response
                if 400 <= error.code < 500 and error.code not in (408, 429):
                    raise
                text = f"{urlsplit(self.url).netloc} responded with status {error.code}"
            except NETWORK as error:
                text = f"{urlsplit(self.url).netloc} cannot be reached: {reason_of(error)}"
                if isinstance(getattr(error, "reason", None), ssl.SSLCertVerificationError):
                    raise FetchFault(text) from error
            if self.have > self.size:
                raise FetchFault("it is longer than the hub lists")
            if self.have < self.size:
                failures = failures + 1 if self.have <= before else 1
                if failures >= TRIES:
                    raise FetchFault(text)
                time.sleep(PAUSE * 2 ** (failures - 1))

    def attempt(self, opened: BinaryIO, headers: dict[str, str]) -> None:
        """Append the bytes that one request returns."""
        asked = dict(headers, **{"Accept-Encoding": "identity"})
        if self.have:
            asked["Range"] = f"bytes={self.have}-"
        request = urllib.request.Request(self.url, headers=asked)  # noqa: S310  (http or https)
        with OPENER.open(request, timeout=TIMEOUT) as answer:
            begins = answer.headers.get("Content-Range", "").startswith(f"bytes {self.have}-")
            if not (answer.status == 206 and begins):
                self.have = 0  # the server ignores ranges and sends the whole file
            opened.seek(self.have)
            opened.truncate()
            while self.have <= self.size:
                data = answer.read1(READ)
                if not data:
                    return
                opened.write(data)
                opened.flush()
                self.have += len(data)


def download(files: list[File], headers: dict[str, str], piece: int) -> None:
    """Download all files, AT_ONCE at a time, and print the progress until all have ended."""
    waiting: queue.SimpleQueue[File] = queue.SimpleQueue()
    for file in files:
        waiting.put(file)
    printing = threading.Lock()

    def tell(**fields: object) -> None:
        with printing:
            print(json.dumps(fields), flush=True)

    def work() -> None:
        while True:
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                whole, pieces = file.fetch(headers, piece)
                tell(done=file.path, sha256=whole, pieces=pieces)
            except urllib.error.HTTPError as error:
                named = error.headers
                code, message = named.get("X-Error-Code"), named.get("X-Error-Message")
                tell(refused=file.path, status=error.code, code=code, message=message)
            except Exception as error:  # of any kind: the other files continue
                tell(failed=file.path, text=reason_of(error))

    # Daemons: once stdout is closed, printing fails in this thread and ends them all.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    running = True
    while running:
        for thread in threads:
            thread.join(1.0 / AT_ONCE)
        running = any(thread.is_alive() for thread in threads)
        tell(have=sum(file.have for file in files))


def enter(directory: str) -> None:
    """Make `directory` the current one, as enter.sh does, so that later paths are relative to it.
    Its parent must be ours, so that no other user can replace it with a link."""
    around, name = os.path.split(directory)
    at = os.open(around, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    os.fchdir(at)
    new = ".owner.%d" % os.getpid()
    os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    ours = os.stat(new, follow_symlinks=False).st_uid
    os.unlink(new)
    if os.fstat(at).st_uid != ours:
        raise OSError("%s belongs to another user: remove it" % around)
    if not os.path.lexists(name):
        os.mkdir(name, 0o755)
    os.fchdir(os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))


def main(argument: Optional[dict[str, Any]]) -> None:
    """Run the request or the downloads of `argument`: see the module's docstring."""
    if not argument:
        return
    reach(argument["ca"], argument["proxy"])
    if "url" in argument:
        print(json.dumps(show(argument["url"], argument["headers"])))
    else:
        files = [File(*fields) for fields in argument["files"]]
        try:
            enter(argument["directory"])
        except OSError as error:
            sys.exit("%s cannot be written to: %s" % (argument["directory"], error))
        download(files, argument["headers"], argument["piece"])
