"""The current load of hosts and services, for `status --wide`: one command on each host, and each
service's own metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from clusterctl import deadlines
from clusterctl.errors import MALFORMED, CommandFailed
from clusterctl.node.documents import ServiceDocument
from clusterctl.ray_cluster.topology import base_url, reached_at
from clusterctl.survey.status import GpuLoad, HostLoad, ServiceLoad
from clusterctl.transport.base import Transport
from clusterctl.transport.fanout import fan_out, values
from clusterctl.transport.http_answer import beginning
from clusterctl.transport.tcp import Tunnel
from clusterctl.units import KIB, MIB

_LARGEST_METRICS = 16 * MIB

_SCRIPT = """\
cat /proc/loadavg
grep -c ^processor /proc/cpuinfo
grep -E '^(MemTotal|MemAvailable):' /proc/meminfo
"""

# Names of vLLM since 0.4, and of the web server beneath it
_FIRST_TOKEN = "vllm:time_to_first_token_seconds"  # noqa: S105
_REQUEST = "vllm:e2e_request_latency_seconds"
_FINISHED = "vllm:request_success"  # The parser takes `_total` off the names of counters
_ANSWERS = "http_requests"
_STARTED = "process_start_time_seconds"
_READ = {_FIRST_TOKEN, _REQUEST, _FINISHED, _ANSWERS, _STARTED}


@dataclass(frozen=True)
class ServiceCounters:
    """Counters of a service since its vLLM started."""

    time: float  # Unix seconds
    # Unix seconds of that start; None from several API servers, which do not export it
    since: float | None
    finished: float  # Requests
    failed: float  # Answers with an HTTP status of 500 and more
    aborted: float  # Requests whose clients went away
    # Requests by upper limit of their seconds, cumulative as Prometheus has them
    first_token: Mapping[float, float]
    request: Mapping[float, float]


def host_loads(transports: Mapping[str, Transport], gpus: str) -> dict[str, HostLoad]:
    """Return the load of every host that answers. `gpus`: the accelerator's `GpuProbe.load`."""

    def look(transport: Transport) -> HostLoad:
        result = transport.run(["sh", "-c", _SCRIPT + gpus], timeout=deadlines.STATUS_LOOK)
        try:
            return parse_load(result.stdout)
        except MALFORMED as error:
            raise CommandFailed("its load cannot be read", detail=str(error)) from None

    return values(fan_out(transports, look))


def parse_load(text: str) -> HostLoad:
    """Parse the script's output. Raises one of MALFORMED."""
    lines = text.splitlines()
    # In either order, as `MemTotal:  16384 kB`
    memory = {line.split(":")[0]: int(line.split()[1]) * KIB for line in lines[2:4]}
    if not {"MemTotal", "MemAvailable"} <= memory.keys():
        raise ValueError("no memory in /proc/meminfo")
    total, load = memory["MemTotal"], _number(lines[0].split()[0])
    if load is None:
        raise ValueError("no load in /proc/loadavg")
    gpus = (line.split(",") for line in lines[4:])
    return HostLoad(
        cpus=int(lines[1]),
        load=load,
        memory=total,
        memory_used=max(0, total - memory["MemAvailable"]),
        gpus=tuple(_gpu(cells) for cells in gpus if len(cells) == 5 and cells[0].isdecimal()),
    )


def _gpu(cells: list[str]) -> GpuLoad:
    use, celsius, used, total = (_number(cell) for cell in cells[1:])
    return GpuLoad(
        int(cells[0]),
        use / 100 if use is not None else None,
        celsius,
        *(None if mib is None else int(mib * MIB) for mib in (used, total)),
    )


def _number(cell: str) -> float | None:
    """Return the number; None for `[N/A]` and the like."""
    try:
        found = float(cell)
    except ValueError:
        return None
    return found if math.isfinite(found) else None


def service_counters(
    head: Transport, services: Iterable[ServiceDocument], clock: Callable[[], float]
) -> dict[str, ServiceCounters]:
    """Return the counters of every service that answers."""
    import httpx2

    def read(document: ServiceDocument) -> ServiceCounters:
        address, seconds = reached_at(document.host, "127.0.0.1"), deadlines.STATUS_LOOK
        try:
            with (
                Tunnel(head, address, document.port) as tunnel,
                httpx2.Client(trust_env=False, timeout=seconds) as client,
                client.stream("GET", f"{base_url('127.0.0.1', tunnel.port)}/metrics") as answer,
            ):
                data = beginning(answer, _LARGEST_METRICS, seconds=seconds)
            return parse_counters(data.decode(errors="replace"), clock())
        except (httpx2.HTTPError, TimeoutError, *MALFORMED) as error:
            raise CommandFailed("its metrics cannot be read", detail=str(error)) from None

    # Of the others, the supervisors' own reports say what is wrong with them.
    asked = {document.name: document for document in services}
    return values(fan_out(asked, read))


def parse_counters(text: str, now: float) -> ServiceCounters:
    """Parse what a service exports for Prometheus. Raises one of MALFORMED."""
    from prometheus_client.parser import text_string_to_metric_families

    since: float | None = None
    finished = failed = aborted = 0.0
    buckets: dict[str, dict[float, float]] = {_FIRST_TOKEN: {}, _REQUEST: {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if family.name in _READ and not math.isfinite(sample.value):
                raise ValueError(f"{sample.name} is {sample.value}")
            if family.name in buckets and sample.name.endswith("_bucket"):
                limit, of = float(sample.labels["le"]), buckets[family.name]
                of[limit] = of.get(limit, 0.0) + sample.value  # of several engines
            elif family.name == _FINISHED and sample.name.endswith("_total"):
                finished += sample.value
                aborted += sample.value * (sample.labels.get("finished_reason") == "abort")
            elif family.name == _ANSWERS and sample.labels.get("status", "")[:1] == "5":
                failed += sample.value * sample.name.endswith("_total")
            elif family.name == _STARTED:
                since = min(since or now, sample.value)
    return ServiceCounters(
        now, since, finished, failed, aborted, buckets[_FIRST_TOKEN], buckets[_REQUEST]
    )


def service_load(now: ServiceCounters, before: ServiceCounters | None = None) -> ServiceLoad:
    """Return what happened since `before`, if vLLM has not restarted; else since its start."""
    if before is None or before.since != now.since or before.finished > now.finished:
        before = ServiceCounters(now.since or now.time, now.since, 0.0, 0.0, 0.0, {}, {})
    seconds = now.time - before.time
    known = seconds > 0
    return ServiceLoad(
        seconds=seconds if known else None,
        requests_per_s=(now.finished - before.finished) / seconds if known else None,
        failed=now.failed - before.failed,
        aborted=now.aborted - before.aborted,
        first_token=_percentiles(now.first_token, before.first_token),
        request=_percentiles(now.request, before.request),
    )


def _percentiles(
    now: Mapping[float, float], before: Mapping[float, float]
) -> dict[str, float] | None:
    """Return p50 and p95, interpolated within a bucket as Prometheus' histogram_quantile does."""
    counts = sorted((limit, count - before.get(limit, 0.0)) for limit, count in now.items())
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    found = {}
    for percent in (50, 95):
        rank, below, lower = total * percent / 100, 0.0, 0.0
        for limit, count in counts:
            if count >= rank:
                inside = count - below
                share = (rank - below) / inside if inside else 1.0
                found[f"p{percent}"] = (
                    lower if math.isinf(limit) else lower + (limit - lower) * share
                )
                break
            below, lower = count, limit
    return found
