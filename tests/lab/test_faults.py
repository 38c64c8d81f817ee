"""Faults of hosts and of what is between them, put into real hosts one by one: `check` names each
by host, cause and fix within 30 s. What needs an engine is in test_engine_faults."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from clusterctl.lab import faults
from tests.fakes.image_archives import MadeImage, layer_tar
from tests.lab.conftest import OnHost
from tests.lab.faulty import Bench, bench

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("bare"),
    pytest.mark.timeout(300, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

SYN = ("iptables", "-A", "INPUT", "-p", "tcp", "--syn")
NO_SYN = ("iptables", "-D", "INPUT", "-p", "tcp", "--syn")


def with_image(of: Bench) -> str:
    """The lab's inventory with an image of one small layer: the lab's own takes minutes to make."""
    document = yaml.safe_load(of.inventory.read_text())
    archive = of.scratch / "image.tar"
    archive.write_bytes(MadeImage(document["image"], (layer_tar("file", 1000),)).legacy())
    document["image_archive"] = str(archive)
    file = of.scratch / "inventory.yaml"
    file.write_text(yaml.safe_dump(document))
    return str(file)


def clock_error(told: str) -> float:
    """The seconds of `its clock is 2.0 s behind the others`."""
    found = re.search(r"its clock is ([\d.]+) s ", told)
    assert found, told
    return float(found[1])


@pytest.fixture
def lab_bench(bare: Path, on_host: OnHost, tmp_path: Path) -> Iterator[Bench]:
    with bench(bare, on_host, tmp_path) as made:
        yield made


def test_hosts_as_they_should_be_have_no_problem(lab_bench: Bench) -> None:
    """A name on 127.0.1.1 and a default route beside the fabric are told, with what makes them
    harmless."""
    ran = lab_bench.check()
    assert ran.status == 0, ran.text
    assert "gpu1: its name gpu1 resolves to 127.0.1.1: harmless here" in ran.stdout
    assert "GLOO_SOCKET_IFNAME" in ran.stdout
    assert "carries NCCL on gpu1 (eth0, not eth1), gpu2 (ens2, not ens3)" in ran.stdout
    assert "between hosts, for NCCL and Gloo: round trip at most" in ran.stdout


def test_a_gloo_interface_that_does_not_exist(lab_bench: Bench) -> None:
    file = lab_bench.written(lambda hosts: hosts["gpu2"].update(nics={"gloo": "ens9"}))
    lab_bench.told("gpu2", "has no interface ens9 (nics.gloo)", "ens3", inventory=file)


@pytest.mark.parametrize("purpose", ["gloo", "nccl"])
def test_an_interface_that_cannot_reach_the_others(lab_bench: Bench, purpose: str) -> None:
    make = (
        "ip link add lost0 type veth peer name lost1; ip addr add 10.99.0.12/24 dev lost0; "
        "ip link set lost0 up; ip link set lost1 up"
    )
    lab_bench.break_network("gpu2", ["sh", "-ec", make], ["ip", "link", "del", "lost0"])
    nics = {"control": "ens2", "nccl": "ens3", "gloo": "ens3", purpose: "lost0"}
    file = lab_bench.written(lambda hosts: hosts["gpu2"].update(nics=nics))
    word = {"gloo": "Gloo", "nccl": "NCCL"}[purpose]
    lab_bench.told(
        "gpu2", f"{word} interface lost0 is in 10.99.0.0/24", "do not reach", inventory=file
    )


def test_two_hosts_with_one_name(lab_bench: Bench) -> None:
    lab_bench.break_host("gpu2", "hostname gpu1", "hostname gpu2")
    lab_bench.told("gpu2", "calls itself gpu1, as gpu1 does", "hostnamectl set-hostname gpu2")


def test_two_hosts_with_one_machine_id_are_allowed_and_told(
    lab_bench: Bench, on_host: OnHost
) -> None:
    own = on_host("gpu2", "cat /etc/machine-id").stdout.strip()
    other = on_host("gpu1", "cat /etc/machine-id").stdout.strip()
    lab_bench.break_host("gpu2", f"echo {other} >/etc/machine-id", f"echo {own} >/etc/machine-id")
    ran = lab_bench.check()
    assert ran.status == 0, ran.text
    assert "gpu1 and gpu2 have the same machine ID" in ran.stdout


@pytest.mark.parametrize(
    ("ports", "words"),
    [("6380", "6380 (ray_ports.node_manager)"), ("32768:60999", "ephemeral ports")],
)
def test_a_firewall_that_drops_ports(lab_bench: Bench, ports: str, words: str) -> None:
    rule = ("--dport", ports, "-j", "DROP")
    lab_bench.break_network("gpu2", [*SYN, *rule], [*NO_SYN, *rule])
    lab_bench.told("gpu2", "a firewall drops connections from gpu1", words, "iptables")


def test_another_machine_that_has_the_address(lab_bench: Bench) -> None:
    """On the fabric, beside gpu2; whose answer to ARP gpu1 believes is chance."""
    switch = ["ip", "-n", "lab-switch", "link"]
    inside = ["ip", "netns", "exec", "foreign"]
    for make, mend in (
        (["ip", "netns", "add", "foreign"], ["ip", "netns", "del", "foreign"]),
        (
            [*switch, "add", "foreign0", "type", "veth", "peer", "name", "eth0",
             "netns", "foreign"],
            [*switch, "del", "foreign0"],
        ),
        ([*switch, "set", "foreign0", "master", "lab-fabric", "up"], ["true"]),
        ([*inside, "ip", "link", "set", "eth0", "address", "02:00:00:00:00:99", "up"], ["true"]),
        ([*inside, "ip", "addr", "add", "10.78.0.12/24", "dev", "eth0"], ["true"]),
    ):  # fmt: skip
        lab_bench.break_machine(make, mend)
    lab_bench.told("gpu2", "another machine has its address 10.78.0.12", "02:00:00:00:00:99")
    ran = lab_bench.check()
    assert "firewall" not in ran.stderr, ran.text
    assert ran.stderr.count("error: ") == 1, ran.text


def test_jumbo_frames_on_one_side_only(lab_bench: Bench) -> None:
    mtu = ("ip", "link", "set", "eth1", "mtu")
    lab_bench.break_network("gpu1", [*mtu, "9000"], [*mtu, "1500"])
    lab_bench.told("gpu1", "its MTU on eth1 is 9000, but 1500 on ens3 of gpu2", "mtu 1500")


def test_a_path_that_swallows_large_packets(lab_bench: Bench) -> None:
    """The far end of gpu2's cable takes 1400 bytes: a switch port with a smaller MTU."""
    mtu = ("ip", "-n", "lab-switch", "link", "set", "lab-gpu2-f", "mtu")
    lab_bench.break_machine([*mtu, "1400"], [*mtu, "1500"])
    lab_bench.told("gpu2", "packets of 1500 bytes", "1400 bytes pass: an MTU black hole")


