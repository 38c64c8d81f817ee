"""Stands for `vllm serve` on a real Ray: a placement group, an actor with a GPU per rank, named as
vLLM names them, and the endpoints that the supervisor looks at. Ends when an actor dies, as vLLM
does."""

# ruff: noqa: T201 - what a program prints is its log

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

OWN = sys.argv[3]  # The node that it runs on


class Worker:
    def wait(self) -> None:
        threading.Event().wait()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer({"data": [{"id": "tiny"}]} if self.path == "/v1/models" else {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"choices": [{"text": "x"}]})

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


port, ranks = int(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False)
# The first rank sits beside its driver, as vLLM asks for it.
beside = {f"node:{OWN}": 0.001}
group = placement_group([{"GPU": 1, **(beside if rank == 0 else {})} for rank in range(ranks)])
ray.get(group.ready())
remote: Any = ray.remote(num_gpus=1, num_cpus=0)(Worker)
workers = [
    remote.options(
        name=f"vllm_Worker_x1_TP{rank}",
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank),
    ).remote()
    for rank in range(ranks)
]
runs = [worker.wait.remote() for worker in workers]
server = ThreadingHTTPServer((OWN, port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
ray.wait(runs, num_returns=1)
print("EngineDeadError: a worker died", flush=True)
os._exit(1)
