"""The main job on whole hosts: bare machines, a Ray cluster, a served model, faults, and nothing
left at the end. The tests build on each other, in the order of this file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from clusterctl import deadlines
from clusterctl.inventory.load import load
from clusterctl.lab import faults
from clusterctl.lab.hosts import host_by_name
from clusterctl.lab.network import NAMESPACES
from clusterctl.lab.paths import LabPaths
from clusterctl.transport.connect import Connections
from clusterctl.transport.lock import ClusterLock
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.screens import commands_of_page, on_a_terminal, spoilt

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
    pytest.mark.usefixtures("inventory"),
]

RECOVERY = 240.0
"""Seconds within which a service must answer again after a fault, on two slow cores."""


def service(operator: Operator, name: str) -> dict[str, Any]:
    """What status says of one service."""
    status = operator.run("status", "--json").json
    return next((s for s in status["services"] if s["name"] == name), {"state": "absent"})


def gpus_used(operator: Operator) -> float:
    hosts = operator.run("status", "--json").json["hosts"]
    return sum(float(host["gpus_used"]) for host in hosts)


def key_of(on_host: OnHost) -> str:
    return on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()


def completion(
    endpoint: str, model: str, key: str, timeout: float = 30, tokens: int = 4
) -> httpx2.Response:
    with httpx2.Client(timeout=timeout, trust_env=False) as client:
        return client.post(
            f"{endpoint}/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={"model": model, "prompt": "hello", "max_tokens": tokens, "ignore_eos": True},
        )


def answers(endpoint: str, model: str, key: str) -> bool:
    try:
        return completion(endpoint, model, key).status_code == 200
    except httpx2.HTTPError:
        return False


GPU2 = f"nsenter --net={NAMESPACES / host_by_name('gpu2').namespace}"
"""What runs a command in gpu2's network."""

ENDPOINT = "http://10.77.0.11:8000/v1"
OWN_KEY = "a-key-of-ones-own"


def test_check_finds_nothing_wrong_with_bare_hosts(operator: Operator, inventory: str) -> None:
    ran = operator.ok("check", inventory)
    assert "no problem found" in ran.stdout
    assert "node IP 10.77.0.12 on ens2" in ran.stdout


def test_a_dry_run_changes_nothing(operator: Operator, inventory: str, on_host: OnHost) -> None:
    for words in (("plan", inventory), ("bootstrap", "--dry-run", inventory)):
        ran = operator.run(*words)
        assert ran.status == 10, ran.text
        assert "install docker.io" in ran.stdout
    for host in ("gpu1", "gpu2"):
        left = on_host(host, "ls -d /etc/clusterctl /opt/clusterctl; command -v docker")
        assert left.stdout == ""


