"""The lab itself, for real: bare hosts, their networks, faults, and nothing left at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.errors import LockHeld
from clusterctl.lab import cgroups, faults, lifecycle, light, mirror, network
from clusterctl.lab.layout import CONTROL, PREFIX, lab_host
from clusterctl.lab.local import mounts_under
from clusterctl.lab.paths import LabPaths, exclusive
from tests.lab.cluster import quiet, until
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]


@pytest.fixture(scope="module", autouse=True)
def bare_lab(lab: LabPaths) -> Iterator[LabPaths]:
    """Two hosts that nobody has touched; what there was before is taken down."""
    lifecycle.down(say=quiet)
    lifecycle.up(2, image=False, say=quiet)
    yield lab
    lifecycle.down(say=quiet)


def leftovers(lab: LabPaths) -> list[str]:
    """What of the lab the machine still has, caches aside."""
    rules = subprocess.run(["ip", "rule"], capture_output=True, text=True, check=True).stdout
    return [
        *(f"process {pid}" for pid in cgroups.members()),
        *(f"server {pid}" for pid in mirror.server_pids(lab.mirror)),
        *(f"mount {point}" for point in mounts_under(lab.root)),
        *(f"namespace {name}" for name in network.namespaces()),
        *(f"link {name}" for name in [*network.links(), *network.cables()]),
        *(f"rule {rule}" for rule in rules.splitlines() if PREFIX in rule),
        *(f"group {group}" for group in cgroups.MOUNT.glob(f"*/{cgroups.LAB}")),
        *(f"file {file}" for file in (lab.hosts, lab.mirror, lab.keys, lab.light) if file.exists()),
    ]


def cli(*words: str) -> list[str]:
    return [sys.executable, "-m", "clusterctl", "lab", *words]


def started_at(on_host: OnHost, name: str) -> str:
    """When the host's first process began, in ticks since the machine's start; "" while it is
    down. (What ps says in seconds of the day may differ by one from call to call.)"""
    return on_host(name, "cut -d ' ' -f 22 /proc/1/stat").stdout


def test_a_second_up_changes_nothing() -> None:
    def seconds() -> float:
        started = time.monotonic()
        assert lifecycle.up(2, image=False, say=quiet).changes == ()
        return time.monotonic() - started

    assert any(seconds() < 5 for _ in range(3)), "the machine may be busy, but not all the time"


def test_hosts_are_whole_debians_without_an_engine(on_host: OnHost) -> None:
    for name in ("gpu1", "gpu2"):
        shown = on_host(name, "hostname; ps -p 1 -o comm=; systemctl is-system-running --wait")
        assert shown.stdout.split() == [name, "systemd", "running"], shown.stderr
        assert on_host(name, "command -v docker podman containerd").returncode != 0


def test_hosts_have_their_own_nic_names_and_addresses(on_host: OnHost) -> None:
    for number in (1, 2):
        host = lab_host(number)
        shown = on_host(host.name, "ip -brief -4 address show scope global").stdout
        found = {line.split("@")[0]: line.split()[2] for line in shown.splitlines()}
        assert found == {nic.name: str(nic.address) for nic in host.nics}
        in_sysfs = on_host(host.name, "ls /sys/class/net").stdout.split()
        assert sorted(in_sysfs) == sorted(["lo", *found])


# A documentation address, where nobody answers: twenty connections in a row are refused, none of
# which may wait. The exit status of `timeout` is 124 where one did.
_TRY_OUTSIDE = (
    "timeout 10 sh -c 'for _ in $(seq 20); do"
    ' ! bash -c "</dev/tcp/192.0.2.1/80" 2>/dev/null || exit 1; done\''
)


@pytest.mark.parametrize("forward", ["0", "1"])
def test_hosts_reach_each_other_and_the_controller_but_nothing_else(
    forward: str, on_host: OnHost
) -> None:
    """Whatever the machine forwards, and whatever its firewall drops, as a Docker engine's does."""
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    before = forwarding.read_text()
    drop = ["FORWARD", "--in-interface", f"{PREFIX}+", "--jump", "DROP"]
    try:
        forwarding.write_text(forward)
        subprocess.run(["iptables", "-I", *drop], check=True)
        for address in ("10.77.0.12", "10.78.0.12", str(CONTROL.controller)):
            assert on_host("gpu1", f"ping -c 1 -w 20 {address}").returncode == 0
        tried = on_host("gpu1", _TRY_OUTSIDE)
        assert tried.returncode == 0, tried.stderr
    finally:
        subprocess.run(["iptables", "-D", *drop], check=True)
        forwarding.write_text(before)


def test_hosts_know_no_name_server_of_this_machine(on_host: OnHost) -> None:
    assert "nameserver" not in on_host("gpu1", "cat /etc/resolv.conf").stdout
    looked_up = on_host("gpu1", "timeout 4 getent hosts example.com 10.78.0.12")
    assert looked_up.returncode == 2, "found something, or waited"


def test_an_engine_is_installed_from_the_mirror(on_host: OnHost) -> None:
    installed = on_host(
        "gpu1",
        "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y docker.io"
        " && docker info --format '{{.Driver}}'",
        timeout=300,
    )
    assert installed.returncode == 0, installed.stderr
    assert installed.stdout.splitlines()[-1] == "overlay2"


def test_the_operator_must_give_a_password_for_sudo(on_host: OnHost, lab: LabPaths) -> None:
    assert on_host("gpu1", "sudo -n true", user="ops").returncode != 0
    password = lab.password.read_text()
    assert on_host("gpu1", "sudo -S true", user="ops", stdin=password).returncode == 0


