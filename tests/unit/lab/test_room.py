"""What a machine must have for the lab, in figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.lab import room
from clusterctl.lab.room import Caches
from clusterctl.units import GIB


@pytest.fixture
def caches(tmp_path: Path) -> Caches:
    """All built, but the image."""
    for name in room.CACHE_DISK.keys() - {"image"}:
        (tmp_path / name).mkdir()
    return Caches(**{name: tmp_path / name for name in room.CACHE_DISK})


def test_disk_is_needed_for_what_is_not_there_yet(caches: Caches) -> None:
    image, host = room.CACHE_DISK["image"], room.HOST_DISK
    assert room.disk_needed(caches, 2, image=True) == image + 2 * host
    assert room.disk_needed(caches, 0, image=True) == image + room.IMAGE_BUILDING
    assert room.disk_needed(caches, 1, image=False) == room.BARE_HOST_DISK
    caches.image.mkdir()
    assert room.disk_needed(caches, 0, image=True) == 0


def test_a_host_with_gpus_needs_disk_for_its_image(caches: Caches, tmp_path: Path) -> None:
    layout = tmp_path / "oci/blobs"
    assert room.gpu_host_disk(tmp_path / "oci") == room.GPU_HOST_DISK
    layout.mkdir(parents=True)
    (layout / "layer").write_bytes(bytes(1000))
    assert room.gpu_host_disk(tmp_path / "oci") == room.gpu_host_disk(layout / "layer") == 2500
    assert room.disk_needed(caches, 2, image=False, host=2500) == 5000


def test_too_little_disk_is_told_with_both_figures(tmp_path: Path) -> None:
    assert room.lack_of_disk(tmp_path / "to" / "be" / "made", 1) is None
    problem = room.lack_of_disk(tmp_path / "lab", 1 << 60)
    assert problem
    assert "1073741824.0 GiB" in problem.summary
    assert str(tmp_path / "lab") in problem.summary
    assert "CLUSTERCTL_LAB_DIR" in (problem.hint or "")


def test_too_little_memory_names_a_model_that_there_is_memory_for() -> None:
    assert room.lack_of_memory(2, "tiny", 7 * GIB) is None
    problem = room.lack_of_memory(2, "qwen2.5-1.5b", 7 * GIB)
    assert problem
    assert "12.0 GiB" in problem.summary
    assert "7.0 GiB are available" in problem.summary
    assert problem.hint == "serve tiny: scripts/demo.sh --model tiny"
    none = room.lack_of_memory(2, "tiny", GIB)
    assert none
    assert "tiny:" not in (none.hint or "")
    assert room.lack_of_memory(2, None, GIB) is None


def test_more_hosts_need_more() -> None:
    assert room.memory_needed(4, "tiny") == room.memory_needed(2, "tiny") + 2 * room.NODE_MEMORY
    assert room.memory_needed(4, None) == 2 * room.memory_needed(2, None)


MEMINFO = "MemTotal: 16777216 kB\nMemAvailable:    8388608 kB\nHugePages_Total:       0\n"


def test_memory_is_the_machines_where_no_group_limits_it(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    assert room.available_memory(meminfo, tmp_path) == 8 * GIB


def test_the_limit_of_a_control_group_counts_less_what_is_used(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    files = {
        "cgroup.controllers": "memory\n",
        "memory.max": f"{4 * GIB}\n",
        "memory.current": f"{3 * GIB}\n",
        "memory.stat": f"anon {GIB}\nactive_file {GIB}\ninactive_file {GIB}\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert room.available_memory(meminfo, tmp_path) == 3 * GIB
    (tmp_path / "memory.max").write_text("max\n")
    assert room.available_memory(meminfo, tmp_path) == 8 * GIB


def test_so_does_that_of_version_one(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(MEMINFO)
    group = tmp_path / "memory"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(f"{2 * GIB}\n")
    (group / "memory.usage_in_bytes").write_text(f"{GIB}\n")
    (group / "memory.stat").write_text("total_active_file 0\ntotal_inactive_file 1048576\n")
    assert room.available_memory(meminfo, tmp_path) == GIB + (1 << 20)