def test_what_a_host_without_python_would_try_is_said_to_be_unverified(lab_bench: Bench) -> None:
    """Bootstrap tries it, once it has installed Python there."""
    python = "$(readlink -f /usr/bin/python3)"
    lab_bench.break_host("gpu2", f"chmod a-x {python}", f"chmod a+x {python}")
    mtu = ("ip", "link", "set", "eth1", "mtu")
    lab_bench.break_network("gpu1", [*mtu, "1400"], [*mtu, "1500"])
    ran = lab_bench.check()
    assert ran.status == 0, ran.text
    assert "gpu2: not tested: it has no Python 3.9" in ran.stdout
    assert "the MTU differs between hosts: 1400 on gpu1 (eth1); 1500 on gpu2 (ens3)" in ran.stdout


def test_a_clock_five_minutes_off(lab_bench: Bench) -> None:
    """Hosts of the lab share the kernel's clock, so what reads it is wrapped: `date`, which the
    facts go by. A wrong clock in earnest would differ for every program."""
    wrapper = "/usr/local/bin/date"
    script = f'printf \'#!/bin/sh\\nexec /bin/date -d "+5 minutes" "$@"\\n\' >{wrapper}'
    lab_bench.break_host("gpu2", f"{script}; chmod +x {wrapper}", f"rm {wrapper}")
    told = lab_bench.told("gpu2", "s ahead of the others", "timedatectl set-ntp true")
    assert clock_error(told) == pytest.approx(300, abs=5)  # the answer's way back is in it


def test_a_clock_two_seconds_off(lab_bench: Bench) -> None:
    """Measured between hosts, to a second: Python's clock is the one that is wrapped."""
    find = "file=$(ls /etc/python3.*/sitecustomize.py)"
    later = "import time; now = time.time; time.time = lambda: now() - 2"
    lab_bench.break_host(
        "gpu2",
        f"{find}; cp $file /tmp/kept; echo '{later}' >>$file",
        f"{find}; mv /tmp/kept $file",
    )
    told = lab_bench.told("gpu2", "s behind the others", "timedatectl set-ntp true")
    assert clock_error(told) == pytest.approx(2, abs=0.9)


def test_little_shared_memory(lab_bench: Bench, on_host: OnHost) -> None:
    size = on_host("gpu2", "df --output=size -k /dev/shm | tail -1").stdout.strip()
    lab_bench.break_host(
        "gpu2", "mount -o remount,size=64m /dev/shm", f"mount -o remount,size={size}k /dev/shm"
    )
    lab_bench.told("gpu2", "/dev/shm has 64 MiB", "mount -o remount,size=50% /dev/shm")


def test_few_open_files(lab_bench: Bench) -> None:
    """Before there is an engine, the limit of a session is what can be known."""
    sshd = "prlimit --pid $(systemctl show -P MainPID ssh) --nofile=1024:1024"
    lab_bench.break_host("gpu2", sshd, "systemctl restart ssh")
    lab_bench.told("gpu2", "at most 1024 open files are allowed", "LimitNOFILE=1048576")


