"""What is said of a host's container engine, and of the room that its images have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import Disk, EngineFacts, HostFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Host, Inventory, Packages
from clusterctl.units import GIB
from tests.unit.facts.judged import problems

Captured = Callable[[str], Probe]


def found(
    facts: HostFacts,
    *,
    accelerator: str = "nvidia",
    packages: Packages | None = None,
    **arguments: Any,
) -> list[RequirementsNotMet]:
    """`arguments`: of `problems`."""
    inventory = Inventory.model_validate(
        {
            "cluster": "demo",
            "image": "vllm:1",
            "accelerator": accelerator,
            "packages": packages or Packages(),
            "hosts": (Host(name="gpu1", address="10.1.0.11", role="head"),),
        }
    )
    return list(problems(inventory, {"gpu1": facts}, **arguments))


def only(*problems: RequirementsNotMet) -> RequirementsNotMet:
    (problem,) = problems
    assert problem.hint
    return problem


def with_engine(facts: HostFacts, **changes: Any) -> HostFacts:
    return replace(facts, engine=replace(facts.engine, **changes))


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"podman": True, "running": False}, "its `docker` is Podman under another name",
         "sudo apt-get remove podman-docker"),
        ({"client": "/snap/bin/docker"}, "its Docker is a snap", "sudo snap remove docker"),
        ({"remapped": True}, "its Docker remaps users", "userns-remap"),
        ({"desktop": True}, "its Docker is Docker Desktop", "docker-desktop"),
        ({"default_runtime": "runsc"}, "its Docker starts containers with runsc",
         "default-runtime"),
        ({"rootless": True}, "its Docker runs rootless", "dockerd-rootless-setuptool.sh uninstall"),
        ({"hung": True, "running": False}, "its Docker daemon does not answer",
         "sudo systemctl restart docker"),
        ({"version": "19.03.15"}, "its Docker 19.03.15 is older than 20.10",
         r"sudo apt-get remove '^docker(\.io|-ce)$'"),
    ],
)  # fmt: skip
def test_engines_that_cannot_be_used(
    changes: dict[str, Any], said: str, hint: str, healthy: HostFacts
) -> None:
    problem = only(*found(with_engine(healthy, **changes)))
    assert problem.summary.startswith(said)
    assert hint in str(problem.hint)


def test_no_engine_where_none_can_be_installed(captured: Captured) -> None:
    facts = replace(captured("rhel-9-podman").facts, root=True)
    absent = EngineFacts(False, False, "", "", (), (), False, None)
    assert found(replace(facts, engine=absent)) == [], "dnf installs it"
    alpine = replace(facts.os, id="alpine", like=(), pretty="Alpine Linux v3.22")
    problem = only(*found(replace(facts, engine=absent, os=alpine)))
    assert problem.summary == (
        "has no container engine, and clusterctl installs one only where there is apt-get or dnf, "
        "not on Alpine Linux v3.22"
    )
    assert "bring Docker's static archive" in str(problem.hint)
    brought = Packages(offline=Path("static"))
    assert found(replace(facts, engine=absent, os=alpine), packages=brought) == []


def test_no_engine_on_debian_is_what_bootstrap_is_for(captured: Captured) -> None:
    facts = replace(captured("debian-13-ipv6-only").facts, disks=())
    assert found(facts) == []


@pytest.mark.parametrize(
    ("fields", "free", "size", "said"),
    [
        ({}, 25, None, "25.0 GiB are free at /var/lib/docker, and the image needs 28 GiB "
                       "(its size is not known; this is the usual one)"),
        ({}, 29, None, None),
        ({"accelerator": "cpu"}, 5, None, "5.0 GiB are free at /var/lib/docker, and the image "
                                          "needs 6 GiB (its size is not known; this is the "
                                          "usual one)"),
        ({}, 25, 20 * GIB, None),
        ({}, 20, 20 * GIB, "20.0 GiB are free at /var/lib/docker, and the image needs 21 GiB "
                           "(measured)"),
    ],
)  # fmt: skip
def test_room_for_the_image(
    fields: dict[str, Any], free: int, size: int | None, said: str | None, healthy: HostFacts
) -> None:
    facts = with_engine(healthy, data_root="/var/lib/docker", containerd_store=False)
    facts = replace(facts, disks=(Disk("/var/lib/docker", 500 * GIB, free * GIB),))
    saw = found(facts, **fields, image_size=size)
    assert [problem.summary for problem in saw] == ([said] if said else [])


def test_the_containerd_store_needs_half_as_much_again(healthy: HostFacts) -> None:
    """Where containerd has its images, whatever data-root says."""
    disks = (Disk("/data/docker", 500 * GIB, 400 * GIB), Disk("/", 500 * GIB, 25 * GIB))
    problem = only(*found(replace(healthy, disks=disks), image_size=20 * GIB))
    assert "the image needs 31 GiB (measured, unpacked and packed)" in problem.summary
    assert "at /var/lib/containerd" in problem.summary
    assert "/etc/containerd/config.toml" in str(problem.hint)

    moved = replace(healthy, disks=disks, containerd_root="/data/docker/images")
    assert found(moved, image_size=20 * GIB) == []


@pytest.mark.parametrize("argument", ["with_image", "ours"])
def test_a_host_that_has_the_image_needs_no_room(argument: str, healthy: HostFacts) -> None:
    facts = replace(healthy, disks=(Disk("/data/docker", 500 * GIB, GIB),))
    having: dict[str, Any] = {argument: {"gpu1"}}
    assert found(facts, **having) == []


@pytest.mark.parametrize("version", ["20.10.24+dfsg1", "29.1.3", "library-import"])
def test_engines_of_supported_distributions_are_used(version: str, healthy: HostFacts) -> None:
    assert found(with_engine(healthy, version=version)) == []


def test_no_python_where_none_can_be_installed(healthy: HostFacts) -> None:
    lacking = replace(healthy, python3=None, python3_version="3.8")
    assert found(lacking) == [], "apt-get installs it"
    alpine = replace(healthy.os, id="alpine", like=(), pretty="Alpine Linux v3.22")
    problem = only(*found(replace(lacking, os=alpine)))
    assert problem.summary == (
        "has no Python 3.9 or newer with its standard library (Python 3.8), and clusterctl "
        "installs one only where there is apt-get or dnf, not on Alpine Linux v3.22"
    )
    assert "python3.9" in str(problem.hint)
    brought = Packages(offline=Path("packages"))
    assert found(replace(lacking, os=alpine), packages=brought) == []
