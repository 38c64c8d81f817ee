"""A file of requests, sent to a service: OpenAI's batch format, without its upload and its wait.

Every answer is a line of the answers file as soon as it arrives, so an interrupted run continues
where it stopped.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from clusterctl import deadlines
from clusterctl.errors import (
    ClusterctlError,
    ConnectionFailed,
    StepFailed,
    UsageError,
    raise_all,
)
from clusterctl.serving.endpoint import REFUSALS, post

if TYPE_CHECKING:
    import httpx2

_URL = re.compile(r"/v1/[a-z_/]+")

# What a line without `url` asks for, by the key that its body must have.
_URL_OF_KEY = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/embeddings",
}

_ANSWER_START = '{"id": "batch_req_'  # of each line that this module writes

AFTER_OTHERS = 100  # vLLM's `priority`: requests with a lower one come first, such as 0

_SHOWN_PROBLEMS = 20

_TRIES_OF_ERROR = 3  # an error 500 may be the engine's end, or this request's own fault

_UNAVAILABLE = frozenset({429, 502, 503, 504})  # the service restarts, or is full: try again


@dataclass(frozen=True)
class BatchRequest:
    """One line of the requests file."""

    custom_id: str
    url: str  # a path: `/v1/chat/completions`
    body: dict[str, Any]

    def with_priority(self, priority: int) -> BatchRequest:
        """Return it with vLLM's `priority`, unless it has its own; 0 is that of all requests."""
        body = {"priority": priority, **self.body} if priority else self.body
        return replace(self, body=body)


@dataclass
class BatchCount:
    """Numbers of requests by outcome, so far."""

    total: int
    kept: int = 0  # answered by an earlier run
    answered: int = 0
    failed: int = 0  # the service refused them; the answers file has the reason

    def text(self, seconds: float) -> str:
        """Return the progress of a run that has lasted that long."""
        done = self.answered + self.failed
        failed = f", {self.failed} failed" if self.failed else ""
        return f"{self.kept + done} of {self.total}{failed}, {done / seconds:.1f}/s"


def check_requests(file: Path, model: str) -> list[str]:
    """Return the ids of all requests of `file`, in order.

    Raises Problems with the line of each mistake; UsageError if the file cannot be read or is
    empty. `model`: the service's served model name.
    """
    first: dict[str, int] = {}
    problems: list[ClusterctlError] = []
    for number, text in _lines(file):
        try:
            request = _parsed(text, number, model)
        except UsageError as error:
            problems.append(UsageError(f"{file}:{number}: {error}"))
            continue
        if (before := first.setdefault(request.custom_id, number)) != number:
            problems.append(
                UsageError(
                    f"{file}:{number}: line {before} already has custom_id {request.custom_id!r}"
                )
            )
    if len(problems) > _SHOWN_PROBLEMS:
        more = len(problems) - _SHOWN_PROBLEMS
        problems[_SHOWN_PROBLEMS:] = [UsageError(f"{file}: {more} more lines are invalid")]
    raise_all(problems)
    if not first:
        raise UsageError(
            f"{file} has no requests", hint='a line is, for example, {"prompt": "..."}'
        )
    return list(first)


def read_requests(file: Path, model: str) -> Iterator[BatchRequest]:
    """Yield the requests of a file that `check_requests` accepted."""
    for number, text in _lines(file):
        yield _parsed(text, number, model)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    if file.exists() and not file.is_file():  # a pipe would have no lines for the second reader
        raise UsageError(
            f"{file} is not a regular file",
            hint="write the requests to a file first: they are read twice",
        )
    try:
        with file.open(encoding="utf-8") as opened:
            for number, text in enumerate(opened, 1):
                if text.strip():
                    yield number, text
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read", detail=str(error)) from error


