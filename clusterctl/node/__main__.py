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

from clusterctl.node import fabric_rank, fabric_ray, ray_watch, versions
from clusterctl.node.declared import Declared
from clusterctl.node.documents import NodeDocument
from clusterctl.node.journal import Journal
from clusterctl.node.paths import NodePaths
from clusterctl.node.supervisor import Supervisor
from clusterctl.node.timing import Timing

# Seconds to wait for node.json; then the container ends, and Docker starts it again.
DOCUMENT_TIMEOUT = 60.0

_FABRIC = {"fabric": fabric_ray.main, "fabric-rank": fabric_rank.main}


def main(argv: Optional[List[str]] = None) -> int:
    options = _parser().parse_args(argv)
    if options.command == "supervise":
        return _supervise(NodePaths(options.cluster, options.root))
    if options.command in _FABRIC:
        return _FABRIC[options.command]()
    if options.command == "ray-watch":
        ray_watch.watch(options.address, options.interval)
    else:
        print(json.dumps(asdict(versions.probe())))  # noqa: T201
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="node.pyz")
    commands = parser.add_subparsers(dest="command", required=True)
    supervise = commands.add_parser("supervise", help="keep Ray and the services running")
    supervise.add_argument("--cluster", required=True)
    supervise.add_argument("--root", type=Path, default=Path("/"))
    watch = commands.add_parser("ray-watch", help="print what the GCS says, a JSON line each time")
    watch.add_argument("--address", required=True)
    watch.add_argument("--interval", type=float, default=1.0)
    commands.add_parser("probe-versions", help="print the versions of ray, python and vllm")
    commands.add_parser("fabric", help="prove with all-reduces that the nodes reach each other")
    commands.add_parser("fabric-rank", help="one process of that proof")
    return parser


def _supervise(paths: NodePaths) -> int:
    journal = Journal(paths.journal, "")
    document = _await_document(paths, journal)
    if document is None:
        journal.write("supervisor", "failed", f"no readable {paths.node_document}")
        return 1
    supervisor = Supervisor(paths, document, Timing(), Journal(paths.journal, document.host))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    supervisor.run()
    return 0


def _await_document(paths: NodePaths, journal: Journal) -> Optional[NodeDocument]:
    declared = Declared(paths, journal)
    deadline = time.monotonic() + DOCUMENT_TIMEOUT
    while time.monotonic() < deadline:
        document = declared.node()
        if document:
            return document
        time.sleep(0.5)
    return None


if __name__ == "__main__":
    sys.exit(main())
