"""A constant rate of completions, and what became of every one of them.

    .venv/bin/python -m tests.bench.load http://10.77.0.11:8000 tiny --rate 5 --seconds 60
    .venv/bin/python -m tests.bench.load URL MODEL --rate 50 --seconds 20 --streamed 0.5

The key is read from CLUSTERCTL_API_KEY. Requests are sent at their times, whether earlier ones were
answered or not, each over a connection of its own unless --keep-alive: a slow server gets more of
them at once, not fewer. Nothing is sent twice, so every request that fails is counted. SIGINT and
SIGTERM end it early: answers that are due are awaited. The result is JSON on stdout; exit 1 if a
request was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

END_OF_STREAM = "data: [DONE]"


@dataclass(frozen=True)
class Load:
    """What is sent. `rate` is requests a second, for `seconds`; `streamed` the share that is."""

    url: str  # Without /v1
    model: str
    rate: float
    seconds: float
    key: str = field(default="", repr=False)
    streamed: float = 0.0
    tokens: int = 8
    prompt: str = "Count to ten."
    timeout: float = 180.0  # Seconds for one whole answer
    keep_alive: bool = False
    other: str = ""  # The address of another gateway, for a request to which this one says nothing


@dataclass(frozen=True)
class Outcome:
    """What became of one request."""

    kind: str  # whole | failed (no answer had begun) | broken (it ended before its end)
    seconds: float  # Until its end
    first: float = 0.0  # Seconds until the first byte of the answer's body
    why: str = ""
    at: float = 0.0  # Seconds after the load began, when it was sent
    streamed: bool = False
    elsewhere: bool = False  # The other gateway was asked


@dataclass
class LoadReport:
    """Every request that was sent, by what became of it."""

    outcomes: list[Outcome] = field(default_factory=list)

    def count(self, kind: str) -> int:
        return sum(outcome.kind == kind for outcome in self.outcomes)

    @property
    def lost(self) -> int:
        """Requests without a whole answer, those whose answer had begun included."""
        return len(self.outcomes) - self.count("whole")

    def latency(self, share: float) -> float:
        """Return the seconds within which that share of the whole answers ended."""
        times = sorted(one.seconds for one in self.outcomes if one.kind == "whole")
        return times[min(int(len(times) * share), len(times) - 1)] if times else 0.0

    def to_json(self) -> dict[str, Any]:
        whole = [one for one in self.outcomes if one.kind == "whole"]
        lost = [one.at for one in self.outcomes if one.kind != "whole"]
        return {
            "sent": len(self.outcomes),
            "whole": len(whole),
            "failed": self.count("failed"),
            "broken": self.count("broken"),
            "elsewhere": sum(one.elsewhere for one in self.outcomes),
            "why": dict(Counter(one.why for one in self.outcomes if one.why)),
            # From the first request that was lost to the last one
            "lost_within_seconds": round(max(lost) - min(lost), 1) if lost else 0.0,
            "p50_seconds": round(self.latency(0.5), 4),
            "p99_seconds": round(self.latency(0.99), 4),
            "longest_seconds": round(max((one.seconds for one in whole), default=0.0), 4),
            "first_byte_seconds": round(
                statistics.median([one.first for one in whole]) if whole else 0.0, 4
            ),
        }


async def send_load(load: Load, stop: asyncio.Event | None = None) -> LoadReport:
    """Send the load and wait for all answers. `stop` ends it early: no more requests are sent."""
    report = LoadReport()
    limits = httpx2.Limits(max_keepalive_connections=100 if load.keep_alive else 0)
    headers = {"Authorization": f"Bearer {load.key}"} if load.key else {}
    async with httpx2.AsyncClient(
        timeout=load.timeout, trust_env=False, limits=limits, headers=headers, verify=False
    ) as client:
        began, tasks = time.monotonic(), []
        for number in range(round(load.rate * load.seconds)):
            wait = began + number / load.rate - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            if stop and stop.is_set():
                break
            # Spread evenly: of 4 requests with a share of 0.25, the fourth is streamed.
            streamed = int((number + 1) * load.streamed) > int(number * load.streamed)
            sent = _ask(client, load, number / load.rate, streamed=streamed)
            tasks.append(asyncio.create_task(sent))
        report.outcomes.extend(await asyncio.gather(*tasks))
    return report


def run_load(load: Load) -> LoadReport:
    """Send the load from this thread, and wait for all answers."""
    return asyncio.run(send_load(load))


async def _until_signal(load: Load) -> LoadReport:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await send_load(load, stop)


async def _ask(client: httpx2.AsyncClient, load: Load, at: float, *, streamed: bool) -> Outcome:
    """Send a request, and once more to the other gateway if the first one does not answer: what a
    client with two addresses does."""
    first = await _send(client, load, load.url, at, streamed=streamed)
    if first.kind != "failed" or not load.other:
        return first
    again = await _send(client, load, load.other, at, streamed=streamed)
    return replace(again, seconds=first.seconds + again.seconds, elsewhere=True)


async def _send(
    client: httpx2.AsyncClient, load: Load, url: str, at: float, *, streamed: bool
) -> Outcome:
    body: dict[str, Any] = {"model": load.model, "prompt": load.prompt, "max_tokens": load.tokens}
    body |= {"ignore_eos": True}  # vLLM's own: answers of one length
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    started, first = time.monotonic(), 0.0

    def ended(kind: str, why: str = "") -> Outcome:
        spent = time.monotonic() - started
        return Outcome(kind, spent, first, why, at, streamed)

    try:
        async with client.stream("POST", f"{url}/v1/completions", json=body) as response:
            if response.status_code != httpx2.codes.OK:
                await response.aread()
                return ended("failed", f"HTTP {response.status_code}")
            content = []
            async for text in response.aiter_text():
                first = first or time.monotonic() - started
                content.append(text)
    except httpx2.HTTPError as error:
        return ended("broken" if first else "failed", type(error).__name__)
    return ended(*_judged("".join(content), streamed=streamed))


def _judged(content: str, *, streamed: bool) -> tuple[str, str]:
    """Return whether a complete HTTP answer is a whole answer, and why not."""
    if streamed:
        events = [line for line in content.splitlines() if line.startswith("data: ")]
        if any('"error"' in event for event in events):
            return "broken", "an error event"
        whole = bool(events) and events[-1] == END_OF_STREAM
        return ("whole", "") if whole else ("broken", "no end of the stream")
    try:
        json.loads(content)["choices"][0]["text"]
    except (ValueError, LookupError, TypeError):
        return "broken", "no completion in the answer"
    return "whole", ""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("url", help="of the service or the gateway, without /v1")
    parser.add_argument("model")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--streamed", type=float, default=0.0, help="share, 0 to 1")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--keep-alive", action="store_true")
    parser.add_argument("--other", default="", help="of a gateway to ask where this one is silent")
    options = parser.parse_args(argv)
    key = os.environ.get("CLUSTERCTL_API_KEY", "")
    report = asyncio.run(_until_signal(Load(key=key, **vars(options))))
    print(json.dumps(report.to_json(), indent=1))  # noqa: T201
    return 1 if report.lost else 0


if __name__ == "__main__":
    sys.exit(main())
