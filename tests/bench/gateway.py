"""What the gateway adds to the time of an answer, and what it makes of several replicas.

    CLUSTERCTL_API_KEY=... .venv/bin/python -m tests.bench.gateway tiny \\
        http://10.77.0.11:8000 http://10.77.0.11:8100 http://10.77.0.12:8100
    ... MODEL GATEWAY REPLICA... --blocks 10 --requests 40 --rate 5 --wave 16

Blocks of requests go through the gateway and to the replicas directly, in turns, so that whatever
else the machine does falls on both. Directly each replica gets its share of the rate, as behind
the gateway: on a CPU, threads of one that has just answered delay the other. Then waves of
requests at once: to each replica alone, and as many for each of them through the gateway.
Connections are kept, as clients of a model do. The result is JSON on stdout; exit 1 if a request
was lost. Answers that are not whole count for no throughput.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

from tests.bench.load import Load, LoadReport, send_load


async def _block(load: Load, urls: Sequence[str]) -> list[LoadReport]:
    """Send a block of requests, each URL's share between those of the others."""

    async def share(number: int, url: str) -> LoadReport:
        await asyncio.sleep(number / load.rate)
        return await send_load(replace(load, url=url, rate=load.rate / len(urls)))

    return await asyncio.gather(*(share(*each) for each in enumerate(urls)))


def _wave(load: Load, url: str, requests: int, waves: LoadReport) -> float:
    """Send these requests at once; return how many a second had a whole answer."""
    began = time.monotonic()
    report = asyncio.run(send_load(replace(load, url=url, rate=1e6, seconds=requests / 1e6)))
    waves.outcomes.extend(report.outcomes)
    return report.count("whole") / (time.monotonic() - began)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("gateway", help="its URL, without /v1")
    parser.add_argument("replicas", nargs="+", help="their URLs, without /v1")
    parser.add_argument("--blocks", type=int, default=10, help="of each kind")
    parser.add_argument("--requests", type=int, default=40, help="in a block")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--wave", type=int, default=16, help="requests at once for a replica")
    parser.add_argument("--wave-tokens", type=int, default=128)
    options = parser.parse_args(argv)
    if any(isinstance(value, int | float) and value <= 0 for value in vars(options).values()):
        parser.error("all numbers must be greater than 0")
    load = Load(
        options.gateway,
        options.model,
        options.rate,
        options.requests / options.rate,
        os.environ.get("CLUSTERCTL_API_KEY", ""),
        tokens=options.tokens,
        keep_alive=True,
    )
    through, directly = LoadReport(), LoadReport()
    for _ in range(options.blocks):
        for urls, report in (([options.gateway], through), (options.replicas, directly)):
            for each in asyncio.run(_block(load, urls)):
                report.outcomes.extend(each.outcomes)
    found = {
        name: {
            "sent": len(report.outcomes),
            "lost": report.lost,
            "p50_ms": round(report.latency(0.5) * 1000, 2),
            "p99_ms": round(report.latency(0.99) * 1000, 2),
        }
        for name, report in (("gateway", through), ("directly", directly))
    }
    waves, one, all_of_them = LoadReport(), list[float](), list[float]()
    long = replace(load, tokens=options.wave_tokens)
    for _ in range(options.blocks):
        one += [_wave(long, url, options.wave, waves) for url in options.replicas]
        requests = options.wave * len(options.replicas)
        all_of_them.append(_wave(long, options.gateway, requests, waves))
    found["waves"] = {"sent": len(waves.outcomes), "lost": waves.lost}
    found["requests_per_s"] = {
        "one_replica": round(statistics.median(one), 2),
        "gateway": round(statistics.median(all_of_them), 2),
        "ratio": round(statistics.median(all_of_them) / statistics.median(one), 2),
    }
    print(json.dumps(found, indent=1))  # noqa: T201
    return 1 if through.lost or directly.lost or waves.lost else 0


if __name__ == "__main__":
    sys.exit(main())