def test_a_full_disk(lab_bench: Bench) -> None:
    """A small file system stands for a large one that is full."""
    lab_bench.break_host(
        "gpu2",
        "mount -t tmpfs -o size=32m full /data/models; head -c 32m /dev/zero >/data/models/x; :",
        "umount /data/models",
    )
    lab_bench.told("gpu2", "the disk of /data/models is full: 0.0 GiB", "docker system prune")


def test_packets_that_take_the_default_route(lab_bench: Bench) -> None:
    """The fabric's own route is gone: its packets leave by the default one, which on hosts of the
    lab leads nowhere unless a rule allows it."""
    allowed = ("to", "10.78.0.0/24", "lookup", "main")
    lab_bench.break_network(
        "gpu1", ["ip", "rule", "add", *allowed], ["ip", "rule", "del", *allowed]
    )
    lab_bench.break_network(
        "gpu1",
        ["ip", "route", "del", "10.78.0.0/24"],
        ["ip", "route", "add", "10.78.0.0/24", "dev", "eth1", "src", "10.78.0.11"],
    )
    lab_bench.told(
        "gpu1",
        "packets to gpu2 (10.78.0.12) leave through eth0, not eth1, which carries NCCL and Gloo",
        "sudo ip route replace 10.78.0.0/24 dev eth1 src 10.78.0.11",
    )


def test_an_interface_that_is_down(lab_bench: Bench) -> None:
    link = ("ip", "link", "set", "ens3")
    lab_bench.break_network("gpu2", [*link, "down"], [*link, "up"])
    lab_bench.told("gpu2", "interface ens3 (nics.nccl, nics.gloo) is down", "ip link set ens3 up")


def test_a_cable_that_is_pulled(lab_bench: Bench) -> None:
    lab_bench.undo.callback(faults.plug_cable, "gpu2", "ens3")
    faults.pull_cable("gpu2", "ens3")
    lab_bench.told("gpu2", "interface ens3 (nics.nccl, nics.gloo) is down", "check the cable")


def test_a_stale_ray_head_on_the_port(lab_bench: Bench) -> None:
    """A listener by the name of Ray's own stands for one: bare hosts have no Ray."""
    listen = "import socket, time; s = socket.create_server(('', 6379)); time.sleep(120)"
    lab_bench.break_host(
        "gpu1",
        f"cp $(readlink -f /usr/bin/python3) /tmp/gcs_server; setsid -f /tmp/gcs_server -c "
        f'"{listen}" >/dev/null 2>&1 </dev/null; '
        "until ss -Hltn 'sport = :6379' | grep -q .; do sleep 0.1; done",
        "pkill -x gcs_server; rm /tmp/gcs_server",
    )
    lab_bench.told(
        "gpu1",
        "another Ray is already running on it; a port that Ray needs is taken: 6379 "
        "(ray_ports.gcs)",
        'users:(("gcs_server"',
        "pkill -x gcs_server",
    )


def test_all_faults_of_all_hosts_come_at_once(lab_bench: Bench) -> None:
    mtu = ("ip", "link", "set", "eth1", "mtu")
    lab_bench.break_network("gpu1", [*mtu, "9000"], [*mtu, "1500"])
    lab_bench.break_host("gpu2", "hostname gpu1", "hostname gpu2")
    rule = ("--dport", "6381", "-j", "REJECT")
    lab_bench.break_network("gpu2", [*SYN, *rule], [*NO_SYN, *rule])
    ran = lab_bench.operator.run("check", "--json", str(lab_bench.inventory))
    assert ran.status == 5, ran.text
    found = {(problem["host"], problem["summary"].split()[0]) for problem in ran.json["problems"]}
    assert found == {("gpu1", "its"), ("gpu2", "calls"), ("gpu2", "a")}
    assert all(problem["hint"] for problem in ran.json["problems"])
    closed = {(pair["from"], tuple(pair["closed_ports"])) for pair in ran.json["pairs"]}
    assert closed == {("gpu1", (6381,)), ("gpu1", ()), ("gpu2", ())}
    assert all(pair["round_trip_ms"] and pair["mbit_s"] for pair in ran.json["pairs"])


def test_bootstrap_changes_nothing_while_hosts_do_not_reach_each_other(
    lab_bench: Bench, on_host: OnHost
) -> None:
    mtu = ("ip", "-n", "lab-switch", "link", "set", "lab-gpu2-f", "mtu")
    lab_bench.break_machine([*mtu, "1400"], [*mtu, "1500"])
    ran = lab_bench.operator.run("bootstrap", with_image(lab_bench))
    assert ran.status == 5, ran.text
    assert "an MTU black hole" in ran.stderr
    for name in ("gpu1", "gpu2"):
        assert on_host(name, "ls /etc/clusterctl /usr/bin/dockerd").stdout == ""
