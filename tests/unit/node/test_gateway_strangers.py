"""What strangers without a key, and users with one, can take from the gateway: nothing of others'
service, and no token uncounted. With a real HAProxy."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from clusterctl.node.documents import KeyUse, Member, MembersDocument
from clusterctl.node.gateway_config import LARGEST_REQUEST, STRANGERS_CONNECTIONS
from clusterctl.node.gateway_socket import ask
from tests.fakes.node_bench import await_value
from tests.unit.node.test_gateway import READY, GatewayBench, gate, short_path

__all__ = ["gate", "short_path"]

pytestmark = pytest.mark.usefixtures("haproxy")


def opened(gate: GatewayBench, source: str, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", gate.port), 10, (source, 0))
    try:
        connection.sendall(data)
    except ConnectionError:
        connection.close()
        raise
    return connection


def head(method: str = "POST", path: str = "/v1/completions", **fields: str) -> bytes:
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def status_of(connection: socket.socket) -> int:
    answer = connection.recv(65536)
    return int(answer.split()[1]) if answer else 0


def info(gate: GatewayBench, name: str) -> int:
    shown = ask(gate.paths.gateway / "admin.sock", ["show info"])
    found = re.search(rf"^{name}: (\d+)", shown, re.MULTILINE)
    assert found
    return int(found[1])


def resident(gate: GatewayBench) -> float:
    """MiB of memory of HAProxy's worker."""
    text = Path(f"/proc/{info(gate, 'Pid')}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def test_nothing_of_a_body_is_kept_before_the_key_is_known(gate: GatewayBench) -> None:
    before = resident(gate)
    with contextlib.ExitStack() as held:
        for _ in range(100):
            request = head(Content_Length="1048576") + b"x" * 400_000
            connection = held.enter_context(opened(gate, "127.0.0.2"))
            connection.settimeout(10)
            with contextlib.suppress(ConnectionError):  # Answered, and closed, before its end
                connection.sendall(request)
            with contextlib.suppress(ConnectionError):
                assert status_of(connection) == 401
        assert resident(gate) < before + 40
    assert gate.post().status_code == 200


@pytest.mark.parametrize("source", ["127.0.0.2", "127.0.0.1"])
def test_silent_and_slow_strangers_take_no_place_of_others(gate: GatewayBench, source: str) -> None:
    """Also those at the address of a client; as many as fit under this machine's limit."""

    def seconds_of_requests() -> float:
        started = time.monotonic()
        assert [gate.post().status_code for _ in range(20)] == [200] * 20
        return time.monotonic() - started

    alone = seconds_of_requests()
    with contextlib.ExitStack() as held:
        for number in range(2000):
            slow = b"POST /v1/comp" if number < 300 else b""
            with contextlib.suppress(ConnectionError):  # Too many of one address
                held.enter_context(opened(gate, source, slow))
        known = source == "127.0.0.1"
        most = 2000 if known else STRANGERS_CONNECTIONS
        await_value(lambda: info(gate, "CurrConns") <= most + 10, "connections that are left")
        assert seconds_of_requests() < 5 + 10 * alone  # The machine may be busy
        # And those that stay silent are closed.
        await_value(lambda: info(gate, "CurrConns") < 20, "their end", timeout=20)


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PUT", "PATCH", "CONNECT", "PROPFIND"])
def test_only_the_methods_of_the_api_are_passed_on(gate: GatewayBench, method: str) -> None:
    key = f"Bearer {'c' * 64}"
    with opened(gate, "127.0.0.1", head(method, "/v1/models", Authorization=key)) as connection:
        assert status_of(connection) in {400, 405}
    assert not any(replica.paths for replica in gate.replicas)


def test_a_body_has_a_limit_and_it_is_said(gate: GatewayBench) -> None:
    fields = {"Authorization": f"Bearer {'c' * 64}"}
    with opened(gate, "127.0.0.1", head(Content_Length=f"{LARGEST_REQUEST + 1}", **fields)) as sent:
        answer = sent.recv(65536)
    assert b"413" in answer.split(b"\r\n")[0]
    assert b"more than 64 MiB" in answer

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 65536

    url = f"http://127.0.0.1:{gate.port}/v1/completions"
    refused = httpx2.post(url, headers=fields, content=chunks(), trust_env=False)
    assert refused.status_code == 413
    assert "Content-Length" in refused.json()["error"]["message"]
    large = {"prompt": "x" * 3_000_000}
    assert gate.post(**large).status_code == 200, "one of 3 MB with its length is passed on"


def test_a_flood_of_strangers_loses_no_count_of_a_key(gate: GatewayBench) -> None:
    alice = gate.add_key("alice")
    bad = head(Content_Length="0") + b"GARBAGE\r\n\r\n"
    ended = threading.Event()

    def flood() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), opened(gate, "127.0.0.3") as connection:
                connection.sendall(head("GET", "/v1/models") * 20 + bad)
                while connection.recv(65536):
                    pass

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert [gate.post(alice).status_code for _ in range(50)] == [200] * 50
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    use = await_value(lambda: used(gate, "alice", 50), "50 requests of alice")
    assert (use.prompt_tokens, use.completion_tokens) == (250, 200)
    assert info(gate, "DroppedLogs") == 0
    # What was refused is counted, and named to nobody's cost.
    await_value(lambda: gate.state().refused > 100, "the refused ones", timeout=10)