def _parsed(text: str, number: int, model: str) -> BatchRequest:
    """Parse one line of the requests file. Raises UsageError if it is not a valid request."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"not JSON: {error}") from None
    if not isinstance(line, dict):
        raise UsageError("not a JSON object")
    custom_id = line.pop("custom_id", f"line-{number}")
    body = line.get("body") if "url" in line else line.get("body", line)
    if not isinstance(custom_id, str) or not isinstance(body, dict):
        raise UsageError("custom_id must be a string, and body an object")
    if line.get("method", "POST") != "POST":
        raise UsageError("method must be POST")
    url = line.get("url") or next((_URL_OF_KEY[key] for key in _URL_OF_KEY if key in body), "")
    if not isinstance(url, str) or not _URL.fullmatch(url):
        raise UsageError("needs `messages`, `prompt` or `input`, or a url such as /v1/completions")
    if body.get("stream"):
        raise UsageError("`stream` is not possible in a batch")
    if body.setdefault("model", model) != model:
        raise UsageError(
            f"asks for the model {body['model']!r}, and the service has {model!r}: "
            "leave `model` out, or serve it with -- --served-model-name"
        )
    return BatchRequest(custom_id, url, body)


@contextmanager
def opened_answers(file: Path) -> Iterator[tuple[IO[str], set[str]]]:
    """Open the answers file to append to it; yield it with the ids that it has answers for.

    Requests that failed in an earlier run are resent, so their lines are removed, as is a truncated
    line. Raises UsageError if the file cannot be written, contains anything but answers, or another
    run is writing to it.
    """
    # Half a surrogate pair is written as a JSON escape; bytes that are not UTF-8 are read as text
    # that is not JSON.
    try:
        answers = file.open("a+", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UsageError(f"{file} cannot be written", detail=str(error)) from error
    with answers:
        try:
            fcntl.flock(answers, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another clusterctl batch writes to {file}") from None
        answers.seek(0)
        lines = list(answers)  # not `splitlines`: U+2028 may stand in an answer
        kept = {}
        for number, text in enumerate(lines, 1):
            try:
                line = json.loads(text)
                response = line["response"]
                if response is not None and response["status_code"] == 200:
                    kept[str(line["custom_id"])] = text.removesuffix("\n") + "\n"
            except (ValueError, KeyError, TypeError, RecursionError):
                own = text[: len(_ANSWER_START)] == _ANSWER_START[: len(text)]
                if number == len(lines) and not text.endswith("\n") and own:
                    continue
                raise UsageError(
                    f"{file}:{number}: not an answer of a batch",
                    hint="name another file with -o",
                ) from None
        # Write a file beside it first: a run that is killed here must not lose answers.
        if "".join(kept.values()) != "".join(lines):
            real = file.resolve()
            beside = real.with_name(f".{real.name}.{os.getpid()}")
            try:
                beside.touch(mode=0o600)
                shutil.copymode(real, beside)
                beside.write_text(
                    "".join(kept.values()), encoding="utf-8", errors="backslashreplace"
                )
                fresh = beside.open("a", encoding="utf-8", errors="backslashreplace")
                fcntl.flock(fresh, fcntl.LOCK_EX)
                beside.replace(real)
            except OSError as error:
                beside.unlink(missing_ok=True)
                raise UsageError(f"{file} cannot be written", detail=str(error)) from error
            with fresh:
                yield fresh, set(kept)
        else:
            yield answers, set(kept)


@dataclass
class BatchRun:
    """Sends requests to a service, several at once, and writes each answer as it arrives."""

    url: str  # of the service, without a path
    key: str
    answers: IO[str]
    count: BatchCount
    concurrency: int = 64
    patience: float = deadlines.BATCH_PATIENCE
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    # Monotonic seconds of the last answer, and the last sign that the service is away
    _answered: float = field(default=0.0, init=False)
    _away: str = field(default="", init=False)
    _broke: BaseException | None = field(default=None, init=False)

    def send(
        self, requests: Iterator[BatchRequest], cancelled: threading.Event, say: Callable[[], None]
    ) -> None:
        """Send all requests; once `cancelled` is set, only wait for answers to requests already
        sent, and repeat none. `say` is called twice a second.

        Raises ConnectionFailed if the service has answered nothing for `patience` seconds: while a
        service restarts, requests are repeated, since generating text twice does no harm. Raises
        StepFailed if an answer cannot be written.
        """
        import httpx2

        self._answered = time.monotonic()
        # The operator's proxy settings are meant for the Internet, not for the cluster.
        client = httpx2.Client(
            base_url=self.url,
            trust_env=False,
            headers={"Authorization": f"Bearer {self.key}"},
            timeout=httpx2.Timeout(deadlines.BATCH_ANSWER, connect=deadlines.API_CONNECT),
            limits=httpx2.Limits(max_connections=self.concurrency),
        )
        threads = [
            threading.Thread(
                target=self._work, args=(client, requests, cancelled), name="batch", daemon=True
            )
            for _ in range(self.concurrency)
        ]
        for thread in threads:
            thread.start()
        try:
            while not self._stop.is_set() and (alive := [it for it in threads if it.is_alive()]):
                alive[0].join(0.5)
                say()
                if self._away and time.monotonic() - self._answered > self.patience:
                    raise ConnectionFailed(
                        f"the service has answered nothing for {self.patience:.0f} s",
                        hint="clusterctl status; the same command continues where this one stopped",
                        detail=self._away,
                    )
        finally:
            self._stop.set()
            client.close()
        if self._broke is not None:
            raise self._broke

    def _work(
        self, client: httpx2.Client, requests: Iterator[BatchRequest], cancelled: threading.Event
    ) -> None:
        try:
            while not cancelled.is_set() and not self._stop.is_set():
                with self._lock:
                    request = next(requests, None)
                if request is None or (line := self._answer(client, request, cancelled)) is None:
                    return
                with self._lock:
                    self._write(json.dumps(line, ensure_ascii=False) + "\n")
                    if line["response"]["status_code"] == 200:
                        self.count.answered += 1
                    else:
                        self.count.failed += 1
        except BaseException as error:
            self._broke = self._broke or error
            self._stop.set()

    def _write(self, line: str) -> None:
        try:
            self.answers.write(line)
            self.answers.flush()
        except OSError as error:
            with suppress(OSError):
                self.answers.close()  # tries to write once more, and may fail again
            raise StepFailed(
                "an answer cannot be written",
                hint="the same command continues where this one stopped",
                detail=str(error),
            ) from error

    def _answer(
        self, client: httpx2.Client, request: BatchRequest, cancelled: threading.Event
    ) -> dict[str, Any] | None:
        """Return the line for the answers file; None if the run ended before there was one."""
        import httpx2

        errors, pause = 0, 1.0
        while not self._stop.is_set():
            try:
                response = post(client, request.url, request.body)
                code = response.status_code
                if code == 401:
                    reason, hint = REFUSALS[code]
                    raise StepFailed(f"the service {reason}", hint=hint)
                errors += code == 500
                if code not in _UNAVAILABLE and (code != 500 or errors == _TRIES_OF_ERROR):
                    self._answered, self._away = time.monotonic(), ""
                    return _line(request, response)
                self._away = f"HTTP status {code}: {response.text[:500]}"
            except httpx2.RequestError as error:
                self._away = f"{type(error).__name__}: {error}"
            if cancelled.is_set():
                return None
            self._stop.wait(pause)
            pause = min(pause * 2, deadlines.BATCH_PAUSE)
        return None


def _line(request: BatchRequest, response: httpx2.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except (ValueError, RecursionError):
        body = {"error": response.text[:2000]}
    return {
        "id": f"batch_req_{uuid.uuid4().hex}",
        "custom_id": request.custom_id,
        "response": {
            "status_code": response.status_code,
            "request_id": response.headers.get("x-request-id", ""),
            "body": split_thoughts(body),
        },
        "error": None,
    }


def split_thoughts(body: Any) -> Any:
    """Move what a reasoning model wrote before `</think>` into the message's `reasoning`, where a
    service with --reasoning-parser puts it."""
    choices = body.get("choices") if isinstance(body, dict) else None
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict) or message.get("reasoning"):
            continue
        content = message.get("content")
        if isinstance(content, str) and "</think>" in content:
            thoughts, _, text = content.partition("</think>")
            message["reasoning"] = thoughts.strip().removeprefix("<think>").strip()
            message["content"] = text.strip()
    return body
