"""All-reduces with torch.distributed: is the result right, and how fast is it."""

from __future__ import annotations

import time
from typing import Any, Dict

# Values 0 to 250, prime, so that a shifted or repeated chunk does not fit. Sums of them over
# 60,000 ranks are exact in float32.
PATTERN = 251

_CHECKED = 2**20  # Elements whose sum is compared, 4 MiB
_SMALL_ROUNDS = 50
_WARM_UP = 20  # NCCL loads the kernel for small messages with the first of them
_FIRST = 2**18
_LARGEST = 2**28  # Bytes: 256 KiB to 256 MiB
# Seconds of one all-reduce at which the tensor grows no more: then what a queue on the way holds
# (a token bucket's burst, a socket's buffer) no longer shows in the rate.
_LONG_ENOUGH = 0.15
_MEASURED = 2.0
_ROUNDS = (3, 40)


class Bench:
    """All ranks of a group must call the same methods in the same order."""

    def __init__(self, torch: Any, dist: Any, group: Any, device: str, ranks: int) -> None:
        """`ranks`: how many are in the group; `group` None is the default one."""
        self._torch = torch
        self._dist = dist
        self._group = group
        self._device = device
        self._ranks = ranks

    def join(self) -> None:
        """The first all-reduce, in which libraries make their connections."""
        self._reduce(self._zeros(8))
        self._settle()

    def wrong_elements(self) -> int:
        """How many elements of a sum over all ranks are not what they must be."""
        torch, own = self._torch, self._dist.get_rank(self._group) + 1
        pattern = (torch.arange(_CHECKED, device=self._device) % PATTERN).to(torch.float32)
        found = pattern * own
        self._reduce(found)
        self._settle()
        expected = pattern * (self._ranks * (self._ranks + 1) // 2)
        return int((found != expected).sum().item())

    def measure(self) -> Dict[str, Any]:
        """`seconds` of an all-reduce of `size` bytes, `latency`: of a small one in s; the same on
        every rank."""
        small = self._zeros(8)
        self._seconds(small, _WARM_UP)
        latency = self._slowest(self._seconds(small, _SMALL_ROUNDS) / _SMALL_ROUNDS)
        size, one = self._fitting_size()
        least, most = _ROUNDS
        rounds = max(least, min(most, round(_MEASURED / one)))
        seconds = self._slowest(self._seconds(self._zeros(size), rounds) / rounds)
        return {"seconds": seconds, "latency": latency, "size": size}

    def _fitting_size(self) -> tuple[int, float]:
        """Bytes of a tensor that takes long enough, and the seconds it took."""
        size = _FIRST
        while True:
            tensor = self._zeros(size)
            self._seconds(tensor, 1)
            one = self._slowest(self._seconds(tensor, 1))
            if one >= _LONG_ENOUGH or size >= _LARGEST:
                return size, one
            size *= 4

    def _seconds(self, tensor: Any, rounds: int) -> float:
        self._settle()
        began = time.perf_counter()
        for _ in range(rounds):
            self._reduce(tensor)
        self._settle()
        return time.perf_counter() - began

    def _slowest(self, seconds: float) -> float:
        """The longest time of all ranks, known to all of them."""
        told = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(told, op=self._dist.ReduceOp.MAX, group=self._group)
        return float(told.item())

    def _reduce(self, tensor: Any) -> None:
        self._dist.all_reduce(tensor, group=self._group)

    def _zeros(self, size: int) -> Any:
        """`size` bytes; sums of zeros stay what they are, however often."""
        return self._torch.zeros(size // 4, dtype=self._torch.float32, device=self._device)

    def _settle(self) -> None:
        # torch.cpu has it too, and does nothing.
        getattr(self._torch, self._device.partition(":")[0]).synchronize()