def test_a_disk_survives_a_power_loss(on_host: OnHost) -> None:
    on_host("gpu2", "echo kept > /root/kept; sync")
    assert faults.power_off("gpu2")
    assert on_host("gpu2", "true").returncode == 255
    assert not lifecycle.status().hosts[1].powered
    until(lambda: lifecycle.status().hosts[0].answers, within=30, what="gpu1 answers as before")
    assert faults.power_on("gpu2")
    assert on_host("gpu2", "cat /root/kept").stdout == "kept\n"
    assert not faults.power_on("gpu2")


def test_a_host_can_reboot_itself(on_host: OnHost) -> None:
    before = started_at(on_host, "gpu2")
    on_host("gpu2", "systemd-run --on-active=1 --timer-property=AccuracySec=10ms systemctl reboot")
    until(lambda: started_at(on_host, "gpu2") not in ("", before), within=180, what="a reboot")
    running = "systemctl is-system-running --wait"
    until(lambda: on_host("gpu2", running).stdout == "running\n", within=180, what="gpu2 is up")


def test_a_pulled_cable_is_seen_by_the_host_and_can_be_plugged_again(on_host: OnHost) -> None:
    reach = "ping -c 1 -w {} 10.78.0.11"
    faults.pull_cable("gpu2", "ens3")
    assert on_host("gpu2", reach.format(1)).returncode != 0
    assert on_host("gpu2", "cat /sys/class/net/ens3/carrier").stdout == "0\n"
    assert lifecycle.status().hosts[1].cables == {"ens2": True, "ens3": False}
    faults.plug_cable("gpu2", "ens3")
    # The kernel tells the bridge of a carrier at its leisure.
    assert on_host("gpu2", reach.format(20)).returncode == 0


def test_a_link_rate_holds_in_both_directions_and_is_lifted_again(on_host: OnHost) -> None:
    size, rate = 4_000_000, 16_000_000
    lifecycle.up(2, image=False, link_rate="16mbit", say=quiet)
    for command in (f"head -c {size} /dev/zero", f"head -c {size} >/dev/null"):
        started = time.monotonic()
        assert on_host("gpu1", command, stdin="\0" * size).returncode == 0
        assert time.monotonic() - started > size * 8 / rate * 0.7
    assert lifecycle.status().hosts[0].link_rate == rate
    assert len(lifecycle.up(2, image=False, say=quiet).changes) == 2
    assert lifecycle.status().hosts[0].link_rate is None


def test_hosts_are_added_and_removed_without_touching_the_others(on_host: OnHost) -> None:
    before = started_at(on_host, "gpu1")
    added = lifecycle.up(3, image=False, say=quiet).changes
    assert not [change for change in added if change.startswith(("gpu1", "gpu2"))]
    assert on_host("gpu3", "hostname").stdout == "gpu3\n"
    assert "removed gpu3" in lifecycle.up(2, image=False, say=quiet).changes
    assert started_at(on_host, "gpu1") == before != ""


def test_two_operators_at_once_are_told_apart(lab: LabPaths) -> None:
    with exclusive(lab.lock), pytest.raises(LockHeld):
        lifecycle.up(2, image=False, say=quiet)


def test_light_hosts_come_in_numbers_and_go(lab: LabPaths) -> None:
    inventory = light.light_up(20)
    assert inventory.read_text().count("address:") == 20
    assert lifecycle.status().light_hosts == 20
    light.light_up(5)
    assert lifecycle.status().light_hosts == 5
    assert light.light_down()
    assert not light.light_down()


@pytest.mark.parametrize("seconds", [0.5, 0.8, 1.2, 1.8, 2.5])
def test_an_up_that_was_killed_is_finished_by_the_next(
    seconds: float, on_host: OnHost, lab: LabPaths
) -> None:
    lifecycle.down(say=quiet)
    _kill_after(seconds, cli("up", "--hosts", "2"))
    lifecycle.up(2, image=False, say=quiet)
    assert on_host("gpu2", "systemctl is-system-running --wait").stdout == "running\n"
    assert lifecycle.up(2, image=False, say=quiet).changes == ()


@pytest.mark.parametrize("seconds", [0.3, 0.5, 0.8, 1.2])
def test_a_down_that_was_killed_is_finished_by_the_next(seconds: float, lab: LabPaths) -> None:
    lifecycle.up(2, image=False, say=quiet)
    _kill_after(seconds, cli("down"))
    lifecycle.down(say=quiet)
    assert leftovers(lab) == []


def test_down_leaves_nothing_behind(lab: LabPaths) -> None:
    lifecycle.up(2, image=False, say=quiet)
    light.light_up(3)
    assert leftovers(lab)
    lifecycle.down(say=quiet)
    assert leftovers(lab) == []
    assert lifecycle.down(say=quiet) == ()
    assert lifecycle.status().hosts == ()


def test_what_is_no_part_of_the_lab_is_left_alone(lab: LabPaths, tmp_path: Path) -> None:
    """A directory bound into a host's disk by somebody is unmounted, not emptied."""
    lifecycle.up(1, image=False, say=quiet)
    (tmp_path / "precious").write_text("mine")
    point = lab.host("gpu1") / "somebodys"
    point.mkdir()
    subprocess.run(["mount", "--bind", str(tmp_path), str(point)], check=True)
    lifecycle.down(say=quiet)
    assert (tmp_path / "precious").read_text() == "mine"


def _kill_after(seconds: float, argv: list[str]) -> None:
    """And return when what it had just begun, an `ip` or a `mount`, is over: nobody who kills it
    is quicker."""
    process = subprocess.Popen(
        argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 5  # what builds something goes on until the next `up` ends it
    while _is_there(process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
