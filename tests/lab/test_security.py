"""The promises of docs/security.md on whole hosts that serve a model over two of them, with the
firewall on. The tests build on each other, in the order of this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.engine.step import Change, HostView
from clusterctl.errors import ConnectionFailed, StepFailed
from clusterctl.inventory.load import load
from clusterctl.lab import faults
from clusterctl.lab.layout import CONTROL, FABRIC
from clusterctl.lab.network import SWITCH
from clusterctl.steps import firewall
from clusterctl.steps.files import root_script
from clusterctl.steps.firewall import Admission, Firewall, Places
from clusterctl.survey.survey import take_survey
from clusterctl.transport.base import Transport
from clusterctl.transport.connect import Connections
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(1200, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

HOSTS = ("gpu1", "gpu2")
PLACES = Places("lab")
LISTED = f"nft list table inet {PLACES.table}"
FOREIGN = (
    "add table inet of_the_user; add chain inet of_the_user c; add rule inet of_the_user c accept"
)


@pytest.fixture(scope="module")
def guarded(used_hosts: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The lab's inventory, with the firewall."""
    text = (
        Path(used_hosts).read_text().replace("\nhosts:", "\nnetwork: {firewall: true}\n\nhosts:", 1)
    )
    file = tmp_path_factory.mktemp("inventory") / "guarded.yaml"
    file.write_text(text)
    return str(file)


@pytest.fixture
def stranger() -> Iterator[str]:
    """A third machine on both networks of the hosts: the name of its network namespace."""
    name = "lab-stranger"
    ip = ["ip", "netns"]
    subprocess.run([*ip, "add", name], check=True)
    try:
        for number, network in enumerate((CONTROL, FABRIC)):
            end, inside = f"stranger{number}", f"eth{number}"
            run = ["ip", "-n", SWITCH, "link"]
            pair = ["type", "veth", "peer", "name", inside, "netns", name]
            subprocess.run([*run, "add", end, *pair], check=True)
            subprocess.run([*run, "set", end, "master", network.bridge, "up"], check=True)
            place = ["ip", "-n", name]
            address = str(network.interface(99))
            subprocess.run([*place, "address", "add", address, "dev", inside], check=True)
            subprocess.run([*place, "link", "set", inside, "up"], check=True)
        yield name
    finally:
        subprocess.run([*ip, "delete", name], check=True)


def places(on_host: OnHost) -> list[tuple[str, int]]:
    """Address and port of all that listens on the hosts beyond loopback, by their own `ss`."""
    found = set()
    own = {"gpu1": ("10.77.0.11", "10.78.0.11"), "gpu2": ("10.77.0.12", "10.78.0.12")}
    for host in HOSTS:
        for line in on_host(host, "ss -Hltn").stdout.splitlines():
            address, _, port = line.split()[3].rpartition(":")
            plain = address.strip("[]").removeprefix("::ffff:").partition("%")[0]
            if plain.startswith("127.") or plain == "::1":
                continue
            named = (plain,) if plain in own[host] else own[host]
            found |= {(each, int(port)) for each in named}
    return sorted(found)


