"""What goes wrong before anything is changed, on bare hosts: each fault is told by host, cause and
fix, with the exit code of its kind, and nothing is left half done."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from clusterctl.lab import faults, lifecycle, mirror
from clusterctl.lab.paths import LabPaths
from tests.lab.cluster import Operator, quiet
from tests.lab.conftest import OnHost

pytestmark = [
    pytest.mark.lab,
    pytest.mark.usefixtures("bare"),
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

Write = Callable[..., str]


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "state")


@pytest.fixture
def write(bare: Path, tmp_path: Path) -> Write:
    """Writes the lab's inventory with changes: top-level keys, gone where the value is None, or
    `gpu2=dict(...)` for a host."""

    def make(**changes: object) -> str:
        document = yaml.safe_load(bare.read_text())
        for key, value in changes.items():
            if key in document["hosts"] and isinstance(value, dict):
                document["hosts"][key].update(value)
            else:
                document[key] = value
        document = {key: value for key, value in document.items() if value is not None}
        file = tmp_path / "inventory.yaml"
        file.write_text(yaml.safe_dump(document))
        return str(file)

    return make


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"gpu2": {"nics": {"nccl": "ens9"}}}, 5, ["gpu2", "ens9", "ens3"]),
        ({"accelerator": "nvidia"}, 5, ["gpu1", "gpu2", "GPU"]),
        ({"gpu2": {"node_ip": "10.77.0.99"}}, 5, ["gpu2", "10.77.0.99"]),
        ({"gpu2": {"address": "10.77.0.11"}}, 3, ["gpu1", "address"]),
        ({"gpu2": {"role": "head"}}, 3, ["gpu1", "gpu2", "head"]),
        ({"gpu2": {"adress": "10.77.0.12"}}, 3, ["adress", "address"]),
        ({"gpu2": {"address": "10.77.0.77"}}, 4, ["gpu2", "10.77.0.77"]),
    ],
)
def test_an_inventory_that_hosts_contradict(
    operator: Operator, write: Write, changes: dict[str, object], status: int, words: list[str]
) -> None:
    ran = operator.run("bootstrap", write(**changes))
    assert ran.status == status, ran.text
    for word in words:
        assert word in ran.stderr
    assert "fix:" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_all_problems_of_all_hosts_come_at_once(operator: Operator, write: Write) -> None:
    ran = operator.run(
        "check", write(gpu1={"nics": {"gloo": "eth7"}}, gpu2={"nics": {"nccl": "ens7"}})
    )
    assert ran.status == 5, ran.text
    assert "eth7" in ran.stderr
    assert "ens7" in ran.stderr


def test_a_wrong_key_is_refused(
    operator: Operator, write: Write, bare: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other-key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    ssh = yaml.safe_load(bare.read_text())["ssh"]
    ran = operator.run("bootstrap", write(ssh={**ssh, "identity_file": str(other)}))
    assert ran.status == 4, ran.text
    assert "gpu1" in ran.stderr


def test_a_changed_host_key_is_named_with_its_line(
    operator: Operator, write: Write, lab: LabPaths, bare: Path, tmp_path: Path
) -> None:
    lines = [line.split() for line in lab.known_hosts.read_text().splitlines()]
    others = {kind: key for names, kind, key in lines if "10.77.0.12" in names}
    swapped = [
        f"{names} {kind} {others[kind] if '10.77.0.11' in names else key}"
        for names, kind, key in lines
    ]
    wrong = tmp_path / "known_hosts"
    wrong.write_text("\n".join(swapped) + "\n")
    ssh = yaml.safe_load(bare.read_text())["ssh"]
    ran = operator.run("bootstrap", write(ssh={**ssh, "known_hosts": str(wrong)}))
    assert ran.status == 4, ran.text
    assert "ssh-keygen" in ran.stderr
    assert f"{wrong}" in ran.stderr
    accepted = operator.run(
        "bootstrap", "--accept-new", write(ssh={**ssh, "known_hosts": str(wrong)})
    )
    assert accepted.status == 4, "a changed key must fail whatever is asked"


def test_a_user_who_cannot_become_root_is_named(
    operator: Operator, write: Write, bare: Path
) -> None:
    ssh = yaml.safe_load(bare.read_text())["ssh"]
    ran = operator.run("bootstrap", write(ssh={**ssh, "user": "ops"}))
    assert ran.status in {4, 5}, ran.text
    assert "sudo" in ran.stderr


def test_sudo_with_a_password_works(
    operator: Operator, write: Write, bare: Path, lab: LabPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = yaml.safe_load(bare.read_text())["ssh"]
    monkeypatch.setenv("CLUSTERCTL_SUDO_PASSWORD", lab.password.read_text().strip())
    ran = operator.run("check", write(ssh={**ssh, "user": "ops"}))
    assert ran.status == 0, ran.text


def test_a_host_that_is_down_is_named_and_the_others_are_untouched(
    operator: Operator, bare: Path, on_host: OnHost
) -> None:
    faults.power_off("gpu2")
    try:
        ran = operator.run("bootstrap", str(bare))
        assert ran.status == 4, ran.text
        assert "gpu2" in ran.stderr
        assert on_host("gpu1", "ls /etc/clusterctl").returncode != 0
    finally:
        faults.power_on("gpu2")


def test_an_engine_that_cannot_be_installed(
    operator: Operator, write: Write, lab: LabPaths
) -> None:
    file = write(image_archive=None)  # nobody has made it yet, and that would be said first
    mirror.stop_mirror(lab.mirror)
    try:
        ran = operator.run("bootstrap", file)
    finally:
        lifecycle.up(2, image=False, say=quiet)
    assert ran.status == 6, ran.text
    assert "gpu1" in ran.stderr
    assert "docker" in ran.stderr


def test_an_image_that_is_nowhere(operator: Operator, write: Write, on_host: OnHost) -> None:
    file = write(image="clusterctl/nowhere:1", image_archive=None)
    ran = operator.run("bootstrap", file)
    assert ran.status == 6, ran.text
    assert "clusterctl/nowhere:1" in ran.stderr
    assert "fix:" in ran.stderr
    assert on_host("gpu1", "docker ps -aq").stdout == ""


def test_a_model_that_nobody_knows_needs_no_host(operator: Operator, bare: Path) -> None:
    operator.run("bootstrap", "--dry-run", str(bare))
    ran = operator.run("model", "pull", "qwen2.5-1b", "-i", str(bare))
    assert ran.status == 2, ran.text
    assert "qwen2.5-1.5b" in ran.stderr


def test_serve_before_bootstrap_says_so(operator: Operator, bare: Path) -> None:
    ran = operator.run("serve", "qwen2.5-1.5b", "-i", str(bare))
    assert ran.status == 5, ran.text
    assert "clusterctl bootstrap" in ran.stderr
