"""Faults of a night, put into a cluster that serves, and the verdict that `diagnose` gives of each:
the cause, its host, and a fix. What is over and ended no service is told no more. The tests build
on each other, in the order of this file."""

from __future__ import annotations

import json
import os
import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest

from clusterctl.errors import DEGRADED
from clusterctl.lab import faults
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

WITHIN = 30.0
"""Seconds from the symptom to the verdict."""

EVIDENCE = 20.0
"""Seconds from the supervisor's verdict that a service hangs to the evidence on all hosts."""

STALLED = 150.0
"""Seconds until a service that hangs is called stalled, of which 60 are its stall_timeout."""

AGAIN = 400.0
"""Seconds until a service is ready again, on two slow cores."""

NODE = "clusterctl-lab"
LOGS = "/var/log/clusterctl"
ENDPOINT = "http://10.77.0.11:8000/v1/completions"
RANK, ENGINE = "-f ^ray::RayWorkerProc", "-f ^VLLM::EngineCore"
PACKAGES = "/opt/venv/lib/python3*/site-packages"
LOST = "INPUT -i ens3 -m statistic --mode random --probability 0.3 -j DROP"

# Makes a rank compute for years, with Python's lock held, when it gets a signal that nobody uses.
LOOP = """\
import re, signal
def loops_forever(*_):
    re.match("(a+)+b", "a" * 60)
signal.signal(signal.SIGRTMIN + 5, loops_forever)
"""

HOG = "import time; held = bytearray(1 << 30); time.sleep(20)"

# Listens on the port of the replica as soon as that is free.
HOLD = """\
import socket, time
while True:
    try:
        held = socket.create_server(("10.77.0.11", 8100))
        break
    except OSError:
        time.sleep(0.05)
time.sleep(600)
"""


@dataclass(frozen=True)
class Night:
    """A cluster with one service, `tiny`, over both hosts, and what breaks it."""

    operator: Operator
    on_host: OnHost

    def causes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.operator.run("diagnose", "--json").json["causes"]
        return [each for each in found if not each["over"]]

    def verdict(self, id_: str, host: str, *words: str, within: float = WITHIN) -> dict[str, Any]:
        """Wait for the first cause to be `id_` of `host`, with all of `words`; return it."""
        last: list[dict[str, Any]] = []

        def told() -> bool:
            last[:] = self.causes()
            return bool(last) and last[0]["id"] == id_

        try:
            seconds = until(told, within=within, what=f"the verdict {id_}")
        except AssertionError as error:
            raise AssertionError(f"{error}, but {last}") from error
        print(f"{id_}: named after {seconds:.0f} s: {last[0]['cause']}")  # noqa: T201
        first = last[0]
        assert host in {each["host"] for each in first["evidence"]}, first
        assert all(word in first["cause"] for word in words), first
        assert first["fix"], first
        self.told_by_status(host)
        self.same_in_a_bundle()
        return first

    def same_in_a_bundle(self) -> None:
        """A bundle that is written now, and read elsewhere, has the same causes."""
        with TemporaryDirectory() as directory:
            bundle = f"{directory}/report.tar.gz"
            written = self.operator.run("diagnose", "--bundle", bundle, "--json").json["causes"]
            found = self.operator.run("diagnose", bundle, "--json").json["causes"]
        told = [(each["id"], each["over"], each["cause"]) for each in written]
        assert [(each["id"], each["over"], each["cause"]) for each in found] == told

    def told_by_status(self, host: str) -> None:
        """`status` names the host, or the service as not ready, and ends with 8."""
        last: list[str] = []

        def told() -> bool:
            looked = self.operator.run("status", "--json")
            services = [row for row in looked.json["services"] if row["state"] != "ready"]
            last[:] = [
                *(each for each in looked.json["problems"] if each.startswith(f"{host}: ")),
                *(f"{row['name']} {row['state']} {row['cause']}" for row in services),
            ]
            return bool(last) and looked.status == DEGRADED

        seconds = until(told, within=WITHIN, what="status names it")
        print(f"  status after {seconds:.0f} s: {last}")  # noqa: T201

    def nothing(self) -> None:
        """What is over, and ended no service, is told no more."""
        until(lambda: not self.causes(), within=WITHIN, what=f"silence, but {self.causes()}")
        assert self.operator.run("diagnose").status == 0

    def do(self, host: str, command: str) -> str:
        done = self.on_host(host, command)
        assert done.returncode == 0, f"{host}: {command}: {done.stderr}"
        return done.stdout.strip()

    def inside(self, host: str, command: str) -> str:
        """Run a command in the node's container."""
        return self.do(host, f"docker exec {NODE} sh -c {shlex.quote(command)}")

    def service(self) -> dict[str, Any]:
        services = self.operator.run("status", "--json").json["services"]
        return next((one for one in services if one["name"] == "tiny"), {"state": "absent"})

    def ready(self, after: int = -1) -> None:
        """Wait for the service to be ready, with more restarts than `after`."""

        def is_ready() -> bool:
            now = self.service()
            return bool(now["state"] == "ready" and now["restarts"] > after)

        until(is_ready, within=AGAIN, what="tiny is ready again")

    def since(self, event: str) -> float:
        """When the journal of the service had `event` last."""
        lines = self.do("gpu1", f"grep '\"{event}\"' {LOGS}/lab/journal.jsonl").splitlines()
        return float(json.loads(lines[-1])["time"])

    def failing(self, within: float) -> None:
        until(lambda: self.service()["state"] != "ready", within=within, what="tiny fails")

    def ask(self, key: str = "", tokens: int = 4) -> int:
        """Send a request; the HTTP status, 0 if there is no answer."""
        key = key or self.do("gpu1", "cat /etc/clusterctl/lab/api.key")
        body = {"model": "tiny", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True}
        with httpx2.Client(timeout=20, trust_env=False) as client:
            try:
                headers = {"Authorization": f"Bearer {key}"}
                return client.post(ENDPOINT, headers=headers, json=body).status_code
            except httpx2.HTTPError:
                return 0


