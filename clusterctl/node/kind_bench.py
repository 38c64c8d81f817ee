"""Measure a model by requests of its kind: `python3 node.pyz bench ORDER.json`, in the head's node
container. Writes its figures as `vllm bench serve` does, which makes neither sounds nor pages.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence

from clusterctl.kinds.kind import Ask
from clusterctl.kinds.known import kind_named
from clusterctl.node.endpoint import LARGEST_ANSWER

KEY = "OPENAI_API_KEY"  # Variable with the key, as for `vllm bench`

_TIMEOUT = 600.0  # Seconds for one answer
_SHOWN = 3  # Errors that are printed


@dataclass(frozen=True)
class KindBench:
    """What to send."""

    url: str  # Without a path
    model: str
    kind: str
    first: int  # Number of the first request: others than those of earlier runs
    requests: int
    concurrency: int  # At once; 0 with a rate
    rate: float  # Requests per second; 0 with a concurrency
    tokens: int  # To generate, at most
    percentiles: List[int]
    result: str  # Path of the file with the figures


@dataclass
class _Seen:
    """What came of one request."""

    seconds: float = 0.0
    tokens: int = 0  # Generated, if the answer says so
    error: str = "no answer"  # Empty: it was answered


def run(order: KindBench) -> None:
    kind = kind_named(order.kind)
    how = kind.bench
    if how is None or how.ask is None:
        raise ValueError(f"{order.kind} has no requests of its own")
    make: Callable[[int, int], Ask] = how.ask
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    seen = [_Seen() for _ in range(order.requests)]

    def send(number: int) -> None:
        ask, one = make(order.first + number, order.tokens), seen[number]
        content, body = ask.encoded(order.model)
        headers = {"Content-Type": content, "Authorization": f"Bearer {os.environ[KEY]}"}
        request = urllib.request.Request(order.url + ask.path, body, headers)  # noqa: S310 - ours
        started = time.monotonic()
        try:
            with opener.open(request, timeout=_TIMEOUT) as opened:
                answer = json.loads(opened.read(LARGEST_ANSWER))  # A longer one is no JSON then
            one.seconds = time.monotonic() - started
            kind.answer(answer)
            one.tokens = int((answer.get("usage") or {}).get("completion_tokens") or 0)
            one.error = ""
        except (OSError, ValueError, HTTPException) as error:
            one.error = str(error) or repr(error)

    started = time.monotonic()
    with ThreadPoolExecutor(order.concurrency or order.requests) as pool:
        for number in range(order.requests):
            if order.rate and number:
                time.sleep(random.expovariate(order.rate))  # As independent users' requests come
            pool.submit(send, number)
    duration = time.monotonic() - started

    for error in [one.error for one in seen if one.error][:_SHOWN]:
        print(error, file=sys.stderr)  # noqa: T201 - the caller shows it
    good = [one for one in seen if not one.error]
    figures = {
        "num_prompts": order.requests,
        "completed": len(good),
        "duration": duration,
        "request_throughput": len(good) / duration,
        "input_sequence_throughput": len(good) * how.units / duration,
        "total_token_throughput": sum(one.tokens for one in good) / duration,
        **_latencies([one.seconds * 1e3 for one in good] or [0.0], order.percentiles),
    }
    Path(order.result).write_text(json.dumps(figures))


def _latencies(milliseconds: Sequence[float], percentiles: Sequence[int]) -> Dict[str, Any]:
    """Return the nearest ranks, under vLLM's names."""
    ordered = sorted(milliseconds)
    return {
        f"p{each}_e2el_ms": ordered[max(0, math.ceil(each / 100 * len(ordered)) - 1)]
        for each in percentiles
    }
