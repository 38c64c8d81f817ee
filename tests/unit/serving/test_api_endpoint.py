"""A completion asked for over real HTTP, and the lines to paste."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl.errors import ConnectionFailed, StepFailed
from clusterctl.kinds.known import kind_named
from clusterctl.ray_cluster.topology import base_url
from clusterctl.serving.endpoint import (
    ServiceEndpoint,
    ask,
    certificate_line,
    curl_line,
    key_line,
    python_client,
)

CHAT: dict[str, Any] = {
    "choices": [{"message": {"content": "Hello!"}}],
    "usage": {"completion_tokens": 3},
}
PLAIN: dict[str, Any] = {"choices": [{"text": " there"}], "usage": {"completion_tokens": 2}}


@dataclass
class Api:
    """An HTTP server with one answer, which keeps what it was asked."""

    url: str = ""
    status: int = 200
    answer: bytes = b""
    silent: threading.Event | None = None
    """Set to let a silent server go on."""
    paths: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def says(self, answer: object, status: int = 200) -> Api:
        self.answer, self.status = json.dumps(answer).encode(), status
        return self


@pytest.fixture
def api() -> Iterator[Api]:
    state = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            state.bodies.append(json.loads(self.rfile.read(length)))
            state.paths.append(self.path)
            state.keys.append(self.headers["Authorization"])
            if state.silent is not None:
                state.silent.wait(60)
                return
            self.send_response(state.status)
            self.send_header("Content-Length", str(len(state.answer)))
            self.end_headers()
            self.wfile.write(state.answer)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    if state.silent is not None:
        state.silent.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_chat_completion_comes_back_with_its_tokens_and_time(api: Api) -> None:
    api.says(CHAT)

    answer = ask(ServiceEndpoint(api.url, "m", chat=True), "secret", deadline=60, prompt="Hi")

    assert (answer.text, answer.tokens) == ("Hello!", 3)
    assert 0 < answer.seconds < 60
    assert api.paths == ["/v1/chat/completions"]
    assert api.keys == ["Bearer secret"]
    assert api.bodies == [
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 16}
    ]


def test_without_a_chat_template_a_plain_completion_is_asked_for(api: Api) -> None:
    api.says(PLAIN)

    assert ask(ServiceEndpoint(api.url, "m", chat=False), "k", deadline=60).text == " there"
    assert api.paths == ["/v1/completions"]
    assert api.bodies[0]["prompt"]


def test_a_model_that_embeds_is_asked_to_embed_whatever_its_chat_template(api: Api) -> None:
    api.says({"data": [{"embedding": [0.5, 0.25]}] * 3})
    endpoint = ServiceEndpoint(api.url, "m", chat=True, kind=kind_named("embed"))

    answer = ask(endpoint, "k", deadline=60, prompt="Hi")

    assert (answer.kind, answer.tokens) == ("embed", 0)
    assert (api.paths, len(api.bodies[0]["input"])) == (["/v1/embeddings"], 3)
    assert "/v1/embeddings" in curl_line(endpoint)


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_thoughts_count_as_an_answer(api: Api, key: str) -> None:
    api.says({**CHAT, "choices": [{"message": {"content": None, key: "hmm"}}]})

    assert ask(ServiceEndpoint(api.url, "m", chat=True), "k", deadline=60).text == "hmm"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "refused the API key"),
        (404, "no model named m"),
        (503, "its engine is not"),
        (500, "HTTP status 500"),
    ],
)
def test_a_refusal_is_named_with_what_the_server_said(api: Api, status: int, words: str) -> None:
    api.says({"error": "its own words"}, status)

    with pytest.raises(StepFailed, match=words) as caught:
        ask(ServiceEndpoint(api.url, "m", chat=True), "the-key", deadline=60)

    assert "its own words" in (caught.value.detail or "")
    assert "the-key" not in repr(vars(caught.value))


@pytest.mark.parametrize("answer", [{}, [], "hi", {"choices": []}, {"choices": [{}], "usage": {}}])
def test_what_is_no_completion_is_named(api: Api, answer: object) -> None:
    api.says(answer)

    with pytest.raises(StepFailed, match="no completion"):
        ask(ServiceEndpoint(api.url, "m", chat=True), "k", deadline=60)


def test_an_answer_that_is_not_json_is_named(api: Api) -> None:
    api.answer = b"<html>"

    with pytest.raises(StepFailed, match="no completion"):
        ask(ServiceEndpoint(api.url, "m", chat=True), "k", deadline=60)


def test_a_server_that_does_not_answer_is_given_up_in_time(api: Api) -> None:
    api.silent = threading.Event()

    with pytest.raises(StepFailed, match=r"within 0\.2 s"):
        ask(ServiceEndpoint(api.url, "m", chat=True), "k", deadline=0.2)


def test_a_server_that_breaks_off_is_named(api: Api) -> None:
    api.silent = threading.Event()
    api.silent.set()

    with pytest.raises(StepFailed, match="closed the connection before it answered"):
        ask(ServiceEndpoint(api.url, "m", chat=True), "k", deadline=60)


def test_a_port_where_nothing_listens_is_named() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = base_url("127.0.0.1", unused.getsockname()[1])

        with pytest.raises(ConnectionFailed) as caught:
            ask(ServiceEndpoint(url, "m", chat=True), "k", deadline=60)

    assert str(caught.value) == f"nothing answers at {url}"


def test_the_proxy_of_the_operator_is_not_asked(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "http://127.0.0.1:1")
    api.says(CHAT)

    assert ask(ServiceEndpoint(api.url, "m", chat=True), "k", deadline=60).tokens == 3


def test_the_line_to_paste_is_one_command_that_a_shell_reads_as_meant() -> None:
    line = curl_line(ServiceEndpoint("http://10.0.0.1:8000", "m", chat=True), prompt="It's $HOME?")

    shown = subprocess.run(
        ["sh", "-c", f'curl() {{ for word; do printf "%s\\n" "$word"; done; cat; }}; {line}'],
        env={"CLUSTERCTL_API_KEY": "k", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()

    assert shown[:2] == ["-sS", "http://10.0.0.1:8000/v1/chat/completions"]
    assert shown[2:4] == ["-H", "@-"]
    assert shown[-1] == "Authorization: Bearer k"  # its input, which other users do not see
    assert json.loads(shown[-2])["messages"][0]["content"] == "It's $HOME?"


def test_a_python_client_gets_the_address_and_the_keys_variable() -> None:
    code = python_client(ServiceEndpoint("http://10.0.0.1:8000", "m", chat=True))

    names = {"OpenAI": dict, "os": SimpleNamespace(environ={"CLUSTERCTL_API_KEY": "k"})}
    made = eval(code, names)  # noqa: S307 - our own text

    assert made == {"base_url": "http://10.0.0.1:8000/v1", "api_key": "k"}


def test_the_key_is_fetched_and_never_shown() -> None:
    line = key_line("gpu1", "/etc/clusterctl/demo/api.key", sudo=False)

    command = line.removeprefix('export CLUSTERCTL_API_KEY="$(').removesuffix(')"')
    assert command == "clusterctl ssh gpu1 cat /etc/clusterctl/demo/api.key"


def test_an_ipv6_address_gets_brackets() -> None:
    assert base_url("fd00::1", 8000) == "http://[fd00::1]:8000"


def test_the_http_library_is_loaded_only_when_asking() -> None:
    check = "import sys, clusterctl.serving.endpoint; sys.exit('httpx2' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


def test_clients_are_shown_how_to_trust_a_certificate_made_for_the_gateway() -> None:
    endpoint = ServiceEndpoint("https://10.0.0.1:8000", "m", chat=True, trust="demo.crt")
    assert "curl -sS --cacert demo.crt https://10.0.0.1:8000/v1/chat" in curl_line(endpoint)
    assert "create_default_context(cafile='demo.crt')" in python_client(endpoint)
    line = certificate_line("gpu1", "/etc/clusterctl/demo/gateway.crt", "demo.crt", sudo=False)
    assert line == "clusterctl ssh gpu1 cat /etc/clusterctl/demo/gateway.crt > demo.crt"
