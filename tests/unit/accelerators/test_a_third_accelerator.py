"""An accelerator that is registered by one line is asked wherever nvidia and cpu are."""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.accelerators.names import MODULES
from clusterctl.accelerators.registry import accelerator_named
from clusterctl.errors import InventoryError
from clusterctl.facts.gather import probe_script
from clusterctl.facts.model import GpuFacts, GpuReport, HostFacts
from clusterctl.facts.parse import Probe, parse_probe
from clusterctl.facts.sections import split_sections
from clusterctl.inventory.load import load
from clusterctl.inventory.model import Inventory
from clusterctl.network.choice import resolve
from clusterctl.node.documents import NodeDocument, from_json, to_json
from clusterctl.node.fabric_documents import FabricSpec
from clusterctl.node.fabric_gate import seats
from clusterctl.operations import bootstrap_stages as bootstrap
from clusterctl.operations.nodes import removal_stages
from clusterctl.planning.cluster_hardware import hardware_of
from clusterctl.planning.free_gpus import HeldGpus
from clusterctl.planning.placement import HostGpus
from clusterctl.ray_cluster.nodes import container_spec, expected_nodes, node_document
from clusterctl.serving.arguments import BatchLimits, batch_limits
from clusterctl.steps.engines import Engines
from clusterctl.survey.cluster import Cluster, requirements
from clusterctl.survey.inventory_text import Found, InitOptions, inventory_text
from clusterctl.units import GIB
from tests.fakes.abacus import LISTING, Nothing
from tests.fakes.container_engine import image
from tests.fakes.host import FakeHost, fake_driver, fake_view
from tests.fakes.host_facts import host_facts, nic
from tests.fakes.surveys import survey_of
from tests.fakes.transport import FakeTransport