@pytest.mark.parametrize(
    ("moment", "fault", "status"),
    [
        ("Container engine", signal.SIGKILL, -signal.SIGKILL),
        ("Image", signal.SIGKILL, -signal.SIGKILL),
        ("Image", signal.SIGINT, 130),
        ("Node image on workers", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_bootstrap_cut_short_ends_at_once_or_at_the_next_step(
    operator: Operator, inventory: str, moment: str, fault: signal.Signals, status: int
) -> None:
    """That nothing is left which a later run cannot finish, the next test shows."""
    ran = operator.cut_short("bootstrap", inventory, stage=moment, fault=fault)
    assert ran.status == status, ran.text
    assert ("stopped on request before" in ran.stderr) == (fault == signal.SIGINT), ran.text
    assert "Traceback" not in ran.stderr


def test_bootstrap_makes_a_cluster_that_ray_holds(operator: Operator, inventory: str) -> None:
    ran = operator.ok("bootstrap", inventory, timeout=1000)
    assert "2 nodes, 2 CPU devices" in ran.stdout, ran.text


def test_a_second_bootstrap_changes_nothing_and_says_so(operator: Operator, inventory: str) -> None:
    ran = operator.within(6, "bootstrap", inventory)
    assert ran.status == 0, ran.text
    assert "0 changes made" in ran.stdout
    assert operator.run("plan", inventory).status == 0


def test_secrets_show_nowhere(on_host: OnHost) -> None:
    for host in ("gpu1", "gpu2"):
        token = on_host(host, "cat /etc/clusterctl/lab/ray.token").stdout.strip()
        assert len(token) == 64
        seen = on_host(
            host, "docker inspect clusterctl-lab; ps -eo args; docker logs clusterctl-lab"
        )
        assert token not in seen.stdout + seen.stderr
        modes = on_host(host, "stat -c %a /etc/clusterctl/lab /etc/clusterctl/lab/ray.token")
        assert modes.stdout.split() == ["700", "600"]


def test_two_operators_do_not_meet(operator: Operator, inventory: str, tmp_path: Path) -> None:
    loaded = load(Path(inventory))
    with Connections() as connections:
        with ClusterLock(connections.to(loaded.head), loaded.cluster, "a long bootstrap"):
            ran = Operator(tmp_path).run("bootstrap", inventory)
            looked = operator.run("down", "--dry-run")
            operator.ok("key", "create", "alice")
            operator.ok("key", "revoke", "alice")
        assert ran.status == 7, ran.text
        assert "a long bootstrap" in ran.stderr
        assert looked.status == 10, looked.text
        assert operator.run("bootstrap", inventory).status == 0


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """What serves the model: with a config file that brings a key, and listens on all addresses."""
    config = tmp_path_factory.mktemp("config") / "vllm.yaml"
    config.write_text(f'model: /data/models/tiny\nhost: "0.0.0.0"\napi-key: {OWN_KEY}\n')
    return ("serve", "--config", str(config), "--tp", "2", "--name", "tiny")


def test_serve_puts_ranks_on_both_hosts_and_proves_it(
    operator: Operator, words: tuple[str, ...]
) -> None:
    ran = operator.ok(*words, "--json")
    served = ran.json
    assert served["changed"] is True
    assert [rank["host"] for rank in served["ranks"]] == ["gpu1", "gpu2"]
    assert served["answer"]["tokens"] > 0
    assert served["endpoint"] == ENDPOINT


def test_serving_the_same_again_changes_nothing(operator: Operator, words: tuple[str, ...]) -> None:
    ran = operator.within(15, *words, "--json")
    assert ran.status == 0, ran.text
    assert ran.json["changed"] is False
    other = operator.run(*words, "--dry-run", "--", "--max-model-len", "512")
    assert other.status == 10, other.text
    assert "--max-model-len: 512 (new)" in other.stderr


def test_the_api_wants_the_key_of_the_config_file(
    operator: Operator, on_host: OnHost, tmp_path: Path
) -> None:
    assert completion(ENDPOINT, "tiny", "wrong").status_code == 401
    assert answers(ENDPOINT, "tiny", OWN_KEY)
    assert key_of(on_host) == OWN_KEY
    seen = on_host("gpu1", "stat -c %a /etc/clusterctl/lab/api.key; ps -eo args; journalctl")
    assert seen.stdout.startswith("600\n")
    assert OWN_KEY not in seen.stdout

    (tmp_path / "other.yaml").write_text("model: /data/models/tiny\napi-key: another\n")
    other = operator.run("serve", "--config", str(tmp_path / "other.yaml"), "--name", "other")
    assert other.status == 2, other.text
    assert "clusterctl stop tiny" in other.stderr


def test_a_file_of_prompts_is_answered_once(operator: Operator, tmp_path: Path) -> None:
    requests, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    prompts = [{"prompt": f"{n} and", "max_tokens": 8} for n in range(20)]
    requests.write_text("".join(f"{json.dumps(line)}\n" for line in prompts))
    words = ("batch", "tiny", str(requests), "-o", str(answers), "--json")
    assert operator.ok(*words).json["answered"] == 20
    lines = [json.loads(line) for line in answers.read_text().splitlines()]
    assert {line["custom_id"] for line in lines} == {f"line-{n}" for n in range(1, 21)}
    assert all(line["response"]["body"]["choices"][0]["text"] for line in lines)
    assert (operator.ok(*words).json["kept"], len(answers.read_text().splitlines())) == (20, 20)

    requests.write_text('{"prompt": "x", "max_tokens": 100000}\n')
    refused = operator.run(*words[:3], "-o", str(tmp_path / "other.jsonl"))
    assert refused.status == 6, refused.text
    assert "1 of 1 requests failed" in refused.stderr


def test_status_shows_it_all_on_one_screen(operator: Operator) -> None:
    ran = operator.within(5, "status")
    assert ran.status == 0, ran.text
    for words in ("healthy", "gpu1", "gpu2", "service tiny", "ready", "0 on gpu1, 1 on gpu2"):
        assert words in ran.stdout, ran.text
    assert "\x1b" not in ran.stdout


@pytest.mark.long
def test_a_soak_measures_the_service_and_the_fabric(operator: Operator) -> None:
    words = ("--at-once", "2", "--in", "16", "--out", "8", "--requests", "4")
    ran = operator.ok("soak", "--for", "1s", *words, "--json", timeout=900)
    (one,) = ran.json["rounds"]
    assert (one["figures"]["completed"], one["figures"]["failed"]) == (4, 0)
    assert one["gate_mbit_s"] > 0
    assert all(seconds > 0 for seconds in one["request"].values())
    assert ran.json["held"] is True


def test_logs_exec_and_ssh_reach_the_hosts(operator: Operator) -> None:
    assert "gpu1  tiny: ready" in operator.ok("logs").stdout
    assert "vllm" in operator.ok("logs", "tiny", "-n", "5000").stdout.lower()
    everywhere = operator.ok("exec", "--", "hostname").stdout
    assert everywhere.split() == ["gpu1", "gpu1", "gpu2", "gpu2"]
    shown = operator.ok("exec", "--limit", "gpu1", "--node", "--", "ray", "status").stdout
    assert "Active:" in shown, shown
    assert operator.run("exec", "--", "false").status == 6
    assert operator.ok("ssh", "gpu2", "hostname").stdout.strip() == "gpu2"


# Typed elsewhere: these take the lab itself away, or need the internet
ELSEWHERE = {"lab up", "lab down", "packages bundle", "image bundle", "model pull"}


def test_every_command_fits_a_terminal_of_80_columns(
    operator: Operator, inventory: str, lab: LabPaths, tmp_path: Path
) -> None:
    """As a user types them, with what they print when they refuse: nothing changes."""
    fleet, script, prompts = tmp_path / "fleet.yaml", tmp_path / "s.py", tmp_path / "p.jsonl"
    fleet.write_text("services: {other: {model: /data/models/tiny, replicas: 1}}\n")
    script.write_text("print('hello')\n")
    prompts.write_text('{"prompt": "a", "max_tokens": 2}\n')
    small = ("--at-once", "1", "--in", "16", "--out", "4", "--requests", "2")
    typed = [
        ("fit", "qwen3-32b", "--gpus", "2xH200"),
        ("init", "10.77.0.11", "10.77.0.12", "--user", "root", "-o", str(tmp_path / "i.yaml")),
        ("check",), ("check", "--security"), ("plan",), ("bootstrap", "--dry-run"),
        ("serve", "/data/models/tiny", "--name", "more", "--dry-run"), ("serve", "no-such-model"),
        ("apply", str(fleet), "--dry-run"), ("apply", str(fleet), "--prune", "--dry-run"),
        ("key", "ls"), ("key", "create", "alice"), ("key", "revoke", "alice"),
        ("key", "rotate", "--dry-run"), ("run", str(script)), ("run", "--gpus", "0", str(script)),
        ("bench", "tiny", *small), ("soak", "nosuch"), ("batch", "tiny", str(prompts), "-o",
        str(tmp_path / "answers")), ("status",), ("status", "--wide"),
        ("metrics", "-o", str(tmp_path / "metrics")), ("report", "-o", str(tmp_path / "r.html")),
        ("version", "--cluster"), ("drain", "gpu2", "--dry-run"), ("undrain", "gpu2"),
        ("remove", "gpu2", "--dry-run"), ("scale", "tiny", "9", "--dry-run"),
        ("scale", "nosuch", "1"),
        ("restart", "tiny", "--dry-run"), ("stop", "tiny", "--dry-run"), ("down", "--dry-run"),
        ("diagnose",), ("logs", "-n", "5"), ("exec", "--", "true"), ("exec", "df -h / | tail -1"),
        ("ssh", "gpu1", "true"), ("tunnel",), ("tunnel", "dashboard", "--port", "0"),
        ("image", "push", "--dry-run"), ("image", "ls"), ("image", "cache"),
        ("model", "push", "/data/models/none"), ("model", "ls"), ("model", "search"),
        ("adapter", "ls"), ("adapter", "add", "tiny", "x=/nonexistent"),
        ("adapter", "rm", "tiny", "x"),
        ("lab", "status"),
    ]  # fmt: skip
    first = {" ".join(words[:2]) for words in typed} | {words[0] for words in typed}
    assert commands_of_page() - ELSEWHERE <= first, "typed here as well"

    wrong = {}
    for words in typed:
        status, screen = on_a_terminal(operator, words)
        if found := [*spoilt(screen), *(["exit 1"] if status == 1 else [])]:
            wrong[" ".join(words)] = found
    assert wrong == {}, "\n".join(f"$ {each}\n" + "\n".join(wrong[each]) for each in wrong)


# What `ray stop` does to Ray's processes; `ray start --block` lives on.
TERMINATE_RAY = "pkill -TERM -f 'gcs_server|raylet/raylet|ray::DashboardAgent|ray::RuntimeEnvAgent'"
KILL_HEAD = "docker kill clusterctl-lab && docker start clusterctl-lab"
AWAY = "docker kill clusterctl-lab && sleep 95 && docker start clusterctl-lab"


# `noticed`: seconds within which status must say that the service does not serve, about twice what
# docs/performance.md promises of it. `cause`: what status keeps of it once the service is back.
@pytest.mark.parametrize(
    ("fault", "hosts", "command", "noticed", "cause"),
    [
        pytest.param(
            "raylet of the worker, killed",
            ["gpu2"],
            "pkill -KILL -f /raylet/raylet",
            60,
            "gpu2",
            marks=pytest.mark.long,
        ),
        ("engine, killed", ["gpu1"], "pkill -KILL -f 'VLLM::EngineCore'", 60, "end"),
        pytest.param(
            "head's container, killed", ["gpu1"], KILL_HEAD, 60, "", marks=pytest.mark.long
        ),
        pytest.param(
            "Ray's processes on both hosts, SIGTERM",
            ["gpu2", "gpu1"],
            TERMINATE_RAY,
            30,
            "Ray",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "raylet of the worker, frozen",
            ["gpu2"],
            "pkill -STOP -f /raylet/raylet",
            60,
            "gpu2",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "rank of the worker, frozen",
            ["gpu2"],
            "pkill -STOP -f RayWorkerProc",
            100,
            "stalled",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "worker's container, away for 95 s",
            ["gpu2"],
            AWAY,
            30,
            "gpu2",
            marks=pytest.mark.long,
        ),
    ],
    ids=["raylet", "engine", "head", "SIGTERM", "raylet frozen", "rank frozen", "away"],
)
def test_a_service_comes_back(
    operator: Operator,
    on_host: OnHost,
    record_property: Callable[[str, object], None],
    fault: str,
    hosts: list[str],
    command: str,
    noticed: float,
    cause: str,
) -> None:
    key = key_of(on_host)
    restarts = service(operator, "tiny")["restarts"]
    began = time.monotonic()
    for host in hosts:
        done = on_host(host, command)
        assert done.returncode == 0, f"{fault}: {done.stderr}"
    well = time.monotonic()
    until(
        lambda: service(operator, "tiny")["state"] != "ready",
        within=noticed,
        what=f"status notices: {fault}",
    )
    record_property(f"seconds until status tells of: {fault}", round(time.monotonic() - began))
    until(
        lambda: service(operator, "tiny")["state"] == "ready" and answers(ENDPOINT, "tiny", key),
        within=RECOVERY,
        what=f"a completion after: {fault}",
    )
    took = time.monotonic() - (well if "away" in fault else began)
    record_property(f"seconds until a completion after: {fault}", round(took))
    if cause:  # a supervisor that was killed itself starts to count anew
        now = service(operator, "tiny")
        assert now["restarts"] > restarts
        assert cause in now["last_failure"]


@pytest.mark.long
def test_an_engine_that_hangs_with_requests_is_told_at_once_and_comes_back(
    operator: Operator, on_host: OnHost, record_property: Callable[[str, object], None]
) -> None:
    key = key_of(on_host)
    hanging = threading.Event()

    def ask(tokens: int) -> None:
        while not hanging.is_set():
            with contextlib.suppress(httpx2.HTTPError):
                completion(ENDPOINT, "tiny", key, tokens=tokens)

    # Of unlike lengths: requests that end together leave the engine idle for a moment
    users = [threading.Thread(target=ask, args=(tokens,)) for tokens in (500, 430, 370)]
    for user in users:
        user.start()
    try:
        until(
            lambda: service(operator, "tiny")["requests_running"] == 3, within=60, what="3 requests"
        )
        began = time.monotonic()
        assert on_host("gpu1", "pkill -STOP -f VLLM::EngineCore").returncode == 0
        hanging.set()
        until(
            lambda: service(operator, "tiny")["silence"].startswith("no token for"),
            within=40,
            what="status tells that no token comes",
        )
        record_property("seconds until status tells of silence", round(time.monotonic() - began))
        assert operator.run("status").status == 8
        until(
            lambda: service(operator, "tiny")["state"] != "ready",
            within=100,
            what="the stall is known",
        )
        record_property("seconds until the stall is known", round(time.monotonic() - began))
    finally:
        hanging.set()
        for user in users:
            user.join()
    until(
        lambda: service(operator, "tiny")["state"] == "ready" and answers(ENDPOINT, "tiny", key),
        within=RECOVERY,
        what="a completion after the engine hung",
    )
    took = round(time.monotonic() - began)
    record_property("seconds until a completion after: engine, frozen with 3 requests", took)
    assert "ago: stalled: no token for" in " ".join(operator.ok("status").stdout.split())


def test_a_host_that_lost_its_power_comes_back(
    operator: Operator, on_host: OnHost, record_property: Callable[[str, object], None]
) -> None:
    key = key_of(on_host)
    faults.power_off("gpu2")
    try:
        ran = operator.within(6, "status")
        assert ran.status == 8, ran.text
        assert "gpu2" in ran.stdout
        assert "no answer" in ran.stdout
    finally:  # the tests after this one need it
        started = time.monotonic()
        faults.power_on("gpu2")
    until(
        lambda: service(operator, "tiny")["state"] == "ready" and answers(ENDPOINT, "tiny", key),
        within=RECOVERY,
        what="a completion after the reboot of the worker",
    )
    record_property("seconds until a completion after: power", round(time.monotonic() - started))
    until(lambda: operator.run("status").status == 0, within=120, what="all is healthy again")


def test_node_containers_come_back_when_docker_restarts(
    operator: Operator, on_host: OnHost, record_property: Callable[[str, object], None]
) -> None:
    """On both hosts at once. Their containers have a CDI device, as with GPUs, which Docker 26
    cannot give them yet when it starts its containers again."""
    devices = "docker inspect clusterctl-lab --format '{{json .HostConfig.DeviceRequests}}'"
    assert "clusterctl.lab/cpu=all" in on_host("gpu2", devices).stdout
    key, started = key_of(on_host), time.monotonic()
    for host in ("gpu1", "gpu2"):
        assert on_host(host, "systemctl restart docker").returncode == 0
    until(
        lambda: service(operator, "tiny")["state"] == "ready" and answers(ENDPOINT, "tiny", key),
        within=RECOVERY,
        what="a completion after a restart of Docker",
    )
    record_property("seconds until a completion after: docker", round(time.monotonic() - started))
    until(lambda: operator.run("status").status == 0, within=120, what="all is healthy again")


def test_a_model_that_cannot_start_says_why_and_is_withdrawn(operator: Operator) -> None:
    ran = operator.run(
        "serve", "/data/models/tiny", "--name", "long", "--port", "8010", "--tp", "1",
        "--", "--max-model-len", "100000",
    )  # fmt: skip
    assert ran.status in {6, 11}, ran.text
    assert "Traceback" not in ran.stderr.split("error:")[0]
    assert service(operator, "long")["state"] == "absent"


def test_documents_that_cannot_be_read_are_named_and_mended(
    operator: Operator, inventory: str, on_host: OnHost
) -> None:
    """Cut short, and garbage: what serves goes on meanwhile, and is not restarted after it."""
    etc, key = "/etc/clusterctl/lab", key_of(on_host)
    restarts = service(operator, "tiny")["restarts"]
    before = on_host("gpu1", f"cat {etc}/services/tiny.json {etc}/node.json").stdout
    on_host(
        "gpu1",
        f"cd {etc}; truncate -s 100 services/tiny.json node.json;"
        " head -c 50 /dev/urandom >services/other.json",
    )
    until(
        lambda: "the supervisor follows the previous one" in operator.run("status").stdout,
        within=30,
        what="status names what cannot be read",
    )
    ran = operator.run("status")
    assert ran.status == 8, ran.text
    for file in ("services/tiny.json", "services/other.json", "node.json"):
        assert f"gpu1: {file} cannot be read" in ran.stdout, ran.text
    assert service(operator, "tiny")["state"] == "ready"
    assert answers(ENDPOINT, "tiny", key)

    ran = operator.ok("bootstrap", inventory, "--yes")
    assert "restore services/tiny.json, which cannot be read" in ran.stderr, ran.text
    assert "remove services/other.json, which cannot be read" in ran.stderr, ran.text
    after = on_host("gpu1", f"cat {etc}/services/*.json {etc}/node.json").stdout
    assert after == before
    until(lambda: operator.run("status").status == 0, within=60, what="all is healthy again")
    assert service(operator, "tiny")["restarts"] == restarts


def test_a_full_file_system_of_logs_is_named_and_stops_nothing(
    operator: Operator, on_host: OnHost, words: tuple[str, ...]
) -> None:
    restarts = service(operator, "tiny")["restarts"]
    logs = "/var/log/clusterctl/lab"
    inside = "nsenter -m -t $(docker inspect -f '{{.State.Pid}}' clusterctl-lab)"
    mounted = on_host(
        "gpu1",
        f"{inside} mount -t tmpfs -o size=1m tmpfs {logs} &&"
        f" {inside} dd if=/dev/zero of={logs}/ballast bs=64k",
    )
    assert "No space left on device" in mounted.stderr, mounted.stderr
    try:
        time.sleep(deadlines.STALE + 1)  # a state that is written no more would count as old by now
        ran = operator.run("status")
        assert ran.status == 8, ran.text
        assert f"gpu1: {logs} is on a full file system" in ran.stdout, ran.text
        assert "1 problem:" in ran.stdout, ran.text
        assert service(operator, "tiny")["state"] == "ready"
        ran = operator.run(*words, "--dry-run")
        assert ran.status == 0, ran.text
        assert "Nothing to change: the service already runs like this." in ran.stderr, ran.text
    finally:
        on_host("gpu1", f"{inside} umount {logs}")
    until(lambda: operator.run("status").status == 0, within=30, what="all is healthy again")
    assert service(operator, "tiny")["restarts"] == restarts


def test_a_host_taken_out_of_the_inventory_while_it_serves_is_named(
    operator: Operator, inventory: str, tmp_path: Path
) -> None:
    document = yaml.safe_load(Path(inventory).read_text())
    del document["hosts"]["gpu2"]
    without = tmp_path / "without.yaml"
    without.write_text(yaml.safe_dump(document))
    for words, status in ((("status", "-i"), 8), (("check",), 5), (("bootstrap",), 5)):
        ran = operator.run(*words, str(without))
        assert ran.status == status, ran.text
        assert (
            "gpu2: is not in the inventory, but its container still runs in this cluster at "
            "10.77.0.12, with rank 1 of tiny" in " ".join(ran.text.split())
        ), ran.text
        assert f"`clusterctl down --limit gpu2 -i {without}`" in ran.text, ran.text
    assert operator.run("status").status == 0


def test_a_plan_needs_no_cache_directory(operator: Operator, inventory: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "clusterctl", "bootstrap", "--dry-run", inventory],
        env={**operator.environment, "XDG_CACHE_HOME": "/proc/none"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def read_until_it_starts(serving: subprocess.Popen[str]) -> None:
    """Until `serve` says that the supervisor starts vLLM: the service is declared then."""
    assert serving.stderr is not None
    before = []
    for line in serving.stderr:
        before.append(line)
        if "start vLLM" in line:
            break
    assert "start vLLM" in before[-1], "".join(before)


def test_a_frozen_serve_does_not_bring_back_what_was_stopped_meanwhile(
    operator: Operator, on_host: OnHost
) -> None:
    words = ("serve", "/data/models/tiny", "--tp", "2", "--name", "tiny", "--yes")
    frozen = operator.start(*words, "--", "--max-model-len", "512")
    read_until_it_starts(frozen)
    frozen.send_signal(signal.SIGSTOP)
    try:
        # What the head does itself once the silence has lasted for a minute.
        assert on_host("gpu1", "pkill -f clusterctl-loc[k]").returncode == 0
        operator.ok("stop", "tiny")
    finally:
        frozen.send_signal(signal.SIGCONT)
    _, told = frozen.communicate(timeout=120)
    assert frozen.returncode == 6, told
    assert "tiny was stopped by someone else meanwhile, and was left as it is" in told


def test_a_service_that_was_stopped_leaves_the_cluster(operator: Operator) -> None:
    assert operator.ok("status", "--json").json["services"] == []
    again = operator.run("stop", "tiny")
    assert again.status == 2, again.text
    until(lambda: gpus_used(operator) == 0, within=60, what="Ray has its GPUs back")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("--tp", "4"), 11, "2 free"),
        (("--tp", "3"), 2, "attention heads"),
        (("--tp", "1", "--port", "22"), 2, "port 22 is taken"),
    ],
)
def test_what_cannot_be_served_is_refused_before_anything_starts(
    operator: Operator, words: tuple[str, ...], status: int, said: str
) -> None:
    ran = operator.run("serve", "/data/models/tiny", *words)
    assert ran.status == status, ran.text
    assert said in ran.stderr


def test_the_images_own_vllm_says_what_was_predicted(operator: Operator) -> None:
    words = ("fit", "/data/models/tiny", "--tp", "2", "--json")
    predicted, asked = operator.ok(*words).json, operator.ok(*words, "--ask").json
    assert any("asked in the image on gpu1" in note for note in asked["notes"]), asked["notes"]
    assert asked["kv_cache_tokens"] == predicted["kv_cache_tokens"]
    for ours, theirs in zip(predicted["ranks"], asked["ranks"], strict=True):
        # A model of 1 MiB: each figure is rounded to 0.0001 GiB
        assert theirs["weights_gib"] == pytest.approx(ours["weights_gib"], rel=0.01, abs=0.0002)


def test_gpus_of_a_service_that_is_not_up_yet_are_not_free(operator: Operator) -> None:
    first = operator.start("serve", "/data/models/tiny", "--tp", "1", "--name", "one")
    read_until_it_starts(first)
    first.kill()
    first.communicate()
    ran = operator.run("serve", "/data/models/tiny", "--tp", "2", "--name", "two")
    assert ran.status == 11, ran.text
    assert "there is 1 free" in ran.stderr, ran.text
    assert re.search(r"service one \(\S+\) holds 1 GPU", ran.stderr), ran.text
    operator.ok("stop", "one")


def test_a_model_missing_on_one_host_is_named(operator: Operator, on_host: OnHost) -> None:
    on_host("gpu2", "mv /data/models/tiny /data/models/away")
    try:
        ran = operator.run("serve", "/data/models/tiny", "--tp", "2")
    finally:
        on_host("gpu2", "mv /data/models/away /data/models/tiny")
    assert ran.status == 5, ran.text
    assert "gpu2: the model is missing" in ran.stderr


@pytest.mark.parametrize(
    ("fault", "mend", "seen", "checked"),
    [
        (
            ["ip -n lab-switch link set lab-gpu2-f down"],
            ["ip -n lab-switch link set lab-gpu2-f up"],
            "gpu2: interface ens3, which carries Gloo and NCCL, is down",
            "gpu2: interface ens3 (nics.nccl, nics.gloo) is down",
        ),
        (
            [f"{GPU2} ip link set ens3 {to}" for to in ("down", "name swapped")],
            [f"{GPU2} ip link set {to}" for to in ("swapped name ens3", "ens3 up")],
            "gpu2: interface ens3, which carries Gloo and NCCL, does not exist",
            "gpu2: has no interface ens3 (nics.nccl, nics.gloo)",
        ),
    ],
    ids=["cable out", "renamed"],
)
def test_a_fabric_that_is_gone_is_told_once_and_for_what_it_is(
    operator: Operator, inventory: str, fault: list[str], mend: list[str], seen: str, checked: str
) -> None:
    """Ray goes on over the other network, and notices nothing."""
    for command in fault:
        subprocess.run(command.split(), check=True)
    try:
        until(lambda: seen in operator.run("status").stdout, within=60, what=seen)
        status = operator.run("status")
        looked = operator.run("check", inventory)
    finally:
        for command in mend:
            subprocess.run(command.split(), check=True)
    assert status.status == 8, status.text
    assert looked.status == 5, looked.text
    assert checked in looked.stderr
    assert "not in the inventory" not in looked.stderr, looked.text
    assert looked.stderr.count("error: ") == 1, looked.text
    until(lambda: operator.run("status").status == 0, within=60, what="all is healthy again")


def test_weights_that_differ_between_hosts_are_named_before_ranks_start(
    operator: Operator, on_host: OnHost
) -> None:
    """Bytes flipped in place, the time of the last write set back: of a model that was copied to
    the hosts, and of one that was pushed and has a manifest."""
    serve = ("serve", "/data/models/tiny", "--tp", "2")
    file = "/data/models/tiny/model.safetensors"
    flip = (
        f"cp -p {file} /root/right; printf flipped | dd of={file} bs=1 seek=300000 conv=notrunc; "
        f"touch -r /root/right {file}"
    )
    on_host("gpu2", flip)
    copied = operator.run(*serve)
    assert copied.status == 5, copied.text
    assert "gpu2: model.safetensors in /data/models/tiny differs from the one on gpu1" in (
        copied.stderr
    )
    assert "no manifest says" in copied.stderr
    assert "fix: clusterctl model push tiny --from host:gpu1" in copied.stderr
    operator.ok("model", "push", "tiny", "--from", "host:gpu1", "--yes")
    assert on_host("gpu2", f"cmp {file} /root/right").returncode == 0
    on_host("gpu2", flip)
    pushed = operator.run(*serve)
    assert pushed.status == 5, pushed.text
    assert "gpu2: model.safetensors in /data/models/tiny differs from the one on gpu1\n" in (
        pushed.stderr
    )
    operator.ok("model", "push", "tiny", "--from", "host:gpu1", "--yes")
    assert on_host("gpu2", f"cmp {file} /root/right").returncode == 0
    assert operator.run(*serve, "--dry-run").status == 10


def test_down_leaves_hosts_as_found(operator: Operator, on_host: OnHost) -> None:
    asked = operator.run("down", "--purge")
    assert asked.status == 2, asked.text
    operator.ok("down", "--purge", "--yes")
    for host in ("gpu1", "gpu2"):
        left = on_host(
            host,
            "ls -d /etc/clusterctl /opt/clusterctl /var/{log,cache}/clusterctl"
            " /var/lib/clusterctl/weights /etc/systemd/system/*clusterctl*;"
            " command -v docker; pgrep -f 'raylet|vllm'",
        )
        assert left.stdout == "", left.stdout
    again = operator.ok("down", "--purge")
    assert "0 changes" in again.stdout