def used(gate: GatewayBench, name: str, requests: int = 1) -> KeyUse | None:
    found = {use.name: use for use in gate.state().keys}.get(name)
    return found if found and found.requests == requests else None


class Scripted:
    """A replica that answers every POST with these parts, and notes when it is closed early."""

    def __init__(self, kind: str, *parts: str, pause: float = 0.0) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Not to the test's output."""

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for part in (*parts, ""):
                    data = part.encode()
                    with contextlib.suppress(OSError):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                        self.wfile.flush()
                    time.sleep(pause)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def behind(self, gate: GatewayBench) -> None:
        members = [Member(7, "a", "127.0.0.1", self.port)]
        gate.documents = {
            "tiny": MembersDocument("tiny", ["tiny"], gate.port, members, listen="127.0.0.1")
        }
        gate.proofs = {self.port: READY}
        gate.follow()
        admin = gate.paths.gateway / "admin.sock"
        await_value(lambda: "replica-7" in ask(admin, ["show stat"]), "the replica", timeout=10)
        gate.await_up()


def events(*bodies: Any, names: bool = False) -> list[str]:
    return [
        (f"event: {body.get('type')}\n" if names else "") + f"data: {json.dumps(body)}\n\n"
        for body in bodies
    ]


ROLE = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
WORDS = [{"choices": [{"index": 0, "delta": {"content": f"w{n % 10} "}}]} for n in range(500)]
LONG = [
    {"choices": [{"index": 0, "delta": {"content": " a few more words of this answer {"}}]}
] * 30
DELTAS = [{"type": "content_block_delta", "delta": {"text": "w"}} for _ in range(500)]
BEGUN = {"type": "message_start", "message": {"usage": {"input_tokens": 7, "output_tokens": 0}}}
TOOLS = {"usage": {"input_tokens": 1, "output_tokens": 1}}
CREATED = {"type": "response.created", "response": {"tools": [TOOLS], "usage": None}}
TEXTS = [{"type": "response.output_text.delta", "delta": "w"} for _ in range(500)]
MANY = "9.25, " * 400_000


