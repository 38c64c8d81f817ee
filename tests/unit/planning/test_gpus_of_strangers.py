"""GPUs whose memory processes of others hold: not free for plans, and a problem in status."""

from __future__ import annotations

from dataclasses import replace

from clusterctl.facts.gpu_faults import gpus_of_strangers
from clusterctl.facts.model import GpuProcess, GpuReport
from clusterctl.planning.free_gpus import HeldGpus, without_strangers
from clusterctl.planning.placement import HostGpus
from clusterctl.units import GIB
from tests.fakes.host_facts import gpus

TENANT = GpuProcess("GPU-0", 4711, "python3", 60 * GIB, "")
OURS = GpuProcess("GPU-1", 12, "VLLM::Worker", 120 * GIB, "c1", cluster="demo")


def report(*processes: GpuProcess) -> GpuReport:
    return replace(gpus(2), processes=processes)


def planned(*processes: GpuProcess, free: int = 2) -> HeldGpus:
    return without_strangers(HeldGpus([HostGpus("gpu1", free)]), {"gpu1": report(*processes)})


def test_a_gpu_that_others_hold_is_not_free_and_the_plan_says_who_holds_it() -> None:
    found = planned(TENANT)
    assert [each.free for each in found.free] == [1]
    (line,) = found.holders
    assert line.startswith("gpu1: GPU 0 is held by python3 (pid 4711, 60.0 GiB)")


def test_little_memory_and_our_own_ranks_take_nothing_away() -> None:
    assert planned(replace(TENANT, memory=GIB // 2)) == planned()
    assert planned(OURS) == planned()
    # A tenant beside our rank: the GPU is not free anyway, or becomes free with the rank.
    late = replace(TENANT, gpu="GPU-1")
    assert [each.free for each in planned(OURS, late, free=1).free] == [1]
    assert list(gpus_of_strangers(report(OURS, late))) == [1], "status names it"
