"""What happens to a gateway's own files and process while clients ask: none of them notices."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from clusterctl.node.documents import NamedKey
from clusterctl.node.gateway_members import MemberProof
from tests.bench.load import Load, run_load
from tests.fakes.ports import port_of, reserved
from tests.unit.node.test_gateway import CLUSTER_KEY, READY, GatewayBench

pytestmark = [pytest.mark.usefixtures("haproxy"), pytest.mark.long]

RATE, SECONDS, BEFORE = 20.0, 4.0, 1.0


def another_service(bench: GatewayBench) -> None:
    """Makes the gateway write its files anew, and HAProxy read them."""
    bench.documents["other"] = bench.service("other", bench.replicas)


def files(bench: GatewayBench, pattern: str) -> list[Path]:
    found = list(bench.paths.state.parent.rglob(pattern))
    assert found, pattern
    return found


def without_configuration(bench: GatewayBench) -> None:
    for file in files(bench, "haproxy.cfg"):
        file.unlink()


def with_garbage(bench: GatewayBench) -> None:
    for file in files(bench, "haproxy.cfg"):
        file.write_text("garbage\n")
    another_service(bench)


def without_maps(bench: GatewayBench) -> None:
    for file in files(bench, "*.map"):
        file.unlink()
    another_service(bench)


def hung_up(bench: GatewayBench) -> None:
    named = f"haproxy.*{bench.paths.state.parent}"
    found = subprocess.run(["pgrep", "-f", named], capture_output=True, text=True, check=True)
    for pid in found.stdout.split():
        os.kill(int(pid), signal.SIGHUP)


def a_stranger_on_a_replicas_port(bench: GatewayBench) -> None:
    port = bench.replicas[0].port
    bench.replicas[0].close()
    stranger = socket.create_server(("127.0.0.1", port))

    def greet() -> None:
        with stranger:
            while True:
                client, _ = stranger.accept()
                with client, suppress(OSError):  # Those that only look whether the port is open
                    client.sendall(b"220 mail\r\n")

    threading.Thread(target=greet, daemon=True).start()


def a_flapping_proof(bench: GatewayBench) -> None:
    port = bench.replicas[0].port
    for n in range(10):
        threading.Timer(
            0.2 * n, bench.proofs.__setitem__, (port, MemberProof(ready=False) if n % 2 else READY)
        ).start()


def many_keys(bench: GatewayBench) -> None:
    digests = (hashlib.sha256(f"{n}".encode()).hexdigest() for n in range(5000))
    bench.keys += [NamedKey(f"u{n}", digest, 1.0) for n, digest in enumerate(digests)]


@pytest.mark.parametrize(
    "fault",
    [
        without_configuration,
        with_garbage,
        without_maps,
        hung_up,
        a_stranger_on_a_replicas_port,
        a_flapping_proof,
        many_keys,
    ],
)
def test_no_request_is_lost(fault: Callable[[GatewayBench], None]) -> None:
    with tempfile.TemporaryDirectory(prefix="gw") as path, reserved() as port:
        bench, over = GatewayBench(Path(path), port_of(port)), threading.Event()
        bench.await_up()

        def follow() -> None:
            while not over.wait(0.2):
                bench.follow()

        following = threading.Thread(target=follow)
        following.start()
        broken = list[str]()

        def break_it() -> None:
            fault(bench)
            broken.append(fault.__name__)

        breaking = threading.Timer(BEFORE, break_it)
        breaking.start()
        url = f"http://127.0.0.1:{bench.port}"
        report = run_load(Load(url, "tiny", RATE, SECONDS, CLUSTER_KEY, streamed=0.5, timeout=20))
        breaking.join()
        over.set()
        following.join()
        state = bench.state()
        bench.stop()
    assert (len(report.outcomes), report.lost) == (RATE * SECONDS, 0)
    assert state.state == "up"
    assert broken, "the fault was made"