FILE = """\
cluster: demo
image: vllm:v0.33.0
accelerator: abacus
hosts:
  a: {address: 10.0.0.1, role: head, gpus: 2}
  b: {address: 10.0.0.2}
"""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that a new accelerator is."""
    monkeypatch.setitem(MODULES, "abacus", "tests.fakes.abacus")


def inventory(tmp_path: Path) -> Inventory:
    file = tmp_path / "inventory.yaml"
    file.write_text(FILE)
    return load(file)


def of_host(number: int, devices: int = 2) -> HostFacts:
    found = tuple(
        GpuFacts(n, f"abacus-{n}", "Great Abacus", 16 * GIB, "1.0") for n in range(devices)
    )
    report = GpuReport(found, None if found else "no abacus on the shelf")
    return host_facts(nic("eth0", f"10.0.0.{number}"), gpus=report)


FACTS = {"a": of_host(1), "b": of_host(2)}
ANSWERS = {name: Probe(facts, {}, (), (), None) for name, facts in FACTS.items()}


def test_its_name_is_told_from_a_slip(tmp_path: Path) -> None:
    assert inventory(tmp_path).accelerator == "abacus"
    (tmp_path / "inventory.yaml").write_text(FILE.replace("abacus", "abakus"))
    with pytest.raises(InventoryError) as caught:
        load(tmp_path / "inventory.yaml")
    assert "`accelerator` must be nvidia or cpu or abacus" in str(caught.value.detail)


def test_hosts_are_asked_for_it_by_its_own_program(tmp_path: Path) -> None:
    program = tmp_path / "abacus-list"
    program.write_text("#!/bin/sh\necho abacus 0 Great Abacus 16\n")
    program.chmod(0o755)
    gpu_probe = accelerator_named("abacus").gpu_probe
    told = subprocess.run(
        ["sh", "-s", "MARK", "30"],
        input=probe_script(gpu_probe),
        capture_output=True,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        timeout=120,
        check=True,
    )
    answer = split_sections(told.stdout.decode(), "MARK")
    assert answer.complete
    found = parse_probe(answer, sudo_error=None, received=time.time(), gpu_probe=gpu_probe)
    assert [(gpu.model, gpu.memory) for gpu in found.facts.gpus.gpus] == [
        ("Great Abacus", 16 * GIB)
    ]


def test_check_says_what_it_lacks(tmp_path: Path) -> None:
    poor = {**ANSWERS, "a": replace(ANSWERS["a"], facts=of_host(1, devices=0))}
    problem, *_ = requirements(survey_of(inventory(tmp_path), poor))
    assert (problem.host, problem.summary) == ("a", "lacks an abacus: no abacus on the shelf")


def test_a_node_gets_its_devices_and_its_words(tmp_path: Path) -> None:
    demo = inventory(tmp_path)
    topology = resolve(demo, FACTS)
    assert [node.gpus for node in topology.nodes] == [2, 2], "b promises none, and shows two"
    spec = container_spec(topology.head, "sha256:x", demo, FACTS["a"], topology)
    assert spec.cdi_devices == ("example.org/abacus=all",)
    assert spec.devices == ("/dev/abacus",)
    assert not spec.all_gpus
    assert spec.env["ABACUS_RODS"] == "13"
    written = node_document(demo, topology, topology.head, FACTS["a"])
    document = from_json(NodeDocument, to_json(written))
    assert document.gpu_listing == LISTING
    assert "RAY_memory_monitor_refresh_ms" not in document.env


def test_the_fabric_gate_has_a_rank_for_each(tmp_path: Path) -> None:
    nodes = expected_nodes(resolve(inventory(tmp_path), FACTS))
    asked = FabricSpec(nodes, accelerator_named("abacus").gpu_backend)
    assert [(seat.host, seat.device) for seat in seats(asked)] == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
    ]  # fmt: skip
    assert (asked.gpu_backend.device, asked.gpu_backend.collectives) == ("abacus", "beads")


def test_bootstrap_and_down_do_what_it_needs(tmp_path: Path) -> None:
    demo = inventory(tmp_path)
    hosts = {name: FakeHost(name) for name in FACTS}
    for host in hosts.values():
        host.engine.images["base"] = image("base", "vllm:v0.33.0")
    views = {name: fake_view(host, FACTS[name]) for name, host in hosts.items()}
    cluster = Cluster(survey_of(demo, ANSWERS), resolve(demo, FACTS), views, ("a", "b"))
    target = bootstrap.Target.of(cluster, ("a", "b"), Engines(fake_driver))
    stages = bootstrap.stages_of(target)
    steps = {stage.title: stage.steps for stage in stages}
    assert steps["GPUs in containers"] == (Nothing("abaci oiled"),)
    assert steps["GPUs in the image"] == (Nothing("beads in the image"),)
    purged = [
        step for stage in removal_stages(demo, ("a", "b"), purge=True) for step in stage.steps
    ]
    assert Nothing("abaci shelved") in purged


def test_a_plan_counts_its_memory_and_vllm_gets_its_defaults(tmp_path: Path) -> None:
    demo = inventory(tmp_path)
    free = HeldGpus([HostGpus("a", 2), HostGpus("b", 2)])
    survey = survey_of(demo, ANSWERS, {name: FakeTransport() for name in ANSWERS})
    found = hardware_of(survey, free, "0.33.0", "m")
    assert [[gpu.name for gpu in site.gpus] for site in found.sites] == [["Great Abacus"] * 2] * 2
    memories = [gpu.memory_gib for site in found.sites for gpu in site.gpus]
    assert memories == pytest.approx([16] * 4, rel=0.02)
    limits = batch_limits(found.defaults, BatchLimits(256, 2048))
    assert (limits.sequences, limits.tokens) == (7, 99)


def test_init_writes_it_down(tmp_path: Path) -> None:
    demo = inventory(tmp_path)
    options = InitOptions("demo", "vllm:v0.33.0", "/data/models", accelerator="abacus")
    found = Found(demo, FACTS, resolve(demo, FACTS), {"a": "a", "b": "b"}, "the first named", ())
    text = inventory_text(options, found)
    assert "# Beads on rods.\naccelerator: abacus\n" in text
    assert text.count("- {model: Great Abacus, memory: 16.0 GiB}") == 4
