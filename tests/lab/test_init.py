"""From two addresses to an inventory that `check` and `plan` take as it is, on bare hosts whose
interfaces have different names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterctl.inventory.load import load
from clusterctl.lab.paths import LabPaths
from tests.lab.cluster import Operator, Ran
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("bare"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]


@pytest.fixture
def init(lab: LabPaths, tmp_path: Path) -> Ran:
    """One run of `init` that took less than 5 s, to tmp_path/inventory.yaml."""
    ran = Operator(tmp_path / "state").within(
        5,
        *("init", "--force", "root@10.77.0.11", "10.77.0.12:22", "--user", "root"),
        *("--identity", str(lab.identity), "--known-hosts", str(lab.known_hosts)),
        *("--accelerator", "cpu", "-o", str(tmp_path / "inventory.yaml")),
    )
    assert ran.status == 0, ran.text
    return ran


def test_hosts_are_named_and_their_fastest_network_is_chosen(init: Ran, tmp_path: Path) -> None:
    """Both networks are equally fast; the fabric has no default route."""
    assert init.seconds < 5
    inventory = load(tmp_path / "inventory.yaml")
    assert [(h.name, h.role, h.address) for h in inventory.hosts] == [
        ("gpu1", "head", "10.77.0.11"),
        ("gpu2", "worker", "10.77.0.12"),
    ]
    assert [(h.nics.nccl, h.nics.gloo) for h in inventory.hosts] == [
        ("eth1", "eth1"),
        ("ens3", "ens3"),
    ]
    assert str(inventory.network.subnet) == "10.77.0.0/24"
    text = (tmp_path / "inventory.yaml").read_text()
    assert "as fast as 10.77.0.0/24" in text
    assert "which has the default route" in text


def test_check_and_plan_take_the_file_as_it_is(init: Ran, tmp_path: Path) -> None:
    assert init.status == 0
    operator, file = Operator(tmp_path / "state"), str(tmp_path / "inventory.yaml")
    checked = operator.run("check", file)
    assert checked.status == 0, checked.text
    assert "node IP 10.77.0.12 on ens2" in checked.stdout
    planned = operator.run("plan", file)
    assert planned.status == 10, planned.text
    assert "NCCL on ens3" in planned.stderr


def test_an_inventory_without_interfaces_gets_the_same_ones(init: Ran, tmp_path: Path) -> None:
    """One rule: what init writes is what bootstrap would choose by itself."""
    assert init.status == 0
    written = tmp_path / "inventory.yaml"
    left_open = tmp_path / "open.yaml"
    left_open.write_text(
        "\n".join(line for line in written.read_text().splitlines() if "nics:" not in line)
        .replace("network:\n", "")
        .replace("  subnet: 10.77.0.0/24 # Ray and the API\n", "")
    )
    operator = Operator(tmp_path / "state")
    ours, theirs = (
        operator.run("check", "--json", str(file)).json for file in (written, left_open)
    )
    for name in ("gpu1", "gpu2"):
        chosen, again = (
            [line.partition(":")[0] for line in of["hosts"][name]["choices"][:3]]
            for of in (ours, theirs)
        )
        assert chosen == again


def test_a_fabric_that_is_down_on_one_host_is_no_candidate(
    lab: LabPaths, tmp_path: Path, on_host: OnHost
) -> None:
    assert on_host("gpu2", "ip link set ens3 down").returncode == 0
    try:
        ran = Operator(tmp_path / "state").ok(
            *("init", "10.77.0.11", "10.77.0.12", "--user", "root", "-o", "-"),
            *("--identity", str(lab.identity), "--known-hosts", str(lab.known_hosts)),
        )
    finally:
        on_host("gpu2", "ip link set ens3 up")
    assert "nics: {nccl: ens2, gloo: ens2}" in ran.stdout
    assert "ens3 (down)" in ran.stdout
    assert "shows no GPU" in ran.stderr


def test_hosts_that_do_not_answer_are_all_named(lab: LabPaths, tmp_path: Path) -> None:
    ran = Operator(tmp_path / "state").run(
        *("init", "10.77.0.11", "10.77.0.98", "10.77.0.99", "--user", "root"),
        *("--identity", str(lab.identity), "--known-hosts", str(lab.known_hosts)),
        *("-o", str(tmp_path / "inventory.yaml")),
    )
    assert ran.status == 4, ran.text
    assert "10.77.0.98" in ran.stderr
    assert "10.77.0.99" in ran.stderr
    assert not (tmp_path / "inventory.yaml").exists()


def test_a_wrong_key_is_refused_whatever_is_accepted(lab: LabPaths, tmp_path: Path) -> None:
    swapped = lab.known_hosts.read_text().replace("10.77.0.11", "10.77.0.99")
    known = tmp_path / "known_hosts"
    known.write_text(swapped.replace("10.77.0.12", "10.77.0.11"))
    ran = Operator(tmp_path / "state").run(
        *("init", "10.77.0.11", "--user", "root", "--accept-new-host-keys", "-o", "-"),
        *("--identity", str(lab.identity), "--known-hosts", str(known)),
    )
    assert ran.status == 4, ran.text
    assert "differs from the known one" in ran.stderr
