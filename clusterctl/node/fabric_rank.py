"""One rank of the gate: `python3 node.pyz fabric-rank`, a process beside Ray's worker.

It takes orders as JSON lines on stdin and tells how far it came as JSON lines on stdout, so that
a collective that hangs is a process that can be ended, and never takes Ray's worker with it. The
end of stdin ends it at once, wherever it hangs.

    {"do": "store", "ip": IP}                                      -> {"phase": "store", "port": N}
    {"do": "join", "ip": IP, "port": N, "rank": R, "world": W, "device": D, "gpus": [RANK, ...],
     "gpu_device": "cuda", "gpu_backend": "nccl", "within": S}
                                    -> joined, correct, measured; for gloo, then for gpu_backend
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import queue
import sys
import threading
from typing import IO, Any, Dict, Mapping

from clusterctl.node.fabric_measure import Bench

Order = Mapping[str, Any]


def main() -> int:
    """Serve orders until stdin ends."""
    out = _private_stdout()
    orders: queue.Queue[Order] = queue.Queue()
    threading.Thread(target=_read, args=(sys.stdin, orders), daemon=True).start()
    try:
        _Rank(out).serve(orders)
    except Exception as error:
        _say(out, phase="error", text=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


def _private_stdout() -> IO[str]:
    """What libraries print on stdout (Gloo does) goes to stderr instead."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return out


def _read(stream: IO[str], orders: queue.Queue[Order]) -> None:
    for line in stream:
        orders.put(json.loads(line))
    os._exit(3)


def _say(out: IO[str], **fields: Any) -> None:
    print(json.dumps(fields), file=out, flush=True)


class _Rank:
    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        self._store: Any = None
        _say(out, phase="imported", torch=str(self._torch.__version__))

    def serve(self, orders: queue.Queue[Order]) -> None:
        while True:
            order = orders.get()
            if order["do"] == "store":
                self._open_store(order)
            else:
                self._join(order)

    def _open_store(self, order: Order) -> None:
        """On rank 0's node IP and an ephemeral port, where vLLM's executor has it too."""
        self._store = self._dist.TCPStore(
            order["ip"], 0, None, is_master=True, wait_for_workers=False
        )
        _say(self._out, phase="store", port=self._store.port)

    def _join(self, order: Order) -> None:
        within = datetime.timedelta(seconds=order["within"])
        if self._store is None:
            self._store = self._dist.TCPStore(
                order["ip"], order["port"], None, is_master=False, timeout=within
            )
        self._store.set_timeout(within)
        self._dist.init_process_group(
            "gloo", store=self._store, rank=order["rank"], world_size=order["world"], timeout=within
        )
        self._prove("gloo", None, "cpu", order["world"])
        gpus = order["gpus"]
        if gpus:
            backend, kind = order["gpu_backend"], order["gpu_device"]
            group = self._dist.new_group(gpus, backend=backend, timeout=within)
            if order["device"] >= 0:
                getattr(self._torch, kind).set_device(order["device"])
                self._prove(backend, group, f"{kind}:{order['device']}", len(gpus))
        _say(self._out, phase="done")

    def _prove(self, backend: str, group: Any, device: str, ranks: int) -> None:
        bench = Bench(self._torch, self._dist, group, device, ranks)
        bench.join()
        _say(self._out, phase="joined", backend=backend)
        wrong = bench.wrong_elements()
        if wrong:
            text = f"{backend} all-reduce gave {wrong} wrong elements"
            _say(self._out, phase="error", backend=backend, text=text)
            return
        _say(self._out, phase="correct", backend=backend)
        found: Dict[str, Any] = bench.measure()
        _say(self._out, phase="measured", backend=backend, **found)