def heard(namespace: str, wanted: list[tuple[str, int]]) -> list[dict[str, Any]]:
    program = [sys.executable, str(Path(__file__).with_name("stranger.py"))]
    done = subprocess.run(
        ["ip", "netns", "exec", namespace, *program],
        input="".join(f"{address} {port}\n" for address, port in wanted),
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_the_firewall_is_brought_to_the_hosts_and_the_cluster_serves_behind_it(
    operator: Operator, guarded: str, on_host: OnHost
) -> None:
    operator.ok("bootstrap", guarded, timeout=1000)
    for host in HOSTS:
        assert on_host(host, f"nft '{FOREIGN}'").returncode == 0
    assert operator.run("plan", guarded).status == 0, "a second run would change nothing"
    operator.ok("serve", "/data/models/tiny", "--name", "tiny", "--tp", "2", timeout=1000)
    promises = operator.ok("check", "--security", "--json", guarded).json["promises"]
    assert [each["state"] for each in promises if each["number"] in {1, 4, 5, 6, 7, 8, 10}] == [
        "holds"
    ] * 7


def test_a_stranger_on_the_network_reaches_ssh_and_the_service_alone(
    stranger: str, on_host: OnHost
) -> None:
    wanted = places(on_host)
    answers = heard(stranger, wanted)
    opened = {(each["address"], each["port"]) for each in answers if each["open"]}
    listening = {port for _, port in wanted}
    assert {22, 6379, 6380, 8000} <= listening, "what is asked is what listens"
    assert {port for _, port in opened} == {22, 8000}
    service = next(each["http"] for each in answers if each["port"] == 8000 and each["open"])
    assert service["GET /v1/models"].startswith("401")
    assert service["POST /v1/load_lora_adapter"].startswith("404")
    assert service["GET /health"].startswith("200")
    for path in ("/collective_rpc", "/server_info"):
        assert service[f"POST {path}"][:3] in {"401", "404", "405"}, path


def test_rays_ports_ask_for_the_token_also_where_there_is_no_firewall(
    stranger: str, on_host: OnHost
) -> None:
    """What HTTP tells is Ray's metrics alone; the table is what docs/security.md has. As it says, a
    replica's own port asks for the key below /v1 only."""
    for host in HOSTS:
        assert on_host(host, f"nft delete table inet {PLACES.table}").returncode == 0
    asked = [place for place in places(on_host) if place[1] < 10000 and place[1] not in {22, 8000}]
    for each in heard(stranger, asked):
        told = {
            what
            for what, status in each.get("http", {}).items()
            if status.startswith("200") and "healthz" not in what
        }
        if each["port"] == 8100:
            told = {what for what in told if "/v1/" in what}
        assert not told or each["port"] == 6385, f"{each['address']}:{each['port']}: {told}"


def test_flushed_rules_are_drift_that_bootstrap_mends(operator: Operator, guarded: str) -> None:
    ran = operator.run("check", "--security", guarded)
    assert ran.status == 5, ran.text
    assert "promise 7 of 10 does not hold" in ran.stderr
    operator.ok("bootstrap", guarded)
    operator.ok("check", "--security", guarded)


# Prints each process that holds the key: in its environment, its arguments or its memory. The key
# comes with its letters exchanged, so that shells and sshd on the way do not hold it.
SCAN = """\
import os, re, sys
key = bytes.fromhex(sys.argv[1])[::-1]
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        name = open(f"/proc/{pid}/cmdline", "rb").read()
        where = []
        for part in ("cmdline", "environ"):
            if key in open(f"/proc/{pid}/{part}", "rb").read():
                where.append(part)
        with open(f"/proc/{pid}/mem", "rb", 0) as memory:
            for line in open(f"/proc/{pid}/maps"):
                begin, end, mode = re.match("(\\\\w+)-(\\\\w+) (\\\\S+)", line).groups()
                if not mode.startswith("rw-p"):
                    continue
                at, end, tail = int(begin, 16), int(end, 16), b""
                while at < end:
                    try:
                        memory.seek(at)
                        part = memory.read(min(1 << 24, end - at))
                    except OSError:
                        break
                    if not part:
                        break
                    if key in tail + part:
                        where.append("memory")
                        break
                    tail, at = part[-len(key):], at + len(part)
                if "memory" in where:
                    break
        if where:
            print(name.replace(b"\\0", b" ").decode()[:60], sorted(set(where)))
    except (FileNotFoundError, ProcessLookupError):
        pass
"""


@pytest.mark.long
def test_the_key_is_held_by_no_process_beyond_the_head(on_host: OnHost) -> None:
    key = on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()
    hidden = key.encode()[::-1].hex()
    found = {host: on_host(host, f"python3 - {hidden}", stdin=SCAN, timeout=600) for host in HOSTS}
    for host in HOSTS:
        assert found[host].returncode == 0, found[host].stderr
        assert "cmdline" not in found[host].stdout, found[host].stdout
    assert found["gpu2"].stdout == ""
    holders = found["gpu1"].stdout
    assert "vllm" in holders, "the scan finds what is there"
    assert "RayWorker" not in holders, holders
    for host in HOSTS:
        seen = on_host(
            host,
            "docker inspect clusterctl-lab; cat /var/log/clusterctl/lab/*; journalctl --no-pager; "
            "docker exec clusterctl-lab sh -c 'cat /tmp/ray/session_latest/logs/*' 2>/dev/null",
            timeout=300,
        )
        assert key not in seen.stdout


def test_rules_that_nobody_confirms_are_taken_back(guarded: str, on_host: OnHost) -> None:
    """First by the run whose new connection fails; then by the host, as if the run was killed."""
    inventory = load(Path(guarded))
    before = on_host("gpu2", LISTED).stdout
    assert before.strip()
    with Connections() as connections:
        transports = {"gpu2": connections.to(inventory.host("gpu2"))}
        view = take_survey(inventory, transports).views["gpu2"]

        def fails() -> Transport:
            raise ConnectionFailed("the rules let nobody in", host="gpu2")

        class Shut:
            """The host's transport, to which no second connection can be made."""

            another = staticmethod(fails)

            def __getattr__(self, name: str) -> Any:
                return getattr(view.transport, name)

        shut = HostView(view.host, view.facts, Shut())
        other = Firewall("lab", Admission(("10.9.9.9",), ("6379",)), pause=lambda _: None)
        with pytest.raises(StepFailed, match="rolled back"):
            other.apply(shut, Change("close"))
        assert on_host("gpu2", LISTED).stdout == before

        new = f"{PLACES.rules}.new"
        rules = firewall.ruleset(PLACES.table, Admission(("10.9.9.9",), ("6379",)), ("22",), "1-2")
        view.transport.put(rules.encode(), new, mode=0o600, sudo=True)
        words = (PLACES.table, PLACES.rules, new, "5", PLACES.timer)
        root_script(view, firewall.TRY, *words, doing="loading")
        assert on_host("gpu2", LISTED).stdout != before
        until(
            lambda: on_host("gpu2", LISTED).stdout == before, within=60, what="the rules are back"
        )


@pytest.mark.long
def test_after_a_reboot_the_rules_are_there_and_ray_waits_for_its_token(
    operator: Operator, guarded: str, on_host: OnHost
) -> None:
    before = on_host("gpu2", LISTED).stdout
    assert on_host("gpu2", "rm /etc/clusterctl/lab/ray.token").returncode == 0
    faults.power_off("gpu2")
    faults.power_on("gpu2")
    until(lambda: on_host("gpu2", LISTED).stdout == before, within=120, what="the rules", pause=2)
    until(
        lambda: "ray.token is missing; clusterctl bootstrap repairs" in operator.run("status").text,
        within=180, what="status says why Ray waits", pause=5,
    )  # fmt: skip
    operator.ok("bootstrap", guarded, timeout=600)
    until(
        lambda: operator.run("status").status == 0, within=900, what="the service is back", pause=5
    )


def test_down_removes_the_firewall_and_no_other_table(
    operator: Operator, guarded: str, on_host: OnHost
) -> None:
    assert on_host("gpu1", f"nft '{FOREIGN}'").returncode == 0
    operator.ok("down", "-i", guarded, "--yes")
    for host in HOSTS:
        assert PLACES.table not in on_host(host, "nft list tables").stdout
        left = on_host(host, "ls /etc/systemd/system /etc/systemd/system/multi-user.target.wants")
        assert "clusterctl-firewall" not in left.stdout
    assert "of_the_user" in on_host("gpu1", "nft list tables").stdout
