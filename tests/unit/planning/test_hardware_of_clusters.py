"""From what hosts report to what a plan is made for: GPUs in the order of ranks, links, sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from clusterctl.accelerators.engine_defaults import EngineDefaults
from clusterctl.commands.fit import usable_hardware
from clusterctl.errors import UsageError
from clusterctl.facts.model import Address, GpuFacts, GpuReport, NicFacts
from clusterctl.facts.parse import Probe
from clusterctl.inventory.model import Gpu, Host, Inventory
from clusterctl.models.config_json import describe
from clusterctl.models.name import Model
from clusterctl.models.probe import ModelDirectory
from clusterctl.network.gate import FabricRecord, record_file
from clusterctl.node.documents import NodeState, to_json
from clusterctl.node.fabric_documents import Collective
from clusterctl.planning.cluster_hardware import gpus_of, with_image_env
from clusterctl.planning.cluster_hardware import hardware_of as hardware_of_free
from clusterctl.planning.free_gpus import HeldGpus
from clusterctl.planning.overheads import Measured
from clusterctl.planning.placement import HostGpus
from clusterctl.planning.planner import plan as fit
from clusterctl.planning.question import question
from clusterctl.planning.report import Hardware, PlanRequest
from clusterctl.planning.speed import LinkSpeed
from clusterctl.serving.request import ServiceRequest
from tests.fakes.catalogue import config_of
from tests.fakes.container_engine import FakeDriver, FakeEngine, image
from tests.fakes.host_facts import host_facts
from tests.fakes.surveys import survey_of
from tests.fakes.transport import FakeTransport

MIB = 2**20


def nic(ip: str, speed: int | None, kind: str = "physical") -> NicFacts:
    address = (Address(ip, 24, "global"),)
    return NicFacts("eth0", "02:00:00:00:00:01", 9000, "up", speed, kind, None, address)


def gpu(model: str, mib: int | None, **more: Any) -> GpuFacts:
    return GpuFacts(0, "GPU-0", model, None if mib is None else mib * MIB, "580", **more)


def probe(
    ip: str, *gpus: GpuFacts, speed: int | None = 100_000, kind: str = "physical",
    files: dict[str, bytes | None] | None = None,
) -> Probe:  # fmt: skip
    facts = replace(host_facts(nic(ip, speed, kind)), gpus=GpuReport(gpus, None))
    return Probe(facts, files or {}, (), (), None)


def inventory(**changes: Any) -> Inventory:
    hosts = (
        Host(name="small", address="10.0.0.2", gpus=(Gpu(),)),
        Host(name="big", address="10.0.0.1", role="head", gpus=(Gpu(), Gpu())),
        Host(name="other", address="10.0.0.3", gpus=(Gpu(),)),
    )
    base = {"cluster": "demo", "image": "vllm/vllm-openai:v0.25.1", "hosts": hosts}
    return Inventory(**{**base, **changes})


H200 = gpu("NVIDIA H200", 143_771)
R3090 = gpu("NVIDIA GeForce RTX 3090", 24_576)
ANSWERS = {
    "small": probe("10.0.0.2", R3090, speed=25_000),
    "big": probe("10.0.0.1", H200, H200),
    "other": probe("10.0.0.3", R3090),
}


def hardware_of(
    inventory: Inventory, answers: dict[str, Probe], vllm: str | None = None
) -> Hardware:
    transports = {name: FakeTransport() for name in answers}
    survey = survey_of(inventory, answers, transports)
    asked = question(survey, ServiceRequest("m"), Model("m", "m", ()), vllm=vllm, as_if_free=True)
    return usable_hardware(asked)


def test_the_head_comes_first() -> None:
    found = hardware_of(inventory(), ANSWERS)
    assert [site.host for site in found.sites] == ["big", "small", "other"]
    assert [gpu.name for gpu in found.sites[0].gpus] == ["H200", "H200"]
    assert [site.fabric for site in found.sites] == ["nvlink", "pcie", "pcie"]
    assert [round(gpu.memory_gib) for gpu in gpus_of(ANSWERS)] == [24, 140, 140, 24]


def test_the_slowest_link_counts() -> None:
    found = hardware_of(inventory(), ANSWERS).network
    assert found is not None
    assert found.bandwidth == 25e9 / 8


def test_a_speed_that_the_fabric_gate_measured_comes_with_its_time() -> None:
    nodes = dict.fromkeys(ANSWERS, "a container")
    slow = Collective("nccl", 4, 3, 1.2e9, 40e-6, 64 << 20)
    proven = FabricRecord(1_700_000_000.0, nodes, ["NCCL"], [slow])
    files: dict[str, bytes | None] = {record_file("demo"): to_json(proven).encode()}
    answers = {**ANSWERS, "big": probe("10.0.0.1", H200, H200, files=files)}
    found = hardware_of(inventory(), answers)
    assert (found.network, found.measured) == (LinkSpeed(1.2e9, 40e-6), proven.when)
    report = fit(PlanRequest(describe(config_of("Qwen/Qwen2.5-1.5B-Instruct"), "m"), found, tp=4))
    assert [note for note in report.notes if note.startswith("speed: 1.2 GB/s between hosts")]
    assert hardware_of(inventory(), ANSWERS).measured == ""


@pytest.mark.parametrize(("speed", "kind"), [(None, "physical"), (10_000, "virtual")])
def test_a_link_of_unknown_speed_is_unknown(speed: int | None, kind: str) -> None:
    """A veth pair says 10 Gbit/s whatever is below it."""
    answers = {**ANSWERS, "small": probe("10.0.0.2", R3090, speed=speed, kind=kind)}
    assert hardware_of(inventory(), answers).network is None


def test_the_version_is_the_running_one_else_the_tags() -> None:
    assert hardware_of(inventory(), ANSWERS).vllm == "vllm/vllm-openai:v0.25.1"
    assert hardware_of(inventory(image="local/vllm:latest"), ANSWERS).vllm is None
    state = NodeState("big", "head", 0.0, "0.1", "up", 0.0, 0, vllm_version="0.32.0+cpu")
    files: dict[str, bytes | None] = {"/run/clusterctl/demo/state.json": to_json(state).encode()}
    answers = {**ANSWERS, "big": probe("10.0.0.1", H200, H200, files=files)}
    assert hardware_of(inventory(), answers).vllm == "0.32.0+cpu"
    assert hardware_of(inventory(), answers, vllm="0.19.0").vllm == "0.19.0"


def test_hosts_bring_what_earlier_starts_taught() -> None:
    text = (
        b'{"starts": [{"host": "big", "gpu": "H200", "image": "vllm/vllm-openai:v0.25.1",'
        b' "model": "m", "tp": 2, "runtime_gib": 1.9, "graphs_gib": 0.7,'
        b' "settings": "s"}]}'
    )
    files: dict[str, bytes | None] = {"/var/lib/clusterctl/measured/demo/measured.json": text}
    answers = {**ANSWERS, "big": probe("10.0.0.1", H200, H200, files=files)}
    big = hardware_of(inventory(), answers).sites[0]
    assert big.measured_at(2) == Measured(1.9, 0.7, "s")
    assert big.measured_at(1) is None


@pytest.mark.parametrize(
    "strange", [gpu("NVIDIA GX99", None), gpu("NVIDIA H200", 143_771, mig=True)]
)
def test_gpus_of_which_nothing_can_be_said(strange: GpuFacts) -> None:
    answers = {**ANSWERS, "small": probe("10.0.0.2", strange)}
    with pytest.raises(UsageError, match="small"):
        hardware_of(inventory(), answers)


def test_a_gpu_with_the_hosts_memory_reports_none_and_is_known() -> None:
    found = hardware_of(
        inventory(), {**ANSWERS, "small": probe("10.0.0.2", gpu("NVIDIA GB10", None))}
    )
    assert [gpu.memory_gib for gpu in found.sites[1].gpus] == [121.69]


def test_only_free_gpus_are_offered_to_a_service() -> None:
    survey = survey_of(inventory(), ANSWERS, {name: FakeTransport() for name in ANSWERS})
    free = HeldGpus([HostGpus("big", 1), HostGpus("small", 0), HostGpus("other", 1)])
    found = hardware_of_free(survey, free, "0.25.1", "m")
    assert [(site.host, len(site.gpus)) for site in found.sites] == [("big", 1), ("other", 1)]


def test_cpus_stand_for_the_devices_that_are_promised() -> None:
    cpus = inventory(accelerator="cpu", env={"VLLM_CPU_KVCACHE_SPACE": "2"})
    bare: dict[str, Probe] = {name: probe(f"10.0.0.{ip}") for name, ip in
                              (("small", 2), ("big", 1), ("other", 3))}  # fmt: skip
    found = hardware_of(cpus, bare)
    assert [len(site.gpus) for site in found.sites] == [2, 1, 1]
    assert found.sites[0].gpus[0].is_cpu
    assert gpus_of(bare) == ()
    assert found.env["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_no_gpu_anywhere_is_said() -> None:
    promised = [Host(name=host.name, address=host.address, role=host.role, gpus=())
                for host in inventory().hosts]  # fmt: skip
    bare = {name: probe(f"10.0.0.{ip}") for name, ip in (("small", 2), ("big", 1), ("other", 3))}
    with pytest.raises(UsageError, match="no host reports a GPU"):
        hardware_of(inventory(hosts=tuple(promised)), bare)


def engine_with(env: dict[str, str]) -> FakeDriver:
    there = replace(image("sha256:i", "lab:1"), env=env)
    return FakeDriver("big", FakeEngine(images={there.id: there}), lambda: None)


def test_the_image_says_how_large_the_cache_is_on_cpus() -> None:
    head = engine_with({"PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "1"})
    bare = {name: probe(f"10.0.0.{ip}") for name, ip in (("small", 2), ("big", 1), ("other", 3))}
    cpus = inventory(accelerator="cpu", env={"VLLM_CPU_KVCACHE_SPACE": "2"})
    hardware = replace(hardware_of(cpus, bare), env={})
    assert with_image_env(hardware, head, "lab:1").env == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    told = replace(hardware, env={"VLLM_CPU_KVCACHE_SPACE": "4"})
    assert with_image_env(told, head, "lab:1").env == {"VLLM_CPU_KVCACHE_SPACE": "4"}


def test_the_image_says_nothing_of_the_cache_on_gpus() -> None:
    head = engine_with({"VLLM_CPU_KVCACHE_SPACE": "1"})
    assert with_image_env(hardware_of(inventory(), ANSWERS), head, "lab:1").env == {}


def test_an_image_that_cannot_be_asked_sets_nothing() -> None:
    cpus = Hardware((), defaults=EngineDefaults(cache_variable="VLLM_CPU_KVCACHE_SPACE"))
    assert with_image_env(cpus, engine_with({}), "lab:1") == cpus
    assert with_image_env(cpus, engine_with({}), "other:1") == cpus
    stopped = FakeDriver("big", FakeEngine(running=False), lambda: None)
    assert with_image_env(cpus, stopped, "lab:1") == cpus


def test_the_config_that_most_hosts_have() -> None:
    old, new = ModelDirectory("/m", "old"), ModelDirectory("/m", "new")
    transports = {name: FakeTransport() for name in ANSWERS}
    survey = survey_of(inventory(), ANSWERS, transports)
    asked = question(survey, ServiceRequest("/m"), Model("/m", "m", ()))
    assert replace(asked, findings={"a": [old], "b": [new], "c": [new], "d": []}).config == "new"
    assert replace(asked, findings={"a": [ModelDirectory("/m")], "b": []}).config is None
