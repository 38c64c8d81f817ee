"""What the gateway adds to the time of an answer, with real replicas behind it.

    CLUSTERCTL_API_KEY=... .venv/bin/python -m tests.bench.gateway_latency tiny \\
        http://10.77.0.11:8000 http://10.77.0.11:8100 http://10.77.0.12:8100
    ... MODEL GATEWAY REPLICA... --blocks 10 --requests 40 --rate 5

Blocks of requests go through the gateway and to the replicas directly, in turns, so that whatever
else the machine does falls on both. Directly each replica gets its share of the rate, as behind
the gateway: on a CPU, threads of one that has just answered delay the other. Connections are kept,
as clients of a model do. The result is JSON on stdout, times in ms; exit 1 if a request was lost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from tests.bench.load import Load, LoadReport, send_load


async def _block(load: Load, urls: Sequence[str]) -> list[LoadReport]:
    """Send a block of requests, each URL's share between those of the others."""

    async def share(number: int, url: str) -> LoadReport:
        await asyncio.sleep(number / load.rate)
        return await send_load(replace(load, url=url, rate=load.rate / len(urls)))

    return await asyncio.gather(*(share(*each) for each in enumerate(urls)))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("gateway", help="its URL, without /v1")
    parser.add_argument("replicas", nargs="+", help="their URLs, without /v1")
    parser.add_argument("--blocks", type=int, default=10, help="of each kind")
    parser.add_argument("--requests", type=int, default=40, help="in a block")
    parser.add_argument("--rate", type=float, default=5.0, help="requests a second")
    parser.add_argument("--tokens", type=int, default=8)
    options = parser.parse_args(argv)
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
    print(json.dumps(found, indent=1))  # noqa: T201
    return 1 if through.lost or directly.lost else 0


if __name__ == "__main__":
    sys.exit(main())
