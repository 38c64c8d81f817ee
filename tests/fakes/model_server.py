"""A server that answers like vLLM, fast, and as badly as a test wants it to."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NO_MODEL = (404, {"error": {"message": "The model does not exist.", "type": "NotFoundError"}})


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # vLLM's is 2048: a queue that is full on a busy machine would look like a replica that is down
    request_queue_size = 2048


class ModelServer:
    """A replica. `hold()` makes it keep every request without an answer until `release()`.

    Its answers name the weights that they come from: its own name, or the directory of an adapter.
    """

    def __init__(self, key: str, words: int = 4, pause: float = 0.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.pause = pause  # Seconds between two events of a stream
        self.words = words
        self.key = key
        self._go = threading.Event()
        self._go.set()
        self.lacks = ""  # A path that its kind of model does not serve
        self.name = ""  # Of its model; empty: it answers to every name
        self.adapters: dict[str, str] = {}  # Loaded now: directories by name
        self.dropped: list[str] = []  # Paths of requests that were held, and got no answer
        self.held = threading.Event()
        """Set once a request waits for `release()`."""
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def hold(self) -> None:
        self._go.clear()

    def release(self) -> None:
        self._go.set()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def weights(self, body: dict[str, Any]) -> str:
        """Return what answers the request; empty if it names a model that is not here."""
        own = self.name or "its model"
        model = body.get("model", own)
        return self.adapters.get(model, own if model == self.name or not self.name else "")

    def change_adapters(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]] | None:
        """Return the answer, as vLLM's paths for adapters have it; None for another path."""
        if not path.endswith("_lora_adapter"):
            return None
        name, loaded = body["lora_name"], body["lora_name"] in self.adapters
        if "lora_path" in body and loaded:
            return 400, {"error": {"message": f"The lora adapter '{name}' is already loaded."}}
        if "lora_path" not in body and not loaded:
            return 404, {"error": {"message": f"The lora adapter '{name}' cannot be found."}}
        self.adapters.pop(name, None)
        if "lora_path" in body:
            self.adapters[name] = body["lora_path"]
        return 200, {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Not to the test's output."""

            def do_GET(self) -> None:
                server.paths.append(self.path)
                listed = [{"id": server.name or "tiny"}]
                listed += [{"id": name, "root": root} for name, root in server.adapters.items()]
                self._send(200, {"path": self.path, "data": listed})

            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                form = (self.headers["Content-Type"] or "").startswith("multipart/")
                body: dict[str, Any] = {"form": sent} if form else json.loads(sent)
                server.paths.append(self.path)
                server.requests.append(body)
                if self.headers["Authorization"] != f"Bearer {server.key}":
                    self._send(401, {"error": "Unauthorized"})
                    return
                if self.path == server.lacks:
                    self._send(404, {"detail": "Not Found"})
                    return
                weights, changed = server.weights(body), server.change_adapters(self.path, body)
                if changed or not weights:
                    self._send(*(changed or NO_MODEL))
                    return
                if not server._go.is_set():
                    server.held.set()
                    server._go.wait()
                    server.dropped.append(self.path)
                    self.close_connection = True  # It dies with its requests
                    return
                usage = {"prompt_tokens": 5, "completion_tokens": server.words}
                if not body.get("stream"):
                    text = f'{weights} says "prompt_tokens": 999, '
                    answer = {"choices": [{"text": text}], "usage": usage}
                    self._send(200, {"text": text} if form else answer)
                    return
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for _ in range(server.words):
                    self._event({"choices": [{"text": "word"}]})
                    time.sleep(server.pause)
                if body.get("stream_options", {}).get("include_usage"):
                    self._event({"choices": [], "usage": usage})
                self._event("[DONE]")
                self.wfile.write(b"0\r\n\r\n")

            def _event(self, content: object) -> None:
                text = content if isinstance(content, str) else json.dumps(content)
                data = f"data: {text}\n\n".encode()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

            def _send(self, status: int, content: dict[str, Any]) -> None:
                data = json.dumps(content, separators=(",", ":")).encode()  # As vLLM does
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler
