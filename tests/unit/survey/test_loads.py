"""How busy hosts and services are: figures out of /proc, nvidia-smi and vLLM's metrics."""

from __future__ import annotations

import io
import threading
import time
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from clusterctl import deadlines
from clusterctl.errors import MALFORMED
from clusterctl.facts.gpu_probe import NVIDIA
from clusterctl.facts.model import HostFacts
from clusterctl.inventory.model import Host
from clusterctl.reporting.status_view import status_document, status_screen
from clusterctl.serving.service import build_service
from clusterctl.survey.load import (
    host_loads,
    parse_counters,
    parse_load,
    service_counters,
    service_load,
)
from clusterctl.survey.status import assess, with_loads
from clusterctl.transport.connect import Connections
from clusterctl.transport.local import LocalTransport
from tests.fakes.ports import port_of, reserved
from tests.fakes.surveys import survey_of
from tests.unit.serving.launches import launch
from tests.unit.survey.test_cluster_status import INVENTORY, facts, healthy
from tests.unit.survey.test_unreadable_documents import TINY

__all__ = ["facts"]

PROC = "12.34 10.0 8.1 3/999 4242\n16\nMemTotal: 65536 kB\nMemAvailable: 49152 kB\n"
METRICS = (Path(__file__).parent / "vllm-0.32-metrics.txt").read_text()


def test_a_host_with_gpus() -> None:
    load = parse_load(f"{PROC}0, 87, 61, 40960, 81920\n1, [N/A], 55, [N/A], [N/A]\n")

    assert (load.cpus, load.load) == (16, 12.34)
    assert (load.memory, load.memory_used) == (64 * 2**20, 16 * 2**20)
    assert [(gpu.use, gpu.celsius) for gpu in load.gpus] == [(0.87, 61.0), (None, 55.0)]
    assert (load.gpus[0].memory_used, load.gpus[0].memory) == (40 * 2**30, 80 * 2**30)
    assert load.gpus[1].memory is None


def test_a_host_without_gpus_or_with_a_driver_that_fails() -> None:
    assert parse_load(PROC).gpus == ()
    assert parse_load(PROC + "NVIDIA-SMI has failed, because it could not, well\n").gpus == ()
    endless = f"{PROC}0, 1, 1, 1e308, 1\n"
    for malformed in ("", "x", PROC.replace("MemAvailable", "Cached"), "nan" + PROC[5:], endless):
        with pytest.raises(MALFORMED):
            parse_load(malformed)


def test_latencies_rates_and_errors_of_a_start() -> None:
    now = parse_counters(METRICS, now=0.0)
    load = service_load(replace(now, since=1000.0, time=1100.0))

    assert load.seconds == 100.0
    assert load.requests_per_s == pytest.approx(now.finished / 100)
    for found in (load.first_token, load.request):
        assert found is not None
        assert 0 < found["p50"] <= found["p95"]


def test_since_the_look_before_only_what_is_new_counts() -> None:
    now = replace(parse_counters(METRICS, now=0.0), since=1000.0, time=1100.0)
    quiet = service_load(replace(now, time=1102.0), now)
    assert (quiet.seconds, quiet.requests_per_s, quiet.request) == (2.0, 0.0, None)
    restarted = service_load(replace(now, since=1099.0, time=1102.0), now)
    assert restarted.seconds == 3.0


def test_without_the_time_of_the_start_there_is_a_rate_only_between_looks() -> None:
    text = "".join(
        line for line in METRICS.splitlines(keepends=True) if "process_start_time" not in line
    )
    now = parse_counters(text, now=1000.0)
    first = service_load(now)
    assert (first.seconds, first.requests_per_s) == (None, None)
    assert first.request is not None
    later = service_load(replace(now, time=1002.0, finished=now.finished + 4), now)
    assert (later.seconds, later.requests_per_s) == (2.0, 2.0)


def test_metrics_without_their_labels_are_malformed() -> None:
    text = "# TYPE vllm:e2e_request_latency_seconds histogram\n"
    with pytest.raises(MALFORMED):
        parse_counters(text + "vllm:e2e_request_latency_seconds_bucket 1\n", now=1.0)


@pytest.mark.parametrize("value", ["NaN", "+Inf"])
def test_counts_that_are_none_are_malformed(value: str) -> None:
    text = "# TYPE vllm:e2e_request_latency_seconds histogram\n"
    with pytest.raises(MALFORMED):
        parse_counters(
            f'{text}vllm:e2e_request_latency_seconds_bucket{{le="1"}} {value}\n', now=1.0
        )


def test_a_host_is_asked_by_its_accelerators_own_program() -> None:
    transport = LocalTransport(Host(name="gpu1", address="localhost"))
    asked = f"{NVIDIA.load.replace('nvidia-smi', 'no-such-program')}echo 0, 1, 2, 3, 4\n"
    assert host_loads({"gpu1": transport}, asked)["gpu1"].gpus == ()
    (gpu,) = host_loads({"gpu1": transport}, "echo 0, 1, 2, 3, 4\n")["gpu1"].gpus
    assert (gpu.use, gpu.celsius) == (0.01, 2.0)


class Dripping(BaseHTTPRequestHandler):
    """Answers /metrics without an end: a byte now and then."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"#")
                time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        return None


def test_services_whose_metrics_never_end_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "STATUS_LOOK", 0.5)
    with ThreadingHTTPServer(("127.0.0.1", 0), Dripping) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        head = LocalTransport(Host(name="gpu1", address="localhost"))
        asked = [
            replace(TINY, name=f"tiny{number}", host="127.0.0.1", port=server.server_port)
            for number in range(4)
        ]
        started = time.monotonic()
        assert service_counters(head, asked, time.time) == {}
        assert time.monotonic() - started < 4 * 0.5 + 10
        server.shutdown()


def test_errors_are_answers_from_500_on_and_requests_whose_clients_left() -> None:
    text = (
        "# TYPE http_requests_total counter\n"
        'http_requests_total{handler="/v1/completions",method="POST",status="5xx"} 2.0\n'
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 9.0\n'
        "# TYPE vllm:request_success_total counter\n"
        'vllm:request_success_total{finished_reason="abort"} 3.0\n'
        'vllm:request_success_total{finished_reason="stop"} 6.0\n'
    )
    counted = parse_counters(text, now=1.0)
    assert (counted.finished, counted.failed, counted.aborted) == (9.0, 2.0, 3.0)


class Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, *_: object) -> None:
        pass


def test_services_that_do_not_answer_are_left_out() -> None:
    closed = reserved()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    there = replace(build_service(launch()), host="127.0.0.1", port=server.server_port)
    gone = replace(there, name="gone", port=port_of(closed))
    try:
        with Connections() as connections:
            head = connections.to(Host(name="here", address="localhost"))
            found = service_counters(head, [gone, there], lambda: 5.0)
    finally:
        server.shutdown()
        server.server_close()
        closed.close()
    assert found == {"m": parse_counters(METRICS, 5.0)}


def test_the_wide_view_has_a_line_for_each_host_gpu_and_service(facts: HostFacts) -> None:
    hosts = {"gpu2": parse_load(f"{PROC}0, 87, 61, 40960, 81920\n")}
    counted = replace(parse_counters(METRICS, now=0.0), since=1000.0, time=1100.0)
    status = with_loads(
        assess(survey_of(INVENTORY, healthy(facts))), hosts, {"tiny": service_load(counted)}
    )
    stream = io.StringIO()
    Console(file=stream, width=200).print(status_screen(status))
    shown = stream.getvalue()

    assert "gpu2  load 12.3 on 16 CPUs · 16.0 MiB of 64.0 MiB used" in shown
    assert "GPU 0  87% busy · 61 °C · 40.0 GiB of 80.0 GiB used" in shown
    assert "0 errors, 0 aborted · p50 / p95 of the last 1 min 40 s" in shown
    document = status_document(status)
    assert document["hosts"][1]["load"]["gpus"][0]["celsius"] == 61.0
    assert document["services"][0]["load"]["request"]["p95"] > 0
