"""What Prometheus scrapes in a cluster, and where, as files for its `file_sd`."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from clusterctl.monitoring.dashboard import dashboard
from clusterctl.ray_cluster.topology import host_port
from clusterctl.survey.status import ClusterStatus
from clusterctl.survey.survey import Survey

# Ports of the exporters that people run on hosts: node_exporter's, and NVIDIA's dcgm-exporter's
_NODE_EXPORTER, _GPU_EXPORTER = 9100, 9400


def monitoring_files(survey: Survey, status: ClusterStatus) -> dict[str, str]:
    """Return the files of a directory for Prometheus, by their paths in it."""
    assets = files("clusterctl.monitoring")
    found = {
        "prometheus.yml": (assets / "prometheus.yaml").read_text(),
        "rules.yml": (assets / "rules.yaml").read_text(),
        "dashboard.json": json.dumps(dashboard(), indent=1) + "\n",
    }
    # One directory may have the targets of several clusters.
    for job, groups in _targets(survey, status).items():
        found[f"targets/{status.cluster}-{job}.json"] = json.dumps(groups, indent=1) + "\n"
    return found


def _targets(survey: Survey, status: ClusterStatus) -> dict[str, list[dict[str, Any]]]:
    """Return the targets of each job. Every target has the labels `cluster` and `host`."""

    def target(host: str, address: str, port: int, **labels: str) -> dict[str, Any]:
        labels = {"cluster": status.cluster, "host": host, **labels}
        return {"targets": [host_port(address, port)], "labels": labels}

    ray = survey.inventory.ray_ports.metrics_export
    node_ips = {row.node_ip for row in status.hosts}

    def exporters(port: int) -> list[dict[str, Any]]:
        return [
            target(row.name, row.node_ip, port)
            for row in status.hosts
            if port in survey.facts[row.name].listening_ports
        ]

    engines = []
    for row in status.services:
        document = row.document
        # A replica's document is its host's: Prometheus reads nothing else in its place.
        if document.host not in node_ips:
            continue
        labels = {"service": document.service, "replica": row.name}
        engines.append(target(row.host, document.host, document.port, **labels))
        if port := document.standby_port:
            engines.append(target(row.host, document.host, port, **labels, engine="standby"))

    return {
        "vllm": engines,
        "ray": [target(row.name, row.node_ip, ray) for row in status.hosts],
        "node": exporters(_NODE_EXPORTER),
        "gpu": exporters(_GPU_EXPORTER),
    }
