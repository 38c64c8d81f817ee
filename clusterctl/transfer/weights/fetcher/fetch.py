"""Runs on a host: gets files over HTTP, several at once, resumed where they stopped, and proven.

Standard library only, and of it only what minimal Pythons have; Python 3.6 and later. It is told
what to do on stdin, a line each, fields parted by tabs; the headers may be secret and are seen
nowhere else:

    header NAME VALUE                for requests to the server of a URL, not where that redirects
    file URL PATH SIZE SHA256 GIT    one to get; the hashes may be `-`
    show URL                         one answer to show in full instead, on stdout
    go PIECE                         begin; PIECE bytes have a hash of their own

and tells on stdout: `have BYTES` once a second, `done PATH SHA256 PIECES`, `refused PATH STATUS
CODE MESSAGE`, `failed PATH TEXT`.
"""

import hashlib
import os
import sys
import threading
import time
from typing import BinaryIO, Callable, List, Tuple

from clusterctl.transfer.weights.fetcher.http_get import (
    READ,
    Answer,
    Failed,
    Headers,
    Url,
    follow,
)

TRIES = 5
PAUSE = 2.0
AT_ONCE = 4
MOST_WORDS = 64 << 10  # bytes shown of an answer that only explains itself
MOST_SHOWN = 64 << 20  # of any other


class Refusal(Exception):
    """The server does not give it; asking again gives no other answer."""

    def __init__(self, status: int, headers: Headers) -> None:
        super().__init__(f"status {status}")
        self.status, self.headers = status, headers


class File:
    """One file to get."""

    def __init__(self, url: str, path: str, size: str, sha256: str, git: str) -> None:
        self.url, self.path, self.size = url, path, int(size)
        self.sha256 = "" if sha256 == "-" else sha256
        self.git = "" if git == "-" else git
        self.have = 0

    @property
    def part(self) -> str:
        return self.path + ".part"


def begin_of(answer: Answer) -> int:
    """The first byte that is sent."""
    said = answer.headers.get("content-range", "")
    if answer.status != 206 or not said.startswith("bytes "):
        return 0
    return int(said[6:].partition("-")[0])


def attempt(file: File, headers: Headers, opened: BinaryIO) -> None:
    """From where it stopped to the end, or as far as it goes. Raises Failed, Refusal."""
    opened.seek(file.have)
    extra = {"Range": f"bytes={file.have}-"} if file.have else {}
    answer = follow(file.url, headers, extra)
    try:
        if answer.status not in (200, 206):
            if 400 <= answer.status < 500 and answer.status not in (408, 429):
                raise Refusal(answer.status, answer.headers)
            raise Failed(f"{Url(file.url).host} answered {answer.status}")
        if begin_of(answer) != file.have:
            file.have = 0
            opened.seek(0)
            opened.truncate()
        for piece in answer.body():
            opened.write(piece)
            file.have += len(piece)
            if file.have > file.size:
                raise Failed("it is longer than the hub says")
    except OSError as error:
        raise Failed(str(error))
    finally:
        opened.flush()
        answer.close()


def fill(file: File, headers: Headers, pause: Callable[[float], None] = time.sleep) -> None:
    """All its bytes into the part file and onto the disk, with growing pauses between attempts."""
    with open(file.part, "r+b" if os.path.exists(file.part) else "w+b") as opened:
        file.have = min(opened.seek(0, 2), file.size)
        failures = 0
        while file.have < file.size:
            before = file.have
            try:
                attempt(file, headers, opened)
            except Failed:
                failures = failures + 1 if file.have <= before else 1
                if failures >= TRIES:
                    raise
                pause(PAUSE * 2 ** (failures - 1))
        # Now, while it is said how far all is: one sync at the end may take minutes.
        os.fsync(opened.fileno())


