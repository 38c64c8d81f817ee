"""One rank of the gate: `python3 node.pyz fabric-rank`, a process next to Ray's worker.

It takes orders as JSON lines on stdin and reports its progress as JSON lines on stdout. As a
separate process it can be ended when a collective hangs, without ending Ray's worker. It ends at
once when stdin ends, wherever it hangs.

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
import time
from typing import IO, Any, Dict, Mapping

Order = Mapping[str, Any]

# Values 0 to 250: a prime period, so that a shifted or repeated chunk does not match. Their sums
# over 60,000 ranks are exact in float32.
PATTERN = 251

_CHECKED = 2**20  # Elements whose sum is compared, 4 MiB
_SMALL_ROUNDS = 50
_WARM_UP = 20  # NCCL loads the kernel for small messages with the first of them
_FIRST = 2**18
_LARGEST = 2**28  # Bytes: 256 KiB to 256 MiB
# Seconds. Once one all-reduce takes this long the tensor is large enough: buffers on the path (a
# token bucket's burst, a socket's buffer) no longer distort the rate.
_LONG_ENOUGH = 0.15
_MEASURED = 2.0  # Seconds that the measurement takes, within the limits of _ROUNDS
_ROUNDS = (3, 40)


def main() -> int:
    """Serve orders until stdin ends."""
    # Redirect libraries' prints on stdout (Gloo has some) to stderr.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    orders: queue.Queue[Order] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            orders.put(json.loads(line))
        os._exit(3)

    threading.Thread(target=read, daemon=True).start()
    try:
        _Rank(out).serve(orders)
    except Exception as error:
        _say(out, phase="error", text=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


def _say(out: IO[str], **fields: Any) -> None:
    print(json.dumps(fields), file=out, flush=True)


class _Rank:
    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        _say(out, phase="imported", torch=str(self._torch.__version__))

    def serve(self, orders: queue.Queue[Order]) -> None:
        store: Any = None
        while True:
            order = orders.get()
            if order["do"] == "store":
                # On rank 0's node IP and an ephemeral port, as in vLLM's executor.
                store = self._dist.TCPStore(
                    order["ip"], 0, None, is_master=True, wait_for_workers=False
                )
                _say(self._out, phase="store", port=store.port)
                continue
            within = datetime.timedelta(seconds=order["within"])
            if store is None:
                store = self._dist.TCPStore(
                    order["ip"], order["port"], None, is_master=False, timeout=within
                )
            store.set_timeout(within)
            self._dist.init_process_group(
                "gloo", store=store, rank=order["rank"], world_size=order["world"], timeout=within
            )
            self._reduce_all("gloo", None, "cpu", order["world"])
            gpus = order["gpus"]
            if gpus:
                backend, kind = order["gpu_backend"], order["gpu_device"]
                group = self._dist.new_group(gpus, backend=backend, timeout=within)
                if order["device"] >= 0:
                    getattr(self._torch, kind).set_device(order["device"])
                    self._reduce_all(backend, group, f"{kind}:{order['device']}", len(gpus))
            _say(self._out, phase="done")

    def _reduce_all(self, backend: str, group: Any, device: str, ranks: int) -> None:
        """Join the group of `ranks`, then check and time all-reduces; report each phase."""
        bench = AllReduceBench(self._torch, self._dist, group, device)
        bench.seconds(bench.zeros(8), 1)  # libraries connect in the first one
        _say(self._out, phase="joined", backend=backend)
        wrong = bench.wrong_elements(ranks)
        if wrong:
            text = f"{backend} all-reduce gave {wrong} wrong elements"
            _say(self._out, phase="error", backend=backend, text=text)
            return
        _say(self._out, phase="correct", backend=backend)
        _say(self._out, phase="measured", backend=backend, **bench.measure())


class AllReduceBench:
    """All-reduces with torch.distributed, checked for correct results and timed.

    All ranks of a group must call the same methods in the same order. `group` None means the
    default group.
    """

    def __init__(self, torch: Any, dist: Any, group: Any, device: str) -> None:
        self._torch = torch
        self._dist = dist
        self._group = group
        self._device = device

    def wrong_elements(self, ranks: int) -> int:
        """Return the number of wrong elements in an all-reduce of 4 MiB over `ranks`."""
        torch, own = self._torch, self._dist.get_rank(self._group) + 1
        pattern = (torch.arange(_CHECKED, device=self._device) % PATTERN).to(torch.float32)
        found = pattern * own
        self._dist.all_reduce(found, group=self._group)
        self._synchronize()
        return int((found != pattern * (ranks * (ranks + 1) // 2)).sum().item())

    def measure(self) -> Dict[str, Any]:
        """Return `seconds` of an all-reduce of `size` bytes, and `latency`, the seconds of one of 8
        bytes. All ranks return the same values."""
        small = self.zeros(8)
        self.seconds(small, _WARM_UP)
        latency = self._slowest(self.seconds(small, _SMALL_ROUNDS) / _SMALL_ROUNDS)
        size = _FIRST
        while True:
            tensor = self.zeros(size)
            self.seconds(tensor, 1)
            one = self._slowest(self.seconds(tensor, 1))
            if one >= _LONG_ENOUGH or size >= _LARGEST:
                break
            size *= 4
        least, most = _ROUNDS
        rounds = max(least, min(most, round(_MEASURED / one)))
        seconds = self._slowest(self.seconds(self.zeros(size), rounds) / rounds)
        return {"seconds": seconds, "latency": latency, "size": size}

    def zeros(self, size: int) -> Any:
        """Return `size` bytes of zeros, which stay zero however often they are summed."""
        return self._torch.zeros(size // 4, dtype=self._torch.float32, device=self._device)

    def seconds(self, tensor: Any, rounds: int) -> float:
        """Return the seconds of `rounds` all-reduces."""
        self._synchronize()
        began = time.perf_counter()
        for _ in range(rounds):
            self._dist.all_reduce(tensor, group=self._group)
        self._synchronize()
        return time.perf_counter() - began

    def _slowest(self, seconds: float) -> float:
        """Return the largest value over all ranks, on every rank."""
        value = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(value, op=self._dist.ReduceOp.MAX, group=self._group)
        return float(value.item())

    def _synchronize(self) -> None:
        # torch.cpu has synchronize() too; it does nothing.
        getattr(self._torch, self._device.partition(":")[0]).synchronize()
