"""A cluster's status as samples for the textfile collector of node_exporter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from clusterctl.survey.status import ClusterStatus


class _StatusCollector(Collector):
    def __init__(self, status: ClusterStatus, now: float) -> None:
        self._status = status
        self._now = now

    def collect(self) -> Iterator[Metric]:
        status = self._status

        def gauge(name: str, about: str, rows: Mapping[Any, float], *labels: str) -> Metric:
            family = GaugeMetricFamily(f"clusterctl_{name}", about, labels=("cluster", *labels))
            for values, value in rows.items():
                family.add_metric((status.cluster, *values), value)
            return family

        hosts, services = status.hosts, status.services
        yield gauge("read_time_seconds", "When the status was read.", {(): self._now})
        yield gauge("healthy", "0 if status exits with 8.", {(): status.healthy})
        yield gauge("problems", "Problems of `status`.", {(): len(status.problems)})
        up = {(row.name,): float(row.reachable and row.ray == "up") for row in hosts}
        yield gauge("host_up", "The host answers, and is in Ray.", up, "host")
        drained = {(row.name,): float(row.drained) for row in hosts}
        yield gauge("host_drained", "No replicas are placed on the host.", drained, "host")
        ready = {(row.document.service, row.name, row.host): float(row.serves) for row in services}
        of = ("service", "replica", "host")
        yield gauge("replica_ready", "The replica has answered its proof requests.", ready, *of)
        restarts = CounterMetricFamily(
            "clusterctl_replica_restarts", "Restarts by the supervisor.", labels=("cluster", *of)
        )
        for row in services:
            if row.state:
                values = (status.cluster, row.document.service, row.name, row.host)
                restarts.add_metric(values, row.state.restarts)
        yield restarts
        if gateway := status.gateway:
            yield gauge("gateway_up", "The gateway listens.", {(): gateway.state == "up"})
            requests = CounterMetricFamily(
                "clusterctl_gateway_requests",
                "Requests: answered by a member, failed, or refused by the gateway itself.",
                labels=("cluster", "result"),
            )
            for result in ("served", "failed", "refused"):
                requests.add_metric((status.cluster, result), getattr(gateway, result))
            yield requests


def samples(status: ClusterStatus, now: float) -> bytes:
    """Return the samples in Prometheus' text format. `now`: Unix seconds."""
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status, now))
    return generate_latest(registry)