def hashes(path: str, size: int, piece: int) -> Tuple[str, str, List[str]]:
    """sha256, git's sha1, and the sha256 of every `piece` bytes."""
    whole, part, pieces = hashlib.sha256(), hashlib.sha256(), []
    git = hashlib.sha1(b"blob %d\0" % size)  # noqa: S324  (git's own name of a blob)
    filled = 0
    with open(path, "rb", buffering=0) as opened:
        while True:
            data = opened.read(min(READ, piece - filled))
            if not data:
                break
            for digest in (whole, part, git):
                digest.update(data)
            filled += len(data)
            if filled == piece:
                pieces.append(part.hexdigest())
                part, filled = hashlib.sha256(), 0
    if filled:
        pieces.append(part.hexdigest())
    return whole.hexdigest(), git.hexdigest(), pieces


def bring(file: File, headers: Headers, piece: int) -> Tuple[str, List[str]]:
    """Have the file whole and right; its sha256 and those of its pieces."""
    os.makedirs(os.path.dirname(file.path), exist_ok=True)
    there = os.path.exists(file.path) and os.path.getsize(file.path) == file.size
    if there:
        os.rename(file.path, file.part)
    for _ in range(2):
        fill(file, headers)
        whole, git, pieces = hashes(file.part, file.size, piece)
        if file.sha256 in ("", whole) and (file.sha256 or file.git in ("", git)):
            os.rename(file.part, file.path)
            return whole, pieces
        os.unlink(file.part)
        file.have = 0
    raise Failed("it arrived twice with other bytes than the hub promises")


class Crew:
    """Threads that take one file after the other."""

    def __init__(self, files: List[File], headers: Headers, piece: int) -> None:
        self._waiting, self._headers, self._piece = list(files), headers, piece
        self._lock = threading.Lock()

    def labour(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    return
                file = self._waiting.pop(0)
            self._one(file)

    def _one(self, file: File) -> None:
        try:
            whole, pieces = bring(file, self._headers, self._piece)
            self.tell("done", file.path, whole, " ".join(pieces))
        except Refusal as refusal:
            code = refusal.headers.get("x-error-code", "-")
            text = refusal.headers.get("x-error-message", "-")
            self.tell("refused", file.path, str(refusal.status), code, text)
        except (Failed, OSError, ValueError) as error:
            self.tell("failed", file.path, str(error))

    def tell(self, *fields: str) -> None:
        with self._lock:
            print("\t".join(field.replace("\t", " ").replace("\n", " ") for field in fields))
            sys.stdout.flush()


def run(files: List[File], headers: Headers, piece: int) -> None:
    """Get all; tells how far it is until the end."""
    crew = Crew(files, headers, piece)
    threads = [threading.Thread(target=crew.labour) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.daemon = True
        thread.start()
    while True:
        for thread in threads:
            thread.join(1.0 / AT_ONCE)
        crew.tell("have", str(sum(file.have for file in files)))
        if not any(thread.is_alive() for thread in threads):
            return


def show(url: str, headers: Headers) -> None:
    """One answer as it is: status, headers, an empty line, the body. Raises Failed."""
    answer = follow(url, headers, {})
    out = sys.stdout.buffer
    out.write(b"%d\n" % answer.status)
    for name, value in answer.headers.items():
        out.write((f"{name}: {value}\n").encode("latin-1"))
    out.write(b"\n")
    left = MOST_SHOWN if answer.status == 200 else MOST_WORDS
    for piece in answer.body():
        out.write(piece[:left])
        left -= len(piece)
        if left < 0 and answer.status == 200:
            raise Failed(f"{Url(url).host} answers without end, and with no list of files")
        if left <= 0:
            break
    out.flush()


def main(_: None) -> None:
    """Read what to do, and do it. Ends with the SSH session, as stdout does."""
    headers: Headers = {}
    files: List[File] = []
    for line in iter(sys.stdin.readline, ""):
        word, _, rest = line.rstrip("\n").partition("\t")
        fields = rest.split("\t")
        if word == "header":
            headers[fields[0]] = fields[1]
        elif word == "file":
            files.append(File(*fields))
        elif word == "show":
            try:
                show(rest, headers)
            except Failed as error:
                sys.exit(str(error))
            return
        elif word == "go":
            run(files, headers, int(rest))
            return
