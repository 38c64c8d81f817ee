"""HTTP to model hubs from this machine. The proxy variables of the environment are honoured."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import httpx

from clusterctl import __version__, deadlines
from clusterctl.errors import StepFailed
from clusterctl.transfer.answer_body import beginning, leave_unread
from clusterctl.transfer.weights.hub import Answer, Refused
from clusterctl.transport.closing import Closing

LARGEST_LISTING = 64 << 20
"""Bytes; 3000 files of ModelScope, or a page of 1000 of Hugging Face, are some MB."""

_RANGE = re.compile(r"bytes (\d+)-")


class OperatorWeb(Closing):
    """This machine's way to the hubs. httpx takes credentials off when a redirect leads to
    another server, as those of the hubs to their storage do."""

    def __init__(self, timeout: float = deadlines.WEB) -> None:
        self._client = httpx.Client(
            follow_redirects=True,
            event_hooks={"response": [leave_unread]},
            timeout=timeout,
            headers={"User-Agent": f"clusterctl/{__version__}"},
        )

    def close(self) -> None:
        self._client.close()

    def get(self, url: str, headers: Mapping[str, str]) -> Answer:
        """See Web."""
        with _told(url), self._client.stream("GET", url, headers=dict(headers)) as answer:
            return _answer(answer, _document(url, answer))

    def stream(self, url: str, headers: Mapping[str, str], offset: int) -> Iterator[bytes]:
        """The file's bytes from `offset` on, or from its beginning when the server takes no
        ranges: the first piece says which, being empty in the latter case.

        Raises Refused for an answer that is no file, StepFailed when there is none.
        """
        asked = {**headers, "Accept-Encoding": "identity"}
        if offset:
            asked["Range"] = f"bytes={offset}-"
        with _told(url), self._client.stream("GET", url, headers=asked) as answer:
            if answer.status_code not in {200, 206}:
                raise Refused(url, _answer(answer))
            if offset and _begin(answer) != offset:
                yield b""
            yield from answer.iter_raw()  # with a size it would keep bytes back until that is full


def _document(url: str, answer: httpx.Response) -> bytes:
    """All of it, or where it is a refusal what that begins with. Raises StepFailed."""
    if answer.status_code != 200:
        return beginning(answer)
    found = beginning(answer, LARGEST_LISTING + 1)
    if len(found) > LARGEST_LISTING:
        text = f"{url} answers with more than {LARGEST_LISTING >> 20} MiB, and is no list of files"
        raise StepFailed(text, hint="look at HF_ENDPOINT and MODELSCOPE_ENDPOINT")
    return found


def _begin(answer: httpx.Response) -> int:
    """The first byte that is sent."""
    found = _RANGE.match(answer.headers.get("content-range", ""))
    return int(found.group(1)) if answer.status_code == 206 and found else 0


@contextmanager
def _told(url: str) -> Iterator[None]:
    server = url.partition("://")[2].partition("/")[0]
    try:
        yield
    except httpx.InvalidURL as error:
        text = f"{url} is no address: {error}"
        raise StepFailed(text, hint="look at HF_ENDPOINT and MODELSCOPE_ENDPOINT") from error
    except httpx.TimeoutException as error:
        raise StepFailed(f"{server} does not answer", hint=_HINT, detail=repr(error)) from error
    except httpx.HTTPError as error:
        text = f"{server} cannot be reached: {error}"
        raise StepFailed(text, hint=_HINT, detail=repr(error)) from error


_HINT = (
    "is there a way out from here? HTTPS_PROXY is honoured, HF_ENDPOINT names a mirror; or let a "
    "host with a way out do it: clusterctl model pull ... --on HOST"
)


def _answer(found: httpx.Response, body: bytes = b"") -> Answer:
    known = {name.lower(): value for name, value in found.headers.items()}
    return Answer(found.status_code, known, body)
