"""What clients of two replicas lose while hosts, engines, flags and keys change, counted request by
request (`pytest -rP` prints the rows). The tests build on each other, in the order of this file."""

from __future__ import annotations

import os
import re
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from clusterctl.lab import faults
from clusterctl.lab.paths import lab_paths
from clusterctl.steps.gateway_certificate import made
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import CALM, RATE, SteadyLoad, admitted

pytestmark = [
    pytest.mark.lab,
    pytest.mark.long,
    pytest.mark.timeout(1800, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SERVE = ("serve", "/data/models/tiny", "--tp", "1", "--yes")
HEAD, WORKER = "https://10.77.0.11:8000", "https://10.77.0.12:8000"
SHARED = "10.77.0.100"
GATEWAY_BACK = 2.0
"""Seconds."""
NODE, ADDRESS = "clusterctl-lab", "clusterctl-address-lab"
OUTAGE_SECONDS = 30.0
IN_FLIGHT_AT_MOST = 4
"""Requests that may be at a gateway at once: two a second, each for less than 2 s."""
ENGINE = "VLLM::EngineCor"


@pytest.fixture(scope="module")
def cluster(operator: Operator, used_hosts: str) -> None:
    operator.ok("bootstrap", used_hosts, timeout=1000)
    operator.ok(*SERVE, "--replicas", "2", "--", "--max-model-len", "512", timeout=1500)


def keys(operator: Operator, _: OnHost) -> None:
    for number in range(5):
        operator.ok("key", "create", f"user{number}")
        operator.ok("key", "revoke", f"user{number}")


def flags(operator: Operator, _: OnHost) -> None:
    operator.ok(*SERVE, "--", "--max-model-len", "1024", timeout=1500)


def broken_flag(operator: Operator, _: OnHost) -> None:
    words = ("--max-model-len", "1024", "--attention-backend", "NONE")
    ran = operator.run(*SERVE, "--", *words, timeout=1500)
    assert "serves its previous version again" in ran.stderr, ran.text


def drained(operator: Operator, _: OnHost) -> None:
    operator.ok("drain", "gpu2")
    operator.ok("undrain", "gpu2")
    flags = ("--", "--max-model-len", "1024")
    operator.ok(*SERVE, "--replicas", "max", *flags, timeout=1500)


def removed(operator: Operator, _: OnHost) -> None:
    operator.ok("remove", "gpu2", "--yes")
    operator.ok("bootstrap", str(lab_paths().inventory), timeout=1500)
    flags = ("--", "--max-model-len", "1024")
    operator.ok(*SERVE, "--replicas", "max", *flags, timeout=1500)


def worker_replaced(operator: Operator, _: OnHost) -> None:
    """`bootstrap` replaces the worker's container alone, for a directory that is mounted there."""
    changed = operator.home / "mounts.yaml"
    text = lab_paths().inventory.read_text()
    changed.write_text(
        re.sub(r"^  gpu2:\n", "  gpu2:\n    mounts: {/srv: /srv}\n", text, flags=re.MULTILINE)
    )
    ran = operator.ok("bootstrap", str(changed), timeout=1500)
    assert "send requests of tiny" in ran.stderr, ran.text
    operator.ok("plan", str(changed))  # exit 0: nothing is left to do


def killed_in_a_roll(operator: Operator, _: OnHost) -> None:
    """A run that is killed when a replica has left the gateway; the same again finishes it."""
    words = (*SERVE, "--", "--max-model-len", "768")
    operator.cut_short(*words, stage="Serve tiny", fault=signal.SIGKILL)
    operator.ok(*words, timeout=1500)


def on_the_worker(command: str) -> Callable[[Operator, OnHost], None]:
    """Return a fault of the worker, which is awaited until the gateway's list shows it."""

    def fault(operator: Operator, on_host: OnHost) -> None:
        assert on_host("gpu2", command).returncode == 0
        until(lambda: admitted(operator) == ["gpu1"], within=60, what="the replica is out")

    return fault


def power_loss(operator: Operator, _: OnHost) -> None:
    faults.power_off("gpu2")
    until(lambda: admitted(operator) == ["gpu1"], within=60, what="the replica is out")
    faults.power_on("gpu2")


def gateway_killed(_: Operator, on_host: OnHost) -> None:
    assert on_host("gpu1", "pkill -KILL -x haproxy").returncode == 0


def head_killed(_: Operator, on_host: OnHost) -> None:
    assert on_host("gpu1", RESTART).returncode == 0


@contextmanager
def live_restore(on_host: OnHost, host: str) -> Iterator[None]:
    """Docker there leaves containers running when it ends, as one does that we install."""
    file, reload = "/etc/docker/daemon.json", "systemctl reload docker && sleep 1 && docker info"
    on = f"""sed -i 's/^{{/{{"live-restore": true, /' {file} && {reload}"""
    assert "Live Restore Enabled: true" in on_host(host, on).stdout
    yield
    off = f"""sed -i 's/"live-restore": true, //' {file} && {reload}"""
    until(lambda: "Enabled: false" in on_host(host, off).stdout, within=150, what="as before")


def docker_restarted(host: str) -> Callable[[Operator, OnHost], None]:
    """Return the restart of a Docker with live-restore."""

    def restart(_: Operator, on_host: OnHost) -> None:
        processes = "pgrep -f '[v]llm serve' && pgrep -x raylet"
        with live_restore(on_host, host):
            before = on_host(host, processes)
            assert before.returncode == 0
            assert on_host(host, "systemctl restart docker", timeout=200).returncode == 0
            time.sleep(20)
            assert on_host(host, processes).stdout == before.stdout

    return restart


def rebooted(operator: Operator, on_host: OnHost) -> None:
    """A host with live-restore is shut down in order, and starts again."""
    with live_restore(on_host, "gpu2"):
        on_host("gpu2", "systemctl reboot")
        until(lambda: admitted(operator) == ["gpu1"], within=150, what="the replica is out")


RESTART = f"docker kill {NODE} && docker start {NODE}"
NOTHING, BEGUN, IN_FLIGHT, OUTAGE = "nothing", "begun streams", "in flight", "outage"

CHANGES = [
    ("nothing happens", lambda *_: time.sleep(15), NOTHING),
    ("5 keys created and revoked", keys, NOTHING),
    ("other flags", flags, NOTHING),
    ("a broken flag, undone", broken_flag, NOTHING),
    ("the worker drained, undrained, filled again", drained, NOTHING),
    ("the worker removed, added again", removed, NOTHING),
    ("the worker's node container replaced by bootstrap", worker_replaced, NOTHING),
    ("a change killed when it has begun, and run again", killed_in_a_roll, NOTHING),
    ("kill -9 of an engine", on_the_worker(f"pkill -KILL -f {ENGINE}"), BEGUN),
    ("SIGSTOP of an engine", on_the_worker(f"pkill -STOP -f {ENGINE}"), BEGUN),
    ("the worker's node container killed, started", on_the_worker(RESTART), BEGUN),
    ("power loss of the worker, on again", power_loss, BEGUN),
    ("Docker with live-restore restarted on the worker", docker_restarted("gpu2"), NOTHING),
    ("Docker with live-restore restarted on the head", docker_restarted("gpu1"), NOTHING),
    ("the worker with live-restore shut down, started", rebooted, NOTHING),
    ("kill -9 of the gateway", gateway_killed, IN_FLIGHT),
    ("the head's node container killed, started", head_killed, OUTAGE),
]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("what", "change", "loses"), CHANGES, ids=[each[0] for each in CHANGES])
def test_requests_lost_while(
    operator: Operator,
    on_host: OnHost,
    record_property: Callable[[str, object], None],
    what: str,
    change: Callable[[Operator, OnHost], None],
    loses: str,
) -> None:
    load = SteadyLoad(operator, on_host)
    with load.during(what) as row:
        change(operator, on_host)
        until(
            lambda: sorted(admitted(operator)) == ["gpu1", "gpu2"],
            within=600,
            what="both replicas get requests",
        )
    record_property(what, row)
    assert row["sent"] >= 2 * CALM * RATE * 0.8, f"not a steady load: {row}"
    assert row["whole"], row
    if loses == NOTHING:
        assert row["failed"] == row["broken"] == 0, row
    elif loses == BEGUN:
        assert row["failed"] == 0, row
        assert set(row["why"]) <= {"RemoteProtocolError", "no end of the stream", "an error event"}
    elif loses == IN_FLIGHT:
        assert row["lost_within_seconds"] <= GATEWAY_BACK + row["longest_seconds"], row


def asked(door: str, certificate: str, key: str) -> int:
    """The status of an answer to a completion, by a client that trusts this certificate alone; 0
    without one."""
    context = ssl.create_default_context(cadata=certificate)
    try:
        return httpx2.post(
            f"{door}/v1/completions",
            headers={"Authorization": f"Bearer {key}"},
            json={"model": "tiny", "prompt": "hello", "max_tokens": 4},
            verify=context,
            trust_env=False,
            timeout=60,
        ).status_code
    except httpx2.HTTPError:
        return 0


def test_gateways_of_two_hosts_with_tls(
    operator: Operator, on_host: OnHost, used_hosts: str, tmp_path: Path
) -> None:
    """The head's is killed, and the certificate replaced, while clients of the worker's go on."""
    inventory, bare = tmp_path / "doors.yaml", Path(used_hosts).read_text()

    def both(certificate: str, key: str) -> list[int]:
        return [asked(door, certificate, key) for door in (HEAD, WORKER)]

    inventory.write_text(f"{bare}\ngateway: {{tls: true, hosts: all}}\n")
    operator.ok("bootstrap", str(inventory), "--yes", timeout=1000)
    own = on_host("gpu1", "cat /etc/clusterctl/lab/gateway.crt").stdout
    alice = operator.ok("key", "create", "alice").stdout.strip()
    until(lambda: both(own, alice) == [200, 200], within=60, what="both gateways answer")

    load = SteadyLoad(operator, on_host, WORKER)
    with load.during("kill -9 of the head's gateway, at the worker's") as row:
        assert on_host("gpu1", "pkill -KILL -x haproxy").returncode == 0
        until(lambda: both(own, alice) == [200, 200], within=60, what="both gateways answer")
    assert (row["failed"], row["broken"]) == (0, 0), row

    operator.ok("key", "revoke", "alice")
    assert both(own, alice) == [401, 401]

    bob = operator.ok("key", "create", "bob").stdout.strip()
    chain, with_key = made("lab", ["10.77.0.11", "10.77.0.12"])
    given = "gateway: {tls: true, hosts: all, certificate: gate.crt, key: gate.key}"
    inventory.write_text(f"{bare}\n{given}\n")
    (tmp_path / "gate.crt").write_bytes(chain)
    (tmp_path / "gate.key").write_bytes(with_key.removeprefix(chain))
    with load.during("another certificate, at the worker's gateway") as row:
        operator.ok("bootstrap", str(inventory), "--yes", timeout=1000)
        until(
            lambda: both(chain.decode(), bob) == [200, 200], within=60, what="the new certificate"
        )
    assert (row["failed"], row["broken"]) == (0, 0), row
    assert both(own, bob) == [0, 0]

    (tmp_path / "gate.key").write_bytes(made("lab", ["10.77.0.11"])[1])
    refused = operator.run("bootstrap", str(inventory), "--yes")
    assert "its key belongs to a different certificate" in refused.stderr, refused.text
    assert both(chain.decode(), bob) == [200, 200]


def holders(on_host: OnHost) -> list[str]:
    """The hosts that have the address that the gateways share."""
    return [
        host for host in ("gpu1", "gpu2") if SHARED in on_host(host, "ip -br -4 address").stdout
    ]


def seconds_until_answered() -> float:
    """How long new clients of the shared address get no answer, from now on."""
    began = time.monotonic()
    while time.monotonic() - began < 60:
        try:
            httpx2.get(f"http://{SHARED}:8000/health", trust_env=False, timeout=0.5)
        except httpx2.HTTPError:
            time.sleep(0.02)
            continue
        return time.monotonic() - began
    return float("inf")


@pytest.mark.usefixtures("cluster")
def test_gateways_that_share_an_address(
    operator: Operator,
    on_host: OnHost,
    used_hosts: str,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """The head's host has the address and loses its power; then the other host's gateway ends."""
    inventory, bare = tmp_path / "shared.yaml", Path(used_hosts).read_text()

    def sharing(address: str) -> str:
        gateway = f"gateway: {{hosts: all, virtual_ip: {address}}}"
        inventory.write_text(f"{bare}\n{gateway}\n")
        return str(inventory)

    refused = operator.run("bootstrap", sharing("10.79.0.100"), "--yes", timeout=300)
    assert "10.79.0.100 is not in the network of any of its interfaces" in refused.stderr, (
        refused.text
    )
    assert holders(on_host) == []
    taken = operator.run("bootstrap", sharing("10.77.0.1"), "--yes", timeout=300)
    assert "10.77.0.1 is taken" in taken.stderr, taken.text
    assert on_host("gpu1", "systemctl cat clusterctl-address-lab").returncode != 0

    operator.ok("bootstrap", sharing(SHARED), "--yes", timeout=1000)
    until(lambda: len(holders(on_host)) == 1, within=30, what="one host has the address")
    assert seconds_until_answered() < GATEWAY_BACK
    operator.ok("plan", str(inventory))  # exit 0: the address is no drift
    served = operator.ok(*SERVE).text
    assert f"http://{SHARED}:8000" in served, served
    assert "also at" not in served, served
    if holders(on_host) == ["gpu2"]:
        on_host("gpu2", f"systemctl restart {ADDRESS}")
        until(lambda: holders(on_host) == ["gpu1"], within=30, what="the head has the address")

    with SteadyLoad(operator, on_host, f"http://{SHARED}:8000").during("no power") as row:
        faults.power_off("gpu1")
        without_power = seconds_until_answered()
        time.sleep(OUTAGE_SECONDS)
        faults.power_on("gpu1")
        until(lambda: len(admitted(operator)) == 2, within=600, what="both replicas get requests")
    record_property("the head's host without power for 30 s, at the shared address", row)
    assert holders(on_host) == ["gpu2"], "connections were cut a second time"
    # What was on its way to that gateway; all others waited at most for the address.
    assert row["failed"] + row["broken"] <= IN_FLIGHT_AT_MOST, row
    assert row["lost_within_seconds"] <= GATEWAY_BACK, row

    assert on_host("gpu2", f"docker stop --time 0 {NODE}").returncode == 0
    stopped = seconds_until_answered()
    until(lambda: holders(on_host) == ["gpu1"], within=30, what="the other has the address")
    on_host("gpu2", f"docker start {NODE}")
    until(lambda: len(admitted(operator)) == 2, within=600, what="both replicas get requests")
    assert holders(on_host) == ["gpu1"], "connections were cut a second time"
    print(f"answered again {without_power:.2f} s without power, {stopped:.2f} s without HAProxy")  # noqa: T201
    record_property("seconds without power, without the container", (without_power, stopped))
    assert without_power < GATEWAY_BACK
    assert stopped < GATEWAY_BACK

    operator.ok("bootstrap", used_hosts, "--yes", timeout=1000)
    assert holders(on_host) == []