@pytest.mark.parametrize(
    ("path", "parts", "prompt", "completion"),
    [
        ("chat/completions", events(*WORDS), (0, 2000), (492, 700)),
        ("chat/completions", events(ROLE, *LONG), (0, 2000), (150, 400)),
        ("messages", events(BEGUN, *DELTAS, names=True), (7, 7), (490, 502)),
        ("responses", events(CREATED, *TEXTS, names=True), (1, 2000), (490, 700)),
        (
            "responses",
            [json.dumps({"tools": [TOOLS], "usage": {"input_tokens": 40, "output_tokens": 90}})],
            (40, 40),
            (90, 90),
        ),
        (
            "chat/completions",
            [
                '{"choices": [{"content": "say \\"usage\\":{\\"prompt_tokens\\":1}"}],',
                '"usa',
                'ge":{"prompt_tokens":70,"prompt_tokens_details":{"cached_tokens":3},',
                f'"completion_tokens":9}},"prompt_logprobs":[{MANY[:-2]}]}}',
            ],
            (70, 70),
            (9, 9),
        ),
        ("completions", [f'{{"numbers": [{MANY[:-2]}], "prompt_tokens": 5}}'], (0, 0), (0, 0)),
    ],
    ids=["hidden", "several at once", "messages", "responses", "echo", "large", "no usage"],
)
def test_whole_answers_are_counted_in_every_format(
    gate: GatewayBench,
    path: str,
    parts: list[str],
    prompt: tuple[int, int],
    completion: tuple[int, int],
) -> None:
    kind = "text/event-stream" if parts[0].startswith(("data", "event")) else "application/json"
    Scripted(kind, *parts).behind(gate)
    key = gate.add_key("sly", tokens_per_day=10**9)
    ask_for(gate, path, key)
    use = await_value(lambda: used(gate, "sly"), "its count")
    assert prompt[0] <= use.prompt_tokens <= prompt[1]
    assert completion[0] <= use.completion_tokens <= completion[1]


def ask_for(
    gate: GatewayBench,
    path: str,
    key: str,
    text: str = "",
    after: Callable[[bytes], bool] | None = None,
) -> None:
    """Send a request; close the connection once `after` is true of what came."""
    url, body = f"http://127.0.0.1:{gate.port}/v1/{path}", {"model": "tiny", "messages": text}
    headers = {"Authorization": f"Bearer {key}"}
    with httpx2.stream("POST", url, json=body, headers=headers, trust_env=False, timeout=30) as got:
        assert got.status_code == 200
        came = b""
        for data in got.iter_raw():
            came += data
            if after and after(came):
                return


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_closing_early_hides_no_token(gate: GatewayBench, path: str) -> None:
    first = {"messages": BEGUN, "responses": CREATED}.get(path, ROLE)
    replica = Scripted("text/event-stream", *events(first, *WORDS, *WORDS), pause=0.003)
    replica.behind(gate)
    key = gate.add_key("sly", tokens_per_day=10**9)
    ask_for(gate, path, key, "word " * 80_000, after=lambda came: came.count(b"data") >= 100)
    use = await_value(lambda: used(gate, "sly"), "its count")
    assert 80_000 <= use.prompt_tokens <= 110_000
    assert 99 <= use.completion_tokens <= 1000


def test_a_key_with_limits_opens_no_websocket(gate: GatewayBench) -> None:
    key, free = gate.add_key("limited", requests_per_minute=100), gate.add_key("free")
    counted = gate.add_key("counted", tokens_per_day=100)
    fields = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    for each, expected in ((key, 400), (counted, 400), (free, 200)):
        request = head("GET", "/v1/realtime", Authorization=f"Bearer {each}", **fields)
        with opened(gate, "127.0.0.1", request) as connection:
            assert status_of(connection) == expected


def test_refused_requests_count_against_no_limit(gate: GatewayBench) -> None:
    key = gate.add_key("few", requests_per_minute=2, tokens_per_day=10**6)
    refused = [gate.post(key, stream=True).status_code for _ in range(5)]
    assert refused == [400] * 5
    assert [gate.post(key).status_code for _ in range(3)] == [200, 200, 429]
