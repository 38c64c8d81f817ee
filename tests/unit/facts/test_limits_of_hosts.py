"""Shared memory, open files, full disks, and copies of one disk."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.errors import RequirementsNotMet
from clusterctl.facts.model import Disk, HostFacts
from clusterctl.inventory.model import Host, Inventory
from clusterctl.units import GIB
from tests.fakes.host_facts import host_facts, nic
from tests.unit.facts.judged import notes, problems


def inventory(**fields: Any) -> Inventory:
    hosts = (Host(name="gpu1", address="10.0.0.1", role="head"),)
    return Inventory(cluster="demo", image="vllm:1", accelerator="cpu", hosts=hosts, **fields)


def found(facts: HostFacts, **fields: Any) -> list[RequirementsNotMet]:
    return list(problems(inventory(**fields), {"gpu1": facts}, with_image=["gpu1"]))


def host(**changes: Any) -> HostFacts:
    return host_facts(nic("eth0", "10.0.0.1"), nic("eth1", "10.1.0.1"), nic("ens9"), **changes)


def test_a_host_with_enough_of_all_has_no_problem() -> None:
    assert found(host()) == []


def test_dockers_own_64_mib_of_shared_memory() -> None:
    (problem,) = found(host(shm=64 * 2**20))
    assert problem.summary == (
        "/dev/shm has 64 MiB, and Ray and NCCL need 1536 MiB of shared memory"
    )
    assert (problem.hint or "").startswith("sudo mount -o remount,size=50% /dev/shm")


@pytest.mark.parametrize(("limit", "count"), [(1024, 1), (4095, 1), (4096, 0), (0, 0)])
def test_open_files(limit: int, count: int) -> None:
    saw = found(host(nofile_hard=limit))
    assert len(saw) == count
    if saw:
        assert saw[0].summary == f"at most {limit} open files are allowed, and Ray needs 4096"


def test_few_open_files_are_noted() -> None:
    (text,) = notes(inventory(), {"gpu1": host(nofile_hard=20_000)})
    assert "at most 20000 open files, 65536 are better" in text


def test_a_full_disk_is_told_once_and_not_as_lack_of_room_too() -> None:
    full = (Disk("/", 100 * GIB, GIB // 5), Disk("/var/lib/docker", 100 * GIB, GIB // 5))
    facts = {"gpu1": host(disks=full)}
    (problem,) = problems(inventory(), facts)
    assert problem.summary == "the disk of / is full: 0.2 GiB of 100.0 GiB are free"


def test_a_disk_of_models_alone_may_be_full() -> None:
    disks = (Disk("/", 100 * GIB, 50 * GIB), Disk("/data/models", 10 * GIB, 0))
    (problem,) = found(host(disks=disks))
    assert problem.summary.startswith("the disk of /data/models is full")


def test_copies_of_one_disk_are_noted() -> None:
    two = inventory().model_copy(
        update={"hosts": (*inventory().hosts, Host(name="gpu2", address="10.0.0.2"))}
    )
    twin = host(hostname="b", boot_id="another")
    facts = {"gpu1": host(), "gpu2": twin}
    assert list(problems(two, facts, with_image=facts)) == []
    (text,) = (text for text in notes(two, facts) if "machine ID" in text)
    assert text.startswith("gpu1 and gpu2 have the same machine ID, as copies of a disk do")


def test_shared_memory_that_ran_full_is_told_before_something_cannot_start() -> None:
    assert found(host(shm=2**31, shm_free=2**30)) == []
    (problem,) = found(host(shm=2**31, shm_free=2**20))
    assert str(problem).endswith(
        "/dev/shm is full: 1 of 2048 MiB are free, and no engine can start there"
    )
    full, _too_small = found(host(shm=2**22, shm_free=0))
    assert "/dev/shm is full: 0 of 4 MiB" in str(full)