@pytest.fixture(scope="module")
def night(operator: Operator, used_hosts: str, on_host: OnHost) -> Iterator[Night]:
    """Nothing is recorded yet. The logs of gpu2 have a file system of their own, which a test
    fills."""
    made = Night(operator, on_host)
    made.do("gpu1", f"rm -rf {LOGS}")
    made.do("gpu2", f"mkdir -p {LOGS}; mountpoint -q {LOGS} || mount -t tmpfs -o size=64m x {LOGS}")
    operator.ok("bootstrap", used_hosts, timeout=1000)
    module = f"echo {shlex.quote(LOOP)} >$(echo {PACKAGES})/fault_loop.py"
    made.inside("gpu2", f"{module}; echo 'import fault_loop' >$(echo {PACKAGES})/fault_loop.pth")
    operator.ok("serve", "/data/models/tiny", "--name", "tiny", "--tp", "2", "--yes", timeout=1500)
    yield made
    on_host("gpu2", f"umount -l {LOGS}")


def process(night: Night, host: str, name: str) -> str:
    return night.inside(host, f"pgrep -n {name}")


def test_of_a_healthy_cluster_nothing_is_told(night: Night) -> None:
    night.nothing()
    named = night.operator.run("diagnose", "tiny")
    assert (named.status, named.stdout) == (0, "no failure found\n")


