"""A service is proved by a request of the kind that the supervisor found it to serve."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from clusterctl import deadlines
from clusterctl.engine.events import Event, ignore
from clusterctl.errors import StepFailed
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.node.documents import (
    IN_TURN,
    GatewayMember,
    GatewayState,
    NodeState,
    Rank,
    ServiceDocument,
    ServiceState,
    SleepState,
)
from clusterctl.serving import proof
from clusterctl.serving.arguments import Layout
from clusterctl.serving.declaration import StageEvents, await_ready, followed
from clusterctl.serving.proof import Proof, await_gateway, prove
from clusterctl.serving.service import PlannedReplica
from tests.fakes.transport import FakeTransport

INVENTORY = Inventory(
    cluster="demo",
    image="i",
    hosts=(Host(name="gpu1", address="gpu1", role="head", gpus=(Gpu(),)),),
)
DOCUMENT = ServiceDocument(
    "m", "m", "m", ["vllm", "serve", "/m"], {}, "10.0.0.1", 8000, 1, 1, 1, "f"
)
CHAT: dict[str, Any] = {
    "choices": [{"message": {"content": "Hello!"}}],
    "usage": {"completion_tokens": 3},
}
EMBEDDING: dict[str, Any] = {
    "data": [{"embedding": vector} for vector in ([0.5, 0.25], [0.5, 0.2], [0.1, 0.9])]
}
ANSWERS = {"/v1/chat/completions": CHAT, "/v1/embeddings": EMBEDDING}


@pytest.fixture
def port() -> Iterator[int]:
    """Of a server that has both kinds of answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            said = json.dumps(ANSWERS[self.path]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def proved(port: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> Proof:
    """As a supervisor says that its model is of `kind`."""
    monkeypatch.setattr(proof, "Tunnel", lambda *_: nullcontext(SimpleNamespace(port=port)))
    head = FakeTransport(Host(name="gpu1", address="gpu1"))
    layout = Layout(1, 1, seats=("gpu1",))
    rank = Rank(0, 0, 0, "gpu1", "10.0.0.1", 7)
    service = ServiceState("m", "ready", 0.0, "f", kind=kind, ranks=[rank], ready_seconds=9.0)
    state = NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0, services=[service])
    events: list[Event] = []
    planned = PlannedReplica(document=DOCUMENT, layout=layout, host="gpu1")
    return prove(planned, "key", head, lambda: state, events.append, {"gpu1": "10.0.0.1"})


def test_an_embedding_model_is_asked_for_an_embedding(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = proved(port, "embed", monkeypatch)

    assert found.answer.kind == found.kind.name == "embed"
    assert found.answer.text.startswith("2 numbers, similar texts are nearer")
    assert found.ready_seconds == 9.0


@pytest.mark.parametrize("kind", ["text", ""])
def test_a_model_that_generates_is_asked_for_a_completion(
    port: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = proved(port, kind, monkeypatch)

    assert (found.answer.kind, found.answer.text, found.answer.tokens) == ("text", "Hello!", 3)


def test_a_standby_that_serves_proves_the_service(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def tunnel(_: object, __: str, where: int) -> Any:
        asked.append(where)
        return nullcontext(SimpleNamespace(port=port))

    monkeypatch.setattr(proof, "Tunnel", tunnel)
    waits = ServiceState("m", "waiting", 0.0, "f", detail=f"{IN_TURN}: its standby serves")
    rank = Rank(0, 0, 0, "gpu1", "10.0.0.1", 7)
    standby = ServiceState("m@standby", "ready", 0.0, "f", ranks=[rank])
    state = NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0, services=[waits], standbys=[standby])
    document = replace(DOCUMENT, standby_port=8101)

    assert followed(state, document) == standby
    assert await_ready(document, lambda: state, StageEvents("gpu1", ignore)) == standby
    layout = Layout(1, 1, seats=("gpu1",))
    planned = PlannedReplica(document=document, layout=layout, host="gpu1")
    head = FakeTransport(Host(name="gpu1", address="gpu1"))
    found = prove(planned, "key", head, lambda: state, ignore, {"gpu1": "10.0.0.1"})
    assert (found.ranks, asked) == ((rank,), [8101])

    sleeps = replace(standby, sleep=SleepState(asleep=True))
    assert followed(replace(state, standbys=[sleeps]), document) == waits
    old = replace(standby, fingerprint="before")
    assert followed(replace(state, standbys=[old]), document) == waits


def gateway(**more: Any) -> NodeState:
    return NodeState("gpu1", "head", 0.0, "1", "up", 0.0, 0, gateway=GatewayState(**more))


def test_a_service_with_replicas_is_served_once_the_gateway_passes_requests_on() -> None:
    member = GatewayMember("m", 1, "gpu1", admitted=False, why="not listening yet")
    listens = ["10.0.0.1:8000"]
    states = [
        None,
        gateway(state="starting"),
        gateway(state="up", listens=listens, members=[member]),
        gateway(state="up", listens=listens, members=[replace(member, admitted=True)]),
    ]
    await_gateway("m", 8000, "gpu1", lambda: states.pop(0), lambda _: None)
    assert states == []


def test_a_gateway_that_cannot_listen_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "GATEWAY_UP", 0.0)
    down = gateway(state="backing-off", detail="HAProxy ended: cannot bind socket")
    with pytest.raises(StepFailed, match=r"it is backing-off \(HAProxy ended: cannot bind"):
        await_gateway("m", 8000, "gpu1", lambda: down, lambda _: None)
