"""`python3 node.pyz supervise --cluster NAME`: what the node container runs."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import List, Optional

from clusterctl.node import fabric_rank, fabric_ray, kind_bench, prestart, ray_watch
from clusterctl.node.documents import from_json
from clusterctl.node.files import Declared, Journal, NodePaths
from clusterctl.node.kind_bench import KindBench
from clusterctl.node.probes import installed_versions
from clusterctl.node.supervisor import Supervisor
from clusterctl.node.timing import Timing

# Seconds to wait for node.json before exiting with status 1; Docker then restarts the container.
DOCUMENT_TIMEOUT = 60.0


def main(argv: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="node.pyz")
    commands = parser.add_subparsers(dest="command", required=True)
    supervise = commands.add_parser("supervise", help="keep Ray and the services running")
    supervise.add_argument("--cluster", required=True)
    supervise.add_argument("--root", type=Path, default=Path("/"))
    supervise.add_argument("--image", default="", help="the ID of this container's image")
    watch = commands.add_parser("ray-watch", help="print what the GCS says, as JSON lines")
    watch.add_argument("--address", required=True)
    watch.add_argument("--interval", type=float, default=1.0)
    watch.add_argument("--asked", type=Path, help="a file to tell to all others")
    watch.add_argument(
        "--gateway", type=Path, help="a file to tell to other gateways, on hosts that have one"
    )
    commands.add_parser("probe-versions", help="print the versions of Ray, Python and vLLM")
    bench = commands.add_parser("bench", help="measure a model by requests of its kind")
    bench.add_argument("order", type=Path, help="a file with what to send")
    commands.add_parser("fabric", help="prove with all-reduces that the nodes reach each other")
    commands.add_parser("fabric-rank", help="run one process of that proof")
    early = commands.add_parser("prestart", help="start the processes of ranks, which import vLLM")
    early.add_argument("--address", required=True)
    early.add_argument("--variables", required=True, help="of their runtime environment")
    early.add_argument("ranks", nargs="+", help="IP=COUNT")
    options = parser.parse_args(argv)

    if options.command == "supervise":
        return _supervise(NodePaths(options.cluster, options.root), options.image)
    if options.command == "fabric":
        return fabric_ray.main()
    if options.command == "fabric-rank":
        return fabric_rank.main()
    if options.command == "bench":
        kind_bench.run(from_json(KindBench, options.order.read_text()))
        return 0
    if options.command == "prestart":
        return prestart.prestart(options.address, options.variables, options.ranks)
    if options.command == "ray-watch":
        ray_watch.watch(options.address, options.interval, options.asked, options.gateway)
    else:
        print(json.dumps(asdict(installed_versions())))  # noqa: T201
    return 0


def _supervise(paths: NodePaths, image: str) -> int:
    journal = Journal(paths.journal, "")
    declared = Declared(paths, journal)
    deadline = time.monotonic() + DOCUMENT_TIMEOUT
    while (document := declared.node()) is None:
        if time.monotonic() > deadline:
            journal.write("supervisor", "failed", f"no readable {paths.node_document}")
            return 1
        time.sleep(0.5)
    journal = Journal(paths.journal, document.host)
    supervisor = Supervisor(paths, document, Timing(), journal, image=image)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    supervisor.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
