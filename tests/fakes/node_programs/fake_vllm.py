"""Stands for `vllm serve`: an engine child and an API server with the endpoints that matter.

Settings in ROOT/vllm.json, read at every request: `exit` with `words`, `never_listen`, `models`,
`completion` (ok | error | refuse: an error, but for checks | hang), `running`, `tokens_still`,
`ignore_term`, `kind`: of its model, `text` by default (ANSWERS; `rerank+tokens`: both), and
`paths`: those of its openapi.json.
Where it may sleep: `sleep` and `wake_up` (ok | error | hang), and `seconds`, which a request takes.
Like vLLM it has the middleware of the command line, and an engine that a request ends in its sleep.
`standby`: other settings of a standby; `coder`: of that service, with `--service coder`; `text`:
what it answers. Two that share GPUs cannot be awake, or load, at once: with
`--seat FILE` that one ends which finds the memory taken, and leaves FILE.taken.
ROOT/vllm.die makes it log what that file has, and end with status 0, as the API server does when
its engine died.
"""

# ruff: noqa: T201 - what a program prints is its log

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from clusterctl.node.gateway_config import CANARY
from clusterctl.node.sleeping import DESCRIPTOR, HoldsWhileAsleep

root = Path(sys.argv[1])
service = sys.argv[sys.argv.index("--service") + 1] if "--service" in sys.argv else "chat"
document = json.loads((root / f"etc/clusterctl/demo/services/{service}.json").read_text())
port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else document["port"]
counted = {"generated": 0, "read": 0}
adapters: dict[str, str] = {}  # Loaded now: directories by name

VECTORS = [[0.1, -0.2, 0.3], [0.1, -0.2, 0.2], [-0.4, 0.1, 0.3]]

ANSWERS: dict[str, tuple[str, Any]] = {
    "text": ("/v1/completions", {"choices": [{"text": "x"}]}),
    "embed": ("/v1/embeddings", {"data": [{"embedding": vector} for vector in VECTORS]}),
    "rerank": (
        "/rerank",
        {"results": [{"index": n, "relevance_score": 0.5 * n} for n in (1, 0)]},
    ),
    "classify": ("/classify", {"data": [{"probs": [0.5, 0.25, 0.25]}]}),
    "tokens": ("/pooling", {"data": [{"data": [[0.1, 0.2], [0.3, 0.4]]}]}),
    "speech": ("/v1/audio/transcriptions", {"text": "x y"}),
    "vision": ("/v1/chat/completions", {"choices": [{"message": {"content": "Red."}}]}),
    "ocr": ("/v1/chat/completions", {"choices": [{"message": {"content": "Hello 42"}}]}),
    "weather": ("/v1/forecast", {}),
}
"""Path and answer of each kind of model; 404 elsewhere, as from vLLM 0.12 on."""


def settings() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "vllm.json").read_text())
    other = found.pop("standby", {}) if port == document.get("standby_port") else {}
    return {**found, **other, **found.get(service, {})}


def log(line: str) -> None:
    print(f"(APIServer pid={os.getpid()}) INFO 11-21 12:00:00 [core.py:1] {line}", flush=True)


