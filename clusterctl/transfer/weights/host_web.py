"""A host's way to the hubs: its own Python asks and downloads, this machine only steers.

The program (package `fetcher`) travels over the SSH session and ends with it. Credentials travel
the same way, on stdin: they are in no argv, environment or file there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import ClusterctlError, CommandTimedOut, StepFailed, raise_all
from clusterctl.transfer.chain_link import PIECE
from clusterctl.transfer.weights.hashing import Hashed
from clusterctl.transfer.weights.hub import Answer, HubFile, Refused
from clusterctl.transport import python
from clusterctl.transport.base import Channel, Transport, lines

PROGRAM = python.Program("clusterctl.transfer.weights.fetcher", ("http_get", "fetch"))

SILENCE = 60.0
"""Seconds without a word, of one each second, after which the host counts as gone."""


@dataclass
class _Told:
    """What the host has said so far."""

    found: dict[str, Hashed]
    errors: list[ClusterctlError]


class HostWeb:
    """See Web; and files straight onto the host's disk."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """See Web."""
        stdin = PROGRAM.sent() + _rows(headers, f"show\t{url}")
        result = self._transport.run(python.argv(), stdin=stdin, timeout=deadlines.LISTING)
        if not result.ok:
            raise _no_answer(result.last_lines(), result.status, self._transport.host.name)
        return _answer(result.stdout)

    def download(
        self,
        files: Sequence[HubFile],
        directory: str,
        headers: Mapping[str, str],
        *,
        explain: Callable[[Refused], ClusterctlError],
        told: Callable[[int], None],
    ) -> dict[str, Hashed]:
        """Get files below `directory`, which is root's; their hashes by path.

        `told` hears the bytes that are there. Raises the errors of all files together; what
        came is kept, and a further call goes on from there.
        """
        channel = self._transport.open_channel(python.argv(), sudo=True)
        with channel:
            channel.settimeout(SILENCE)
            channel.send(PROGRAM.sent())
            rows = [_file_row(file, directory) for file in files]
            channel.send(_rows(headers, *rows, f"go\t{PIECE}"))
            heard = _Told({}, [])
            by_path = {f"{directory}/{file.path}": file for file in files}
            for row in self._said(channel):
                _hear(heard, row.split("\t"), by_path, explain, told)
            raise_all({error.summary: error for error in heard.errors}.values())
            if len(heard.found) < len(files):
                status = _status(channel)
                raise _no_answer(channel.stderr_tail(), status, self._transport.host.name)
        return heard.found

    def _said(self, channel: Channel) -> Iterator[str]:
        try:
            yield from lines(channel)
        except TimeoutError:
            raise CommandTimedOut(
                f"nothing was heard of the download for {SILENCE:.0f} s",
                host=self._transport.host.name,
                hint="run the same command again: it goes on where it stopped",
            ) from None


def _file_row(file: HubFile, directory: str) -> str:
    path = f"{directory}/{file.path}"
    fields = (file.url, path, str(file.size), file.sha256 or "-", file.git_sha1 or "-")
    return "\t".join(("file", *fields))


def _rows(headers: Mapping[str, str], *rows: str) -> bytes:
    secret = [f"header\t{name}\t{value}" for name, value in headers.items()]
    return "".join(f"{row}\n" for row in (*secret, *rows)).encode()


def _hear(
    heard: _Told,
    row: Sequence[str],
    by_path: Mapping[str, HubFile],
    explain: Callable[[Refused], ClusterctlError],
    told: Callable[[int], None],
) -> None:
    match row:
        case ["have", count]:
            told(int(count))
        case ["done", path, whole, pieces] if path in by_path:
            heard.found[by_path[path].path] = Hashed(whole, tuple(pieces.split()))
        case ["refused", path, status, code, text] if path in by_path:
            headers = {"x-error-code": code, "x-error-message": text}
            answer = Answer(int(status), headers, b"")
            heard.errors.append(explain(Refused(by_path[path].url, answer)))
        case ["failed", path, text] if path in by_path:
            heard.errors.append(StepFailed(f"{by_path[path].path} did not arrive: {text}"))


def _answer(text: str) -> Answer:
    """What `fetch.show` wrote."""
    head, _, body = text.partition("\n\n")
    status, *named = head.split("\n")
    headers = {name: value for name, _, value in (line.partition(": ") for line in named)}
    return Answer(int(status), headers, body.encode())


def _status(channel: Channel) -> int | None:
    """None where it closed its output and goes on."""
    try:
        return channel.wait(5)
    except TimeoutError:
        return None


def _no_answer(said: str, status: int | None, host: str) -> ClusterctlError:
    if status == python.NOT_FOUND:
        return python.PythonMissing(host, said or None)
    last = said.strip().splitlines()
    return StepFailed(
        f"the hub did not answer: {last[-1]}" if last else "the hub did not answer",
        host=host,
        hint="has it a way out? The proxy variables of its environment are used",
        detail=said or None,
    )
