"""Replicas on whole hosts: one on each, changed and drained while the other serves. The tests build
on each other, in the order of this file."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import httpx2
import pytest

from tests.fakes.ports import port_of, reserved
from tests.lab.cluster import Operator, prefix_cache_tokens, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SERVE = ("serve", "/data/models/tiny", "--tp", "1", "--yes")
SHORT = ("--", "--max-model-len", "512")
LONGER = ("--", "--max-model-len", "1024")


# What these commands would be in a fleet file
LIKE_LONGER = {
    "model": "/data/models/tiny", "tp": 1, "replicas": 2, "flags": {"max-model-len": 1024},
}  # fmt: skip


def fleet(operator: Operator, **services: dict[str, Any]) -> str:
    """A fleet file of these services; JSON is YAML."""
    path = operator.home / "fleet.yaml"
    path.write_text(json.dumps({"services": services}))
    return str(path)


def replicas(operator: Operator) -> dict[str, dict[str, Any]]:
    """What status says of each replica, by its name."""
    services = operator.run("status", "--json").json["services"]
    return {service["name"]: service for service in services if service["service"] == "tiny"}


def pids(on_host: OnHost) -> dict[str, str]:
    """The API server of each host."""
    argv = "pgrep -of 'vllm serve'"
    return {host: on_host(host, argv).stdout.strip() for host in ("gpu1", "gpu2")}


@pytest.fixture(scope="module")
def cluster(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)


@pytest.mark.usefixtures("cluster")
def test_each_host_has_a_replica_that_answers(operator: Operator) -> None:
    served = operator.ok(*SERVE, "--replicas", "2", "--json", *SHORT, timeout=1500).json
    assert [(each["name"], each["host"]) for each in served["replicas"]] == [
        ("tiny", "gpu1"),
        ("tiny@2", "gpu2"),
    ]
    ranks = [[rank["host"] for rank in each["ranks"]] for each in served["replicas"]]
    assert ranks == [["gpu1"], ["gpu2"]]
    assert {each["state"] for each in replicas(operator).values()} == {"ready"}


def test_a_second_run_changes_nothing(operator: Operator, on_host: OnHost) -> None:
    before = pids(on_host)
    for words in (("--replicas", "2"), ()):
        served = operator.ok(*SERVE, *words, "--json", *SHORT).json
        assert served["changed"] is False
    assert pids(on_host) == before


def test_another_number_of_replicas_changes_nothing_else(
    operator: Operator, on_host: OnHost
) -> None:
    before = pids(on_host)
    assert operator.run("scale", "tiny", "2", "--dry-run").status == 0
    assert "stop tiny@2 on gpu2" in operator.ok("scale", "tiny", "1").stderr
    assert list(replicas(operator)) == ["tiny"]
    assert operator.ok("scale", "tiny", "2", "--json").json["replicas"] == {
        "tiny": "gpu1",
        "tiny@2": "gpu2",
    }
    after = pids(on_host)
    assert after["gpu1"] == before["gpu1"], "the one that stayed was not restarted"
    flags = on_host("gpu2", "tr '\\0' ' ' </proc/$(pgrep -of 'vllm serve')/cmdline").stdout
    assert "--max-model-len 512" in flags
    assert operator.run(*SERVE, "--replicas", "2", "--dry-run", *SHORT).status == 0


@pytest.mark.parametrize(
    ("what", "make", "mend"),
    [
        (
            "/dev/shm is full",
            "fallocate -l $(df --output=avail -B1 /dev/shm | tail -1) /dev/shm/filled",
            "rm /dev/shm/filled",
        ),
        (
            "its MTU on ens3 is 500, but 1500 on the others",
            "ip link set ens3 mtu 500",
            "ip link set ens3 mtu 1500",
        ),
    ],
)
def test_what_a_serving_host_lost_is_named(
    operator: Operator, on_host: OnHost, what: str, make: str, mend: str
) -> None:
    assert on_host("gpu2", make).returncode == 0
    ran = operator.run("status")
    assert on_host("gpu2", mend).returncode == 0
    assert ran.status == 8, ran.text
    assert f"gpu2: {what}" in ran.stdout, ran.text
    assert operator.ok("status")


@pytest.mark.long
def test_sessions_find_their_prefixes_and_the_load_is_balanced(
    operator: Operator, on_host: OnHost
) -> None:
    """As vLLM itself counts tokens that it was asked for and found in its prefix cache."""
    key = on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()
    prefix = 384  # tokens: three blocks of vLLM on CPUs
    turns, talks = 4, 9  # in turns: an odd number, so that one does not meet its replica by chance

    def counted() -> list[dict[str, float]]:
        return [prefix_cache_tokens(f"{address}:8100") for address in ("10.77.0.11", "10.77.0.12")]

    def conversations(*, named: bool) -> list[dict[str, float]]:
        """Have the conversations; return the tokens of each replica."""
        before = counted()
        for turn in range(turns):
            for number in range(talks):
                session = f"{'named' if named else 'other'}-{number}"
                words = random.Random(session).choices(range(10, 200), k=prefix + 4 * turn)  # noqa: S311
                httpx2.post(
                    "http://10.77.0.11:8000/v1/completions",
                    headers={"Authorization": f"Bearer {key}"}
                    | ({"X-Session-ID": session} if named else {}),
                    json={"model": "tiny", "prompt": words, "max_tokens": 2},
                    trust_env=False,
                    timeout=120,
                ).raise_for_status()
        return [
            {name: after[name] - of[name] for name in after}
            for of, after in zip(before, counted(), strict=True)
        ]

    named, others = conversations(named=True), conversations(named=False)
    assert sum(each["hits"] for each in named) >= talks * (turns - 1) * prefix, named
    assert sum(each["hits"] for each in others) < 0.8 * talks * (turns - 1) * prefix, others
    halves = [each["queries"] for each in others]
    assert max(halves) - min(halves) < 0.1 * sum(halves), others


def test_a_real_prometheus_reads_all_that_metrics_names(operator: Operator, tmp_path: Path) -> None:
    operator.ok("metrics", "-o", str(tmp_path))
    assert operator.ok("metrics", "-o", str(tmp_path)).stdout == "nothing to change\n"
    config = tmp_path / "prometheus.yml"
    config.write_text(config.read_text().replace("_interval: 15s", "_interval: 1s"))
    place = reserved()
    listens = f"127.0.0.1:{port_of(place)}"
    argv = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    process = subprocess.Popen(
        [*argv, f"--web.listen-address={listens}"], stderr=subprocess.DEVNULL
    )

    def ask(path: str) -> Any:
        with urlopen(f"http://{listens}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]

    def ready() -> bool:
        with suppress(OSError), urlopen(f"http://{listens}/-/ready", timeout=10):
            return True
        return False

    def up() -> set[tuple[str, str]]:
        targets = ask("targets")["activeTargets"]
        return {
            (each["labels"]["job"], each["labels"]["host"])
            for each in targets
            if each["health"] == "up"
        }

    try:
        until(ready, within=60, what="Prometheus is ready")
        expected = {(job, host) for job in ("vllm", "ray") for host in ("gpu1", "gpu2")}
        until(lambda: up() == expected, within=60, what="every target is read")
        used = " ".join((tmp_path / name).read_text() for name in ("rules.yml", "dashboard.json"))
        wanted = set(re.findall(r"\b(?:vllm:|ray_|http_requests)\w+", used))
        assert len(wanted) > 10
        assert wanted <= set(ask("label/__name__/values"))
        assert ask("rules")["groups"]
    finally:
        process.terminate()
        process.wait(30)
        place.close()


def test_the_page_has_what_the_hosts_measured_and_did(operator: Operator, tmp_path: Path) -> None:
    found = operator.ok("report", "--json").json
    assert {(one["from"], one["to"]) for one in found["pairs"]} == {
        ("gpu1", "gpu2"),
        ("gpu2", "gpu1"),
    }
    assert {one["lane"] for one in found["pairs"]} == {"Ray", "NCCL, Gloo"}
    assert all(0 < one["ms"] < 1000 for one in found["pairs"])
    assert {(one["service"], one["host"]) for one in found["memory"]} == {
        ("tiny", "gpu1"),
        ("tiny@2", "gpu2"),
    }
    ready = {
        (one["host"], one["subject"]) for one in found["timeline"] if one["kind"] == "recovered"
    }
    assert {("gpu1", "tiny"), ("gpu2", "tiny@2")} <= ready
    operator.ok("report", "-o", str(tmp_path / "page.html"))
    assert "Cluster lab" in (tmp_path / "page.html").read_text()


def test_more_than_fit_are_refused(operator: Operator) -> None:
    ran = operator.run(*SERVE, "--replicas", "3", *SHORT)
    assert ran.status == 11, ran.text
    assert "--replicas 2" in ran.stderr


def test_a_killed_engine_leaves_the_other_replica_ready(
    operator: Operator, on_host: OnHost
) -> None:
    other = pids(on_host)["gpu1"]
    assert on_host("gpu2", "pkill -KILL -f VLLM::EngineCor").returncode == 0
    until(
        lambda: replicas(operator)["tiny@2"]["state"] != "ready", within=60, what="status tells it"
    )
    assert replicas(operator)["tiny"]["state"] == "ready"
    until(lambda: replicas(operator)["tiny@2"]["state"] == "ready", within=600, what="it is back")
    assert pids(on_host)["gpu1"] == other
    assert replicas(operator)["tiny@2"]["restarts"] == 1


def test_a_broken_flag_is_undone_and_the_other_replica_not_touched(
    operator: Operator, on_host: OnHost
) -> None:
    before = pids(on_host)
    ran = operator.run(*SERVE, "--", "--max-model-len", "512", "--attention-backend", "NONE")
    assert ran.status != 0, ran.text
    assert "tiny serves its previous version again; 1 other never stopped" in ran.stderr
    assert pids(on_host)["gpu2"] == before["gpu2"]
    assert {each["state"] for each in replicas(operator).values()} == {"ready"}
    assert not any(each["draining"] for each in replicas(operator).values())


def test_other_flags_restart_one_replica_at_a_time(operator: Operator, on_host: OnHost) -> None:
    ran = operator.ok(*SERVE, *LONGER, timeout=1500)
    # In the log, each host has lines of its own, in order.
    log = re.search(r"· log (\S+)", ran.stderr)
    assert log, ran.text
    done = re.findall(r"StepFinished\(host='(\w+)', step='(drain|prove)", Path(log[1]).read_text())
    assert done == [("gpu1", "drain"), ("gpu1", "prove"), ("gpu2", "drain"), ("gpu2", "prove")]
    for host, name in (("gpu1", "tiny"), ("gpu2", "tiny@2")):
        said = on_host(host, f"cat /etc/clusterctl/lab/services/{name}.json").stdout
        assert '"1024"' in said


def test_a_drained_host_has_no_replicas_until_it_is_undrained(operator: Operator) -> None:
    assert operator.run("drain", "gpu2", "--dry-run").status == 10
    ran = operator.ok("drain", "gpu2")
    assert "1 replica will be left" in ran.stderr
    assert list(replicas(operator)) == ["tiny"]
    assert "nothing to change" in operator.ok("drain", "gpu2").stdout
    refused = operator.run(*SERVE, "--replicas", "2", *LONGER)
    assert (refused.status, "--replicas 1" in refused.stderr) == (11, True), refused.text

    operator.ok("undrain", "gpu2")
    operator.ok(*SERVE, "--replicas", "max", *LONGER, timeout=1500)
    assert [each["host"] for each in replicas(operator).values()] == ["gpu1", "gpu2"]


def test_a_fleet_file_of_what_runs_changes_nothing(operator: Operator, on_host: OnHost) -> None:
    before = pids(on_host)
    ran = operator.ok("apply", fleet(operator, tiny=LIKE_LONGER), "--json")
    assert (ran.json["changes"], ran.json["services"][0]["changed"]) == ([], False), ran.text
    assert pids(on_host) == before


def test_a_fleet_is_planned_as_a_whole_before_anything_changes(
    operator: Operator, on_host: OnHost
) -> None:
    before = pids(on_host)
    refused = operator.run("apply", fleet(operator, tiny=LIKE_LONGER, other=LIKE_LONGER))
    assert refused.status == 11, refused.text

    one = {**LIKE_LONGER, "replicas": 1}
    shrinks = operator.run("apply", fleet(operator, other=one, tiny=one), "--dry-run")
    assert shrinks.status == 10, shrinks.text
    assert "tiny: stop tiny@2 on gpu2" in shrinks.stdout
    assert "other: start other on gpu2" in shrinks.stdout

    pruned = operator.run("apply", fleet(operator, other=one), "--prune", "--dry-run")
    assert (pruned.status, "tiny: stop tiny on gpu1" in pruned.stdout) == (10, True), pruned.text
    assert pids(on_host) == before


def test_the_head_cannot_be_removed(operator: Operator) -> None:
    refused = operator.run("remove", "gpu1", "--yes")
    assert (refused.status, "is the head" in refused.stderr) == (2, True), refused.text
    assert operator.run("remove", "gpu2", "--dry-run").status == 10


@pytest.mark.long
def test_a_restart_changes_the_processes_one_at_a_time_and_nothing_else(
    operator: Operator, on_host: OnHost
) -> None:
    before = pids(on_host)
    ran = operator.ok("restart", "tiny", timeout=1500)
    assert ran.stderr.count("prove it") >= 2, ran.text
    after = pids(on_host)
    assert all(after[host] not in ("", before[host]) for host in before)
    assert operator.ok(*SERVE, "--json", *LONGER).json["changed"] is False
    assert pids(on_host) == after


def test_on_keeps_a_service_on_the_hosts_that_are_named(operator: Operator) -> None:
    ran = operator.run(*SERVE, "--on", "gpu2", "--replicas", "2", *LONGER)
    assert (ran.status, "--replicas 1" in ran.stderr) == (11, True), ran.text

    operator.ok(*SERVE, "--on", "gpu2", "--replicas", "1", *LONGER, timeout=1500)
    for _ in range(2):
        assert [(each["host"], each["on"]) for each in replicas(operator).values()] == [
            ("gpu2", "gpu2")
        ]
        assert operator.ok(*SERVE, "--json", *LONGER).json["changed"] is False
    asked = operator.run("restart", "tiny", "--dry-run")
    assert (asked.status, "no answers until" in asked.stdout) == (10, True), asked.text


@pytest.mark.long
def test_a_start_is_measured_cold_and_warm(operator: Operator, on_host: OnHost) -> None:
    before = pids(on_host)
    measured = operator.ok("bench", "tiny", "--start", "--yes", "--json", timeout=1500).json
    assert [one["cold"] for one in measured] == [True, False]
    for one in measured:
        assert one["replica"] in replicas(operator)
        assert next(iter(one["stages"])) == "imports"
        assert abs(sum(one["stages"].values()) - one["seconds"]) < 1.5, one
    assert pids(on_host)["gpu2"] not in ("", before["gpu2"])


def test_stop_ends_all_replicas(operator: Operator, on_host: OnHost) -> None:
    assert "gpu2 tiny@2  " in operator.ok("logs", "tiny", "-n", "3").stdout
    operator.ok("stop", "tiny")
    assert replicas(operator) == {}
    assert set(pids(on_host).values()) == {""}
