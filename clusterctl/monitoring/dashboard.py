"""The Grafana dashboard of a cluster."""

from __future__ import annotations

from typing import Any

_SCHEMA = 39  # Grafana 10.4; newer ones convert it
_SOURCE = {"type": "prometheus", "uid": "${source}"}

_QUANTILES = ("0.5", "0.95", "0.99")

# Title, unit as Grafana names it, query, legend. In a query, `OF` and `HOSTS` stand for the labels
# that are chosen above the dashboard, and `QUANTILE` makes one query for each of _QUANTILES.
_PANELS = (
    ("Requests running", "short", "sum by (replica) (vllm:num_requests_running{OF})", "{{replica}}"),
    ("Requests waiting", "short", "sum by (replica) (vllm:num_requests_waiting{OF})", "{{replica}}"),
    ("KV cache used", "percentunit", "max by (replica) (vllm:kv_cache_usage_perc{OF})", "{{replica}}"),
    ("Tokens generated/s", "short", "sum by (replica) (rate(vllm:generation_tokens_total{OF}[$__rate_interval]))", "{{replica}}"),
    ("Tokens of prompts/s", "short", "sum by (replica) (rate(vllm:prompt_tokens_total{OF}[$__rate_interval]))", "{{replica}}"),
    ("Requests finished", "reqps", "sum by (service, finished_reason) (rate(vllm:request_success_total{OF}[$__rate_interval]))", "{{service}} {{finished_reason}}"),
    ("Time to first token", "s", "histogram_quantile(QUANTILE, sum by (service, le) (rate(vllm:time_to_first_token_seconds_bucket{OF}[$__rate_interval])))", "{{service}} QUANTILE"),
    ("Time between tokens", "s", "histogram_quantile(QUANTILE, sum by (service, le) (rate(vllm:inter_token_latency_seconds_bucket{OF}[$__rate_interval])))", "{{service}} QUANTILE"),
    ("Time of a request", "s", "histogram_quantile(QUANTILE, sum by (service, le) (rate(vllm:e2e_request_latency_seconds_bucket{OF}[$__rate_interval])))", "{{service}} QUANTILE"),
    ("Answers by status", "reqps", "sum by (status) (rate(http_requests_total{OF}[$__rate_interval]))", "{{status}}"),
    ("Preemptions/s", "short", "sum by (replica) (rate(vllm:num_preemptions_total{OF}[$__rate_interval]))", "{{replica}}"),
    ("Requests by the gateway", "reqps", "sum by (result) (rate(clusterctl_gateway_requests_total{HOSTS}[$__rate_interval]))", "{{result}}"),
    ("Ready replicas", "short", "sum by (service) (clusterctl_replica_ready{OF})", "{{service}}"),
    ("Hosts in Ray", "short", "sum by (cluster) (clusterctl_host_up{HOSTS})", "{{cluster}}"),
    ("Restarts", "short", "clusterctl_replica_restarts_total{OF}", "{{replica}}"),
    ("CPU", "percent", "max by (host) (ray_node_cpu_utilization{HOSTS})", "{{host}}"),
    ("Memory used", "bytes", "max by (host) (ray_node_mem_used{HOSTS})", "{{host}}"),
    ("Disk used", "percent", "max by (host) (ray_node_disk_utilization_percentage{HOSTS})", "{{host}}"),
    ("GPU busy", "percent", "DCGM_FI_DEV_GPU_UTIL{HOSTS}", "{{host}} {{gpu}}"),
    ("GPU memory used", "decmbytes", "DCGM_FI_DEV_FB_USED{HOSTS}", "{{host}} {{gpu}}"),
    ("GPU temperature", "celsius", "DCGM_FI_DEV_GPU_TEMP{HOSTS}", "{{host}} {{gpu}}"),
)  # fmt: skip

_WIDTH, _HEIGHT = 8, 7  # Of Grafana's 24 columns


def dashboard() -> dict[str, Any]:
    """Return the document that Grafana imports."""
    panels = [
        {
            "id": index + 1,
            "type": "timeseries",
            "title": title,
            "datasource": _SOURCE,
            "gridPos": {
                "x": index % 3 * _WIDTH,
                "y": index // 3 * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            },
            "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
            "targets": [
                {"refId": "ABC"[at], "datasource": _SOURCE, "expr": expr, "legendFormat": name}
                for at, (expr, name) in enumerate(_queries(query, legend))
            ],
        }
        for index, (title, unit, query, legend) in enumerate(_PANELS)
    ]
    return {
        "uid": "clusterctl",
        "title": "clusterctl",
        "tags": ["clusterctl", "vllm", "ray"],
        "schemaVersion": _SCHEMA,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus"},
                _variable("cluster", "label_values(up, cluster)"),
                _variable("service", 'label_values(up{cluster=~"$cluster"}, service)'),
            ]
        },
        "panels": panels,
    }


def _queries(query: str, legend: str) -> list[tuple[str, str]]:
    query = query.replace("{OF}", '{cluster=~"$cluster",service=~"$service"}')
    query = query.replace("{HOSTS}", '{cluster=~"$cluster"}')
    if "QUANTILE" not in query:
        return [(query, legend)]
    return [
        (query.replace("QUANTILE", each), legend.replace("QUANTILE", f"p{float(each) * 100:g}"))
        for each in _QUANTILES
    ]


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,  # whenever the range of time changes
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
