"""What `metrics` writes is read by the real Prometheus: its targets, rules, and the queries of the
dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.facts.model import HostFacts
from clusterctl.monitoring.dashboard import dashboard
from clusterctl.monitoring.samples import samples
from clusterctl.monitoring.targets import monitoring_files
from clusterctl.node.documents import GatewayState
from clusterctl.survey.status import assess
from tests.fakes.surveys import survey_of
from tests.unit.survey.test_cluster_status import INVENTORY, SERVICE, facts, healthy

__all__ = ["facts"]


def promtool(*words: str | Path, stdin: bytes = b"") -> str:
    """Run promtool, which must end well."""
    done = subprocess.run(
        ["promtool", *words], input=stdin, capture_output=True, check=False, timeout=60
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


@pytest.fixture
def directory(tmp_path: Path, facts: HostFacts) -> Path:
    reports = healthy(facts)
    reports["gpu1"] = replace(reports["gpu1"], services=(replace(SERVICE, standby_port=8101),))
    with_exporters = replace(facts, listening_ports=(22, 9100, 9400))
    reports["gpu2"] = replace(reports["gpu2"], facts=with_exporters)
    survey = survey_of(INVENTORY, reports)
    for name, text in monitoring_files(survey, assess(survey)).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_targets_are_what_listens(directory: Path) -> None:
    found = {
        path.name: [(group["targets"], group["labels"]) for group in json.loads(path.read_text())]
        for path in (directory / "targets").iterdir()
    }
    gpu1, gpu2 = ({"cluster": "demo", "host": host} for host in ("gpu1", "gpu2"))
    tiny = {**gpu1, "service": "tiny", "replica": "tiny"}
    assert found == {
        "demo-vllm.json": [
            (["10.0.0.1:8100"], tiny),
            (["10.0.0.1:8101"], {**tiny, "engine": "standby"}),
        ],
        "demo-ray.json": [(["10.0.0.1:6385"], gpu1), (["10.0.0.2:6385"], gpu2)],
        "demo-node.json": [(["10.0.0.2:9100"], gpu2)],
        "demo-gpu.json": [(["10.0.0.2:9400"], gpu2)],
    }


def test_prometheus_reads_configuration_and_rules(directory: Path) -> None:
    said = promtool("check", "config", directory / "prometheus.yml")
    assert re.search(r"SUCCESS: \d+ rules found", said), said


def test_alerts_fire_when_they_should_and_only_then(directory: Path) -> None:
    cases = (Path(__file__).parent / "rules_test.yaml").read_text()
    (directory / "cases.yml").write_text(cases)
    promtool("test", "rules", directory / "cases.yml")
    rules = (directory / "rules.yml").read_text()
    tried = set(re.findall(r"alertname: (\w+)", cases))
    assert tried == set(re.findall(r"alert: (\w+)", rules))


def test_queries_of_the_dashboard_are_valid(directory: Path) -> None:
    rules = directory / "dashboard.yml"
    queries = [
        re.sub(r"\$(cluster|service)", ".*", target["expr"]).replace("$__rate_interval", "5m")
        for panel in dashboard()["panels"]
        for target in panel["targets"]
    ]
    named = [{"record": f"panel:{at}", "expr": query} for at, query in enumerate(queries)]
    rules.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": named}]}))
    assert f"SUCCESS: {len(queries)} rules found" in promtool("check", "rules", rules)


def test_samples_are_what_a_collector_of_text_files_takes(facts: HostFacts) -> None:
    status = assess(survey_of(INVENTORY, healthy(facts)))
    gateway = GatewayState("up", served=7, failed=1, refused=2)
    text = samples(replace(status, gateway=gateway), 1234.5)
    promtool("check", "metrics", stdin=text)
    for line in (
        'clusterctl_read_time_seconds{cluster="demo"} 1234.5',
        'clusterctl_healthy{cluster="demo"} 1.0',
        'clusterctl_host_up{cluster="demo",host="gpu2"} 1.0',
        'clusterctl_replica_ready{cluster="demo",host="gpu1",replica="tiny",service="tiny"} 1.0',
        'clusterctl_gateway_requests_total{cluster="demo",result="served"} 7.0',
    ):
        assert line in text.decode().splitlines()
