"""A file of requests against a real HTTP server: answers, failures, restarts, second runs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import ConnectionFailed, Problems, StepFailed, UsageError
from clusterctl.serving.batch import (
    AFTER_OTHERS,
    BatchCount,
    BatchRequest,
    BatchRun,
    check_requests,
    opened_answers,
    read_requests,
    split_thoughts,
)

Reply = Callable[[str, dict[str, Any], int], tuple[int, Any]]


class Service:
    """Answers each request by `reply(path, body, times this body was seen)`."""

    def __init__(self, reply: Reply) -> None:
        self.seen: list[dict[str, Any]] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                with lock:
                    self.seen.append(body)
                    times = self.seen.count(body)
                allowed = handler.headers["Authorization"] == "Bearer key"
                code, answer = reply(handler.path, body, times) if allowed else (401, {})
                data = json.dumps(answer).encode()
                handler.send_response(code)
                handler.send_header("Content-Length", str(len(data)))
                handler.end_headers()
                with suppress(ConnectionError):  # A run that was ended waits for no answer
                    handler.wfile.write(data)

            def log_message(handler, *args: object) -> None:  # noqa: N805
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = False  # None of its threads outlives a test
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def serve() -> Iterator[Callable[[Reply], Service]]:
    made: list[Service] = []

    def start(reply: Reply) -> Service:
        made.append(Service(reply))
        return made[-1]

    yield start
    for service in made:
        service.server.shutdown()
        service.server.server_close()


def _echo(path: str, body: dict[str, Any], times: int) -> tuple[int, Any]:
    return 200, {"choices": [{"text": f"{path} {body['prompt']}"}]}


def _prompts(file: Path, count: int) -> Path:
    file.write_text("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(count)))
    return file


def _run(service: Service, requests: Path, answers: Path, patience: float = 60.0) -> BatchCount:
    ids = check_requests(requests, "tiny")
    with opened_answers(answers) as (file, kept):
        count = BatchCount(len(ids), kept=len(kept))
        run = BatchRun(service.url, "key", file, count, concurrency=8, patience=patience)
        missing = (it for it in read_requests(requests, "tiny") if it.custom_id not in kept)
        run.send(missing, threading.Event(), lambda: None)
    return count


def _answers(file: Path) -> dict[str, Any]:
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    return {line["custom_id"]: line["response"] for line in lines}


def test_every_request_gets_one_answer(tmp_path: Path, serve: Callable[[Reply], Service]) -> None:
    service = serve(_echo)
    count = _run(service, _prompts(tmp_path / "in", 50), tmp_path / "out")
    assert (count.answered, count.failed) == (50, 0)
    answers = _answers(tmp_path / "out")
    assert len(answers) == len(service.seen) == 50
    assert answers["line-8"]["body"]["choices"][0]["text"] == "/v1/completions 7"
    assert all(body["model"] == "tiny" for body in service.seen)


def test_a_second_run_sends_only_what_has_no_answer(
    tmp_path: Path, serve: Callable[[Reply], Service]
) -> None:
    def refuses_three(path: str, body: dict[str, Any], times: int) -> tuple[int, Any]:
        if body["prompt"] == "3" and len(service.seen) <= 10:
            return 400, {"error": {"message": "too long"}}
        return _echo(path, body, times)

    service = serve(refuses_three)
    requests, out = _prompts(tmp_path / "in", 10), tmp_path / "out"
    assert _run(service, requests, out).failed == 1
    assert _answers(out)["line-4"]["status_code"] == 400

    # As a run leaves it that was killed while it wrote.
    with out.open("a") as file:
        file.write('{"id": "batch_req_0", "custom_id": "line-')
    second = _run(service, requests, out)
    assert (second.kept, second.answered, second.failed) == (9, 1, 0)
    assert service.seen[10:] == [{"prompt": "3", "model": "tiny"}]
    assert {answer["status_code"] for answer in _answers(out).values()} == {200}
    assert len(out.read_text().splitlines()) == 10
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_service_that_restarts_is_asked_again(
    tmp_path: Path, serve: Callable[[Reply], Service], code: int
) -> None:
    def later(path: str, body: dict[str, Any], times: int) -> tuple[int, Any]:
        return _echo(path, body, times) if times > 1 else (code, {})

    count = _run(serve(later), _prompts(tmp_path / "in", 3), tmp_path / "out")
    assert (count.answered, count.failed) == (3, 0)


def test_a_request_that_ends_in_an_error_every_time_is_recorded(
    tmp_path: Path, serve: Callable[[Reply], Service]
) -> None:
    def breaks(path: str, body: dict[str, Any], times: int) -> tuple[int, Any]:
        return (500, {"error": "assert"}) if body["prompt"] == "1" else _echo(path, body, times)

    count = _run(serve(breaks), _prompts(tmp_path / "in", 3), tmp_path / "out")
    assert (count.answered, count.failed) == (2, 1)
    assert _answers(tmp_path / "out")["line-2"]["body"] == {"error": "assert"}


def test_a_service_that_stays_away_ends_the_run(
    tmp_path: Path, serve: Callable[[Reply], Service]
) -> None:
    service = serve(lambda *_: (503, {"error": "starting"}))
    with pytest.raises(ConnectionFailed, match="answered nothing for 1 s") as raised:
        _run(service, _prompts(tmp_path / "in", 3), tmp_path / "out", patience=1.0)
    assert "starting" in (raised.value.detail or "")


def test_a_key_that_is_refused_ends_the_run(
    tmp_path: Path, serve: Callable[[Reply], Service]
) -> None:
    service = serve(lambda *_: (401, {"error": "Unauthorized"}))
    with pytest.raises(StepFailed, match="refused the API key"):
        _run(service, _prompts(tmp_path / "in", 3), tmp_path / "out")
    assert _answers(tmp_path / "out") == {}


def test_an_answer_without_end_ends_the_run(
    tmp_path: Path, serve: Callable[[Reply], Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusterctl.serving.endpoint.LARGEST_ANSWER", 2**20)
    service = serve(lambda *_: (200, {"choices": ["x" * 2**21]}))
    with pytest.raises(StepFailed, match="/v1/completions sent more than 1 MiB"):
        _run(service, _prompts(tmp_path / "in", 3), tmp_path / "out")
    assert _answers(tmp_path / "out") == {}


def test_mistakes_are_named_with_their_lines(tmp_path: Path) -> None:
    lines = [
        "{",
        "[]",
        '{"custom_id": 1, "prompt": "x"}',
        '{"custom_id": "a", "prompt": "x"}',
        '{"custom_id": "a", "prompt": "y"}',
        '{"question": "x"}',
        '{"url": "/metrics", "body": {}}',
        '{"url": "/v1/completions"}',
        '{"prompt": "x", "stream": true}',
        '{"prompt": "x", "model": "gpt-4o"}',
        '{"method": "GET", "url": "/v1/completions", "body": {"prompt": "x"}}',
    ]
    file = tmp_path / "in"
    file.write_text("\n".join(lines))
    with pytest.raises(Problems) as raised:
        check_requests(file, "tiny")
    numbers = [str(error).split(":")[1] for error in raised.value.errors]
    assert numbers == ["1", "2", "3", "5", "6", "7", "8", "9", "10", "11"]
    assert "asks for the model 'gpt-4o', and the service has 'tiny'" in str(raised.value.errors[8])


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_a_file_without_requests_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in"
    file.write_text(content)
    with pytest.raises(UsageError, match="has no requests"):
        check_requests(file, "tiny")


def test_a_pipe_is_refused_since_requests_are_read_twice(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        check_requests(tmp_path / "pipe", "tiny")


def test_openais_format_is_read_as_it_is(tmp_path: Path) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
    file = tmp_path / "in"
    file.write_text(json.dumps(line))
    (request,) = read_requests(file, "tiny")
    assert (request.custom_id, request.url, request.body) == ("a", "/v1/chat/completions", body)


def test_another_file_is_not_taken_for_answers(tmp_path: Path) -> None:
    file = _prompts(tmp_path / "in", 2)
    before = file.read_text()
    with pytest.raises(UsageError, match="in:1: not an answer"), opened_answers(file):
        pass
    assert file.read_text() == before


@pytest.mark.parametrize("content", ['{"prompt": "x"}', "notes", "{"])
def test_the_last_line_of_another_file_is_not_removed(tmp_path: Path, content: str) -> None:
    file = tmp_path / "in"
    file.write_text('{"response": null, "custom_id": "a"}\n' + content)
    if content == "{":  # the beginning of an answer
        with opened_answers(file):
            assert file.read_text() == ""
        return
    with pytest.raises(UsageError, match="in:2: not an answer"), opened_answers(file):
        pass
    assert file.read_text().endswith(content)


def test_any_text_of_an_answer_is_kept(tmp_path: Path, serve: Callable[[Reply], Service]) -> None:
    text = "a\u2028b\x85c \ud83d \u6587"
    service = serve(lambda *_: (200, {"choices": [{"text": text}]}))
    requests, out = _prompts(tmp_path / "in", 1), tmp_path / "out"
    with requests.open("a") as file:
        file.write('{"prompt": "\\ud83d", "temperature": NaN}\n')
    assert _run(service, requests, out).answered == 2
    with out.open("ab") as file:
        file.write('{"id": "batch_req_0", "custom_id": "\u6587'.encode()[:-1])
    out.chmod(0o600)
    assert _run(service, requests, out).kept == 2
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [line["response"]["body"]["choices"][0]["text"] for line in lines] == [text, text]
    assert out.stat().st_mode & 0o777 == 0o600


def test_ctrl_c_does_not_wait_for_a_service_that_is_away(
    tmp_path: Path, serve: Callable[[Reply], Service]
) -> None:
    cancelled = threading.Event()

    def away(path: str, body: dict[str, Any], times: int) -> tuple[int, Any]:
        cancelled.set()
        return 503, {}

    requests = _prompts(tmp_path / "in", 3)
    with opened_answers(tmp_path / "out") as (file, _):
        run = BatchRun(serve(away).url, "key", file, BatchCount(3), concurrency=2)
        run.send(read_requests(requests, "tiny"), cancelled, lambda: None)
    assert _answers(tmp_path / "out") == {}


def test_a_full_disk_is_an_error_with_a_fix(
    tmp_path: Path, serve: Callable[[Reply], Service]
) -> None:
    requests = _prompts(tmp_path / "in", 3)
    full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - the run closes it
    run = BatchRun(serve(_echo).url, "key", full, BatchCount(3), concurrency=2)
    with pytest.raises(StepFailed, match="cannot be written") as raised:
        run.send(read_requests(requests, "tiny"), threading.Event(), lambda: None)
    assert "No space left" in (raised.value.detail or "")
    assert full.closed


def test_two_runs_do_not_write_to_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        opened_answers(out),
        pytest.raises(UsageError, match="another clusterctl batch"),
        opened_answers(out),
    ):
        pass


def test_thoughts_are_kept_apart_from_the_answer() -> None:
    message = {"role": "assistant", "content": "<think>\nfirst 2\n</think>\n\n120"}
    body = split_thoughts({"choices": [{"message": message}]})
    assert body["choices"][0]["message"] == {
        "role": "assistant", "content": "120", "reasoning": "first 2"
    }  # fmt: skip
    apart = {"choices": [{"message": {"content": "a </think> b", "reasoning": "r"}}]}
    assert split_thoughts(apart) == {
        "choices": [{"message": {"content": "a </think> b", "reasoning": "r"}}]
    }


def test_a_request_keeps_its_own_priority() -> None:
    plain = BatchRequest("1", "/v1/completions", {"prompt": "x"})
    own = BatchRequest("2", "/v1/completions", {"prompt": "x", "priority": 3})
    assert plain.with_priority(0) == plain
    assert plain.with_priority(AFTER_OTHERS).body == {"prompt": "x", "priority": AFTER_OTHERS}
    assert own.with_priority(AFTER_OTHERS).body["priority"] == 3