class Handler(BaseHTTPRequestHandler):
    wbufsize = 2**16  # Head and body leave together, so that none is killed between them

    def do_GET(self) -> None:
        models = settings().get("models", [document["served_name"]])
        if self.path == "/health":
            self.answer(b"")
        elif self.path == "/v1/models" and self.authorized():
            listed = [{"id": name} for name in models]
            listed += [{"id": name, "root": path} for name, path in adapters.items()]
            self.answer(json.dumps({"data": listed}).encode())
        elif self.path == "/openapi.json" and "paths" in settings():
            self.answer(json.dumps({"paths": {path: {} for path in settings()["paths"]}}).encode())
        elif self.path == "/openapi.json":
            self.answer(b'{"detail":"Not Found"}', 404)
        elif self.path == "/metrics":
            self.answer(self.metrics().encode())

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("_lora_adapter"):
            self.change_adapters(json.loads(sent))
            return
        if holding is None:
            self.serve()
            return
        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        scope = {"type": "http", "method": "POST", "headers": headers, "serve": self.serve}
        asyncio.run_coroutine_threadsafe(holding(scope, nothing, self.take), loop).result()

    async def take(self, message: dict[str, Any]) -> None:
        """What the middleware itself answers."""
        if message["type"] == "http.response.start":
            self.begun = message
        else:
            self.send_response(self.begun["status"])
            for name, value in self.begun["headers"]:
                self.send_header(name.decode(), value.decode())
            self.end_headers()
            self.wfile.write(message["body"])

    def serve(self) -> None:
        if engine_sleeps["asleep"]:
            print("CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(1)
        if seconds := settings().get("seconds"):
            log("check" if self.headers[CANARY] else "request")
            time.sleep(seconds)
        how, kind = settings().get("completion", "ok"), settings().get("kind", "text")
        answers = dict(ANSWERS[each] for each in kind.split("+"))
        if self.path not in answers:
            self.answer(b'{"detail":"Not Found"}', 404)
        elif how == "hang":
            time.sleep(3600)
        elif how == "error" or (how == "refuse" and not self.headers[CANARY]):
            self.answer(b"EngineDeadError", 500)
        elif self.authorized():
            counted["read"] += 1
            counted["generated"] += 4 if kind == "text" else 0
            if kind == "text" and "text" in settings():
                answers[self.path] = {"choices": [{"text": settings()["text"]}]}
            self.answer(json.dumps(answers[self.path]).encode())

    def change_adapters(self, body: dict[str, str]) -> None:
        """As vLLM with our middleware. `bad_adapter` of the settings cannot be loaded."""
        token = os.environ.get("CLUSTERCTL_ADAPTERS_TOKEN", "")
        if not token or self.headers["X-Clusterctl-Adapters"] != token:
            self.answer(b"", 404)
        elif body["lora_name"] == settings().get("bad_adapter"):
            self.answer(b"LoRA rank 64 is greater than max_lora_rank 16.", 500)
        else:
            adapters.pop(body["lora_name"], None)
            if "lora_path" in body:
                adapters[body["lora_name"]] = body["lora_path"]
            self.answer(b"Success")

    def authorized(self) -> bool:
        good = self.headers["Authorization"] == f"Bearer {os.environ['VLLM_API_KEY']}"
        if not good:
            self.answer(b"{}", 401)
        return good

    def metrics(self) -> str:
        running = settings().get("running", 0)
        return (
            "# HELP vllm:num_requests_running n\n"
            f'vllm:num_requests_running{{engine="0"}} {running}\n'
            'vllm:num_requests_waiting{engine="0"} 0.0\n'
            'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
            f'vllm:prompt_tokens_total{{engine="0"}} {counted["read"]}\n'
            f'vllm:generation_tokens_total{{engine="0"}} {counted["generated"]}\n'
        )

    def answer(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Memory:
    """Of GPUs, which is enough for one that is awake."""

    def __init__(self, file: str) -> None:
        self._file = Path(file) if file else None
        self._held: Any = None

    def take(self) -> None:
        if self._file is None:
            return
        self._held = self._file.open("w")
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.with_suffix(".taken").touch()
            print("CUDA error: out of memory", flush=True)
            os._exit(1)

    def free(self) -> None:
        if self._held:
            self._held.close()


engine_sleeps = {"asleep": False}


class SleepingEngine:
    """The engine of vLLM's API server, as far as it sleeps."""

    async def sleep(self, level: int, mode: str) -> None:
        await self.act("sleep")
        parked = "sleep freed 2.00 GiB memory in total, of which 1.50 GiB is backed up in CPU and"
        log(f"CuMemAllocator: {parked} the rest 0.50 GiB is discarded directly.")
        engine_sleeps["asleep"] = True
        memory.free()

    async def wake_up(self) -> bool:
        memory.take()
        await self.act("wake_up")
        engine_sleeps["asleep"] = False
        return True

    async def act(self, what: str) -> None:
        kind = settings().get(what, "ok")
        if kind == "error":
            raise RuntimeError("CUDA error: out of memory")
        while kind == "hang":
            await asyncio.sleep(1)


async def nothing() -> dict[str, Any]:
    return {}


async def unsent(_message: dict[str, Any]) -> None:
    pass


async def app(scope: dict[str, Any], _receive: Any, _send: Any) -> None:
    if scope["type"] == "http":
        await asyncio.to_thread(scope["serve"])


def begin_holding() -> HoldsWhileAsleep | None:
    if DESCRIPTOR not in os.environ:
        return None
    threading.Thread(target=loop.run_forever, daemon=True).start()
    state = SimpleNamespace(engine_client=SleepingEngine())
    scope = {"type": "lifespan", "app": SimpleNamespace(state=state)}

    async def begin() -> HoldsWhileAsleep:
        held = HoldsWhileAsleep(app)
        await held(scope, nothing, unsent)
        return held

    return asyncio.run_coroutine_threadsafe(begin(), loop).result()


memory = Memory(sys.argv[sys.argv.index("--seat") + 1] if "--seat" in sys.argv else "")
memory.take()
loop = asyncio.new_event_loop()
holding = begin_holding()


def die_when_told() -> None:
    while not (root / "vllm.die").exists():
        time.sleep(0.02)
    if said := (root / "vllm.die").read_text():
        log(said)
    (root / "vllm.die").unlink()
    os._exit(0)


with (root / "vllm.starts").open("a") as starts:
    entry = {"pid": os.getpid(), "argv": sys.argv[1:], "env": dict(os.environ)}
    starts.write(json.dumps(entry) + "\n")
if "exit" in settings():
    print(settings().get("words", "no reason"), flush=True)
    sys.exit(settings()["exit"])


def end(*_: object) -> None:
    engine.kill()
    os._exit(0)


engine = subprocess.Popen(["sleep", "600"])
if settings().get("ignore_term"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, end)
threading.Thread(target=die_when_told, daemon=True).start()
log("Starting to load model tiny...")
while settings().get("never_listen"):
    time.sleep(0.02)
log("GPU KV cache size: 1,024 tokens")
ThreadingHTTPServer.request_queue_size = 2048  # As uvicorn has it
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
