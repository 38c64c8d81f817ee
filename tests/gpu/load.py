"""A closed loop of completions from several processes, beside what the servers' own counters say.

    CLUSTERCTL_API_KEY=... python -m tests.gpu.load URL MODEL REQUESTS SECONDS SERVER...

REQUESTS are under way at once, each of 256 random tokens in and 128 out; one that is answered is
followed by another until SECONDS are over, and all are awaited; a round that is not counted comes
first, in which vLLM compiles kernels for so many requests. No prompt is that of another load or
run, which vLLM's prefix cache would still have. Answers come whole, as one process could not read
20,000 tokens/s as streams; the times to the first and to each further token are the servers' own.
Prints a `Measured` as JSON. Standard library only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import secrets
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

PROMPT, ANSWER = 256, 128
PROCESSES = 8
MOMENT = 0.2  # Seconds in which each place sends a request
TIMEOUT = 180.0
FIRST, FURTHER = "time_to_first_token_seconds", "request_time_per_output_token_seconds"
_COUNTER = re.compile(rf"vllm:((?:{FIRST}|{FURTHER})_(?:sum|count))(?:{{.*}})? (\S+)")


@dataclass(frozen=True)
class Measured:
    """Output tokens/s of all requests, and the mean time to the first and to each further token."""

    requests: int
    answered: int
    tokens_per_s: float
    first_token_ms: float
    token_ms: float


def measure(
    url: str, model: str, requests: int, seconds: float, servers: Sequence[str]
) -> Measured:
    """`servers` are those whose counters are read: replicas, not their gateway."""
    run, count = secrets.token_hex(8), min(PROCESSES, requests)
    shares = [requests // count + (number < requests % count) for number in range(count)]

    def asked(when: str, seconds: float) -> list[tuple[str, str, int, float, str]]:
        named = [(share, f"{run} {when} {number}") for number, share in enumerate(shares)]
        return [(url, model, share, seconds, seed) for share, seed in named]

    with multiprocessing.Pool(count) as pool:
        pool.starmap(_process, asked("first", MOMENT))
        before = _counters(servers)
        began = time.monotonic()
        counts = [
            count for part in pool.starmap(_process, asked("then", seconds)) for count in part
        ]
    took = time.monotonic() - began
    spent = {name: value - before.get(name, 0.0) for name, value in _counters(servers).items()}
    first, further = (spent[f"{n}_sum"] / spent[f"{n}_count"] * 1000 for n in (FIRST, FURTHER))
    return Measured(requests, len(counts), sum(counts) / took, first, further)


def _process(url: str, model: str, requests: int, seconds: float, seed: str) -> list[int]:
    """Return the tokens of each answer that one process got."""
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(requests) as threads:
        parts = threads.map(lambda n: _place(url, model, until, f"{seed} {n}"), range(requests))
        return [count for part in parts for count in part]


def _place(url: str, model: str, until: float, seed: str) -> list[int]:
    parts, draw, counts = urlsplit(url), random.Random(seed), list[int]()  # noqa: S311  (prompts, not secrets)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT)
    while time.monotonic() < until:
        prompt = [draw.randrange(100, 500) for _ in range(PROMPT)]  # the tiny model has 512
        body = {"model": model, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0}
        text = json.dumps({**body, "ignore_eos": True})
        connection.request("POST", f"{parts.path}/completions", text, _headers())
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise OSError(f"HTTP {answer.status}: {said[:300].decode(errors='replace')}")
        counts.append(json.loads(said)["usage"]["completion_tokens"])
    return counts


def _counters(servers: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for url in servers:
        asked = Request(f"{url.removesuffix('/v1')}/metrics", headers=_headers())  # noqa: S310
        with urlopen(asked, timeout=30) as answer:  # noqa: S310  (the test gave the URL)
            for name, value in _COUNTER.findall(answer.read().decode()):
                found[name] = found.get(name, 0.0) + float(value)
    return found


def _headers() -> dict[str, str]:
    key = os.environ["CLUSTERCTL_API_KEY"]
    return {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}


if __name__ == "__main__":
    api, name, at_once, seconds, *exporters = sys.argv[1:]
    found = measure(api, name, int(at_once), float(seconds), exporters)
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