def test_a_proxy_that_would_swallow_localhost_is_passed_by(
    night: Night, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of clusterctl go to a port of this machine, over SSH."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "hello", "max_tokens": 4}\n')
    night.operator.ok("batch", "tiny", str(prompts), "-o", str(tmp_path / "answers.jsonl"))
    assert night.operator.run("status").status == 0
    night.nothing()


@pytest.mark.parametrize(
    ("host", "name", "called"),
    [("gpu2", RANK, "rank 1 of tiny"), ("gpu1", ENGINE, "VLLM::EngineCore")],
    ids=["rank", "engine"],
)
def test_a_process_that_is_stopped_goes_on_by_the_fix(
    night: Night, host: str, name: str, called: str
) -> None:
    restarts = night.service()["restarts"]
    pid = process(night, host, name)
    night.inside(host, f"kill -STOP {pid}")
    told = night.verdict("process-stopped", host, f"{called} (process {pid}) on {host}")
    fix = told["fix"].partition(" lets")[0]
    assert fix == f"clusterctl exec --limit {host} --node -- sh -c 'kill -CONT {pid}'"
    night.operator.ok(*shlex.split(fix)[1:])
    night.nothing()
    assert night.service()["restarts"] == restarts
    assert night.ask() == 200


def test_a_bundle_of_it_all_is_written_in_time(night: Night, tmp_path: Path) -> None:
    """Exit status 8 would say that something is found."""
    ran = night.operator.within(20, "diagnose", "--bundle", str(tmp_path / "report.tar.gz"))
    assert ran.status == 0, ran.text
    print(f"bundle after {ran.seconds:.1f} s")  # noqa: T201


def test_a_link_that_is_down(night: Night) -> None:
    faults.pull_cable("gpu2", "ens3")
    try:
        night.verdict("link-lost", "gpu2", "ens3 of gpu2")
    finally:
        faults.plug_cable("gpu2", "ens3")
    night.nothing()


def test_packets_that_are_lost_under_load(night: Night) -> None:
    """Each connection shows its losses at the sender, so the verdict names the other end."""
    ended = threading.Event()

    def load() -> None:
        while not ended.is_set():
            night.ask(tokens=500)

    night.do("gpu2", f"iptables -I {LOST}")
    with ThreadPoolExecutor() as pool:
        for _ in range(3):
            pool.submit(load)
        try:
            night.verdict("packet-loss", "gpu1")
        finally:
            ended.set()
            night.do("gpu2", f"iptables -D {LOST}")
    night.nothing()


def test_shared_memory_that_is_full(night: Night) -> None:
    size = night.do("gpu2", "df -k --output=size /dev/shm | tail -1")
    used = night.do("gpu2", "df -k --output=used /dev/shm | tail -1")
    remount = "mount -o remount,size={}k /dev/shm"
    fill = "head -c 8m /dev/zero >/dev/shm/ballast; test -s /dev/shm/ballast"
    night.do("gpu2", f"{remount.format(int(used) + 4096)}; {fill}")
    try:
        night.verdict("shm-too-small", "gpu2", "of gpu2 (/dev/shm) is full")
    finally:
        night.do("gpu2", f"rm /dev/shm/ballast; {remount.format(size)}")


def test_a_disk_that_is_full_so_that_nothing_is_recorded(night: Night) -> None:
    night.do("gpu2", f"head -c 65m /dev/zero >{LOGS}/ballast; test -s {LOGS}/ballast")
    try:
        night.verdict("disk-full", "gpu2", f"{LOGS}/lab of gpu2 is full: 0 of 64 MiB are free")
    finally:
        night.do("gpu2", f"rm {LOGS}/ballast")


def test_a_client_with_a_wrong_key_is_counted_and_is_no_failure(night: Night) -> None:
    """The gateway tells the client, and logs nothing that strangers could fill a disk with."""

    def refused() -> int:
        return int(night.operator.run("status", "--json").json["gateway"]["refused"])

    before = refused()
    assert night.ask("not-the-key") == 401
    until(lambda: refused() > before, within=WITHIN, what="the refusal is counted")
    night.nothing()


def test_a_raylet_that_is_stopped(night: Night) -> None:
    restarts = night.service()["restarts"]
    pid = process(night, "gpu2", "-x raylet")
    night.inside("gpu2", f"kill -STOP {pid}")
    night.verdict("process-stopped", "gpu2", f"raylet (process {pid}) on gpu2")
    night.ready(after=restarts)


def test_a_rank_in_an_endless_loop(night: Night) -> None:
    restarts = night.service()["restarts"]
    night.inside("gpu2", f"kill -39 {process(night, 'gpu2', RANK)}")
    night.failing(within=STALLED)
    night.verdict("rank-hung", "gpu2", "rank 1 of tiny", "computes in")
    taken = f"ls -t {LOGS}/lab/evidence-*.json | head -n 1 | xargs stat -c %Y"
    seconds = int(night.do("gpu2", taken)) - night.since("stalled")
    assert seconds < EVIDENCE
    print(f"evidence {seconds:.0f} s after the stall was called")  # noqa: T201
    night.ready(after=restarts)


def test_a_rank_that_is_killed_for_lack_of_memory(night: Night) -> None:
    """The node gets a limit, and something else beside the rank takes what is left."""
    restarts = night.service()["restarts"]
    group = night.do(
        "gpu2",
        f"id=$(docker inspect -f '{{{{.Id}}}}' {NODE}); find /sys/fs/cgroup/ -path \"*$id*\" "
        "'(' -name memory.limit_in_bytes -o -name memory.max ')' | head -n 1",
    )
    held = night.do("gpu2", f"awk '/^(rss|anon) /{{print $2}}' $(dirname {group})/memory.stat")
    night.do("gpu2", f"echo {int(held) + 256 * 2**20} >{group}")
    try:
        night.do("gpu2", f"docker exec -d {NODE} python3 -c {shlex.quote(HOG)}")
        night.verdict("host-oom-ray", "gpu2", "on gpu2 for lack of memory")
    finally:
        night.do("gpu2", f"echo -1 >{group} || echo max >{group}")
    night.ready(after=restarts)


def test_a_library_that_was_swapped_on_one_host(night: Night) -> None:
    """What a host has is looked at every minute."""
    data = f"{PACKAGES}/torch-*.dist-info/METADATA"
    version = night.inside("gpu2", f"sed -n 's/^Version: //p' {data}")
    swap = f"sed -i 's/^Version: .*/Version: {{}}/' {data}"
    restarts = night.service()["restarts"]
    night.inside("gpu2", swap.format("2.12.1"))
    try:
        noted = f"grep -c 2.12.1 {LOGS}/lab/ledger.jsonl"
        until(lambda: night.on_host("gpu2", noted).returncode == 0, within=90, what="the ledger")
        night.inside("gpu1", f"pkill -KILL {ENGINE}")
        night.failing(within=60)
        night.verdict("version-changed", "gpu2", "torch of node changed on gpu2", "2.12.1 now")
        night.ready(after=restarts)
    finally:
        night.inside("gpu2", swap.format(version))


def test_a_port_that_another_program_took_between_restarts(night: Night) -> None:
    restarts = night.service()["restarts"]
    night.do("gpu1", f"docker exec -d {NODE} python3 -c {shlex.quote(HOLD)} holds-8100")
    try:
        night.inside("gpu1", "pkill -KILL -f '[v]llm serve'")
        in_use = f"grep -rqi 'address already in use' {LOGS}/lab"
        until(lambda: night.on_host("gpu1", in_use).returncode == 0, within=AGAIN, what="a log")
        night.verdict("port-in-use", "gpu1")
    finally:
        night.inside("gpu1", "pkill -f '[h]olds-8100'")
    night.ready(after=restarts)
