"""The main job on whole hosts that share this machine's GPUs: interfaces chosen, NCCL proven,
models served over both hosts, memory and speed as estimated, faults, nothing left. The tests build
on each other, in the order of this file, which is that of their value: a machine may be taken away
before the end, or be there for CLUSTERCTL_GPU_MINUTES only, which leaves out what would not end in
time. With one GPU there is one host, and what needs two ranks is skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.load import load
from clusterctl.lab import faults
from clusterctl.lab.paths import LabPaths
from clusterctl.planning.speed import REQUESTS
from tests.gpu.conftest import ON_CPUS, GpuLab, Push, Table
from tests.gpu.services import (
    CONTAINER,
    COPIES_OF_VLLM,
    DENSE,
    DIVIDED,
    EXPERTS,
    FP8,
    IN_ONE_HOST,
    KV_CACHE,
    MODEL,
    NAME,
    ONE,
    OTHER_MODELS,
    REPLICAS,
    STAGES,
    TP,
    WEIGHTS,
    Layout,
    again,
    answers,
    causes,
    fleet_file,
    require_forecasts,
    serve_if_none,
    starts,
    stop_services,
    used_mib,
)
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import SteadyLoad

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

AT_ONCE = (1, 2) if ON_CPUS else REQUESTS
SECONDS = {1: 3.0, 64: 5.0, 256: 6.0}
RECOVERY = 240.0
FACTOR = 2.0
"""How far off an estimated speed may be: by this factor, in either direction."""

HELD = 40960
"""MiB that HOLD takes, by libcuda alone: plain allocations, as any program has them."""
HOLD = """\
import ctypes, time
cu = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
cu.cuInit(0)
cu.cuDeviceGet(ctypes.byref(device), 0)
cu.cuCtxCreate_v2(ctypes.byref(context), 0, device)
for _ in range(40):
    cu.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(2**30))
time.sleep(600)
"""

SPECIFICATION = "/etc/cdi/nvidia.yaml"
STALE = {
    "another driver": r"s/\.so\.[0-9][0-9.]*/.so.570.86.15/g",
    "other GPUs": r"s,/dev/nvidia[0-9][0-9]*,/dev/nvidia99,g",
}
"""How a specification looks then, as edits of the one that is right."""

Measure = Callable[[Layout, dict[str, Any], dict[str, Any]], None]


@pytest.fixture(scope="module")
def measure(table: Table, on_host: OnHost) -> Measure:
    """Measures a service under each number of requests, beside what `fit` estimated."""

    def run(layout: Layout, estimated: dict[str, Any], served: dict[str, Any]) -> None:
        api = served["endpoint"]
        servers = [replica["endpoint"] for replica in served["replicas"]] or [api]
        key = on_host("gpu1", "cat /etc/clusterctl/lab/api.key").stdout.strip()
        ratios = {}
        for requests in AT_ONCE:
            load = [sys.executable, "-m", "tests.gpu.load", api, layout.service, str(requests)]
            done = subprocess.run(
                [*load, str(SECONDS.get(requests, 3.0)), *servers],
                env={**os.environ, "CLUSTERCTL_API_KEY": key},
                capture_output=True,
                text=True,
                timeout=240,
            )
            assert done.returncode == 0, done.stderr
            found = {name: round(value, 2) for name, value in json.loads(done.stdout).items()}
            names = ("tokens_per_s", "first_token_ms", "token_ms")
            said = {name: estimated.get(f"{name}_{requests}") for name in names}
            table.add(layout.name, **found, estimated=said)
            if said["tokens_per_s"] and layout.estimated:
                ratios[requests] = said["tokens_per_s"] / found["tokens_per_s"]
        assert all(1 / FACTOR < ratio < FACTOR for ratio in ratios.values()), ratios

    return run


def test_init_chooses_the_interfaces(
    inventory: str, as_found: list[str], lab: LabPaths, tmp_path: Path
) -> None:
    """As the lab's own inventory has them: the fabric for ranks, the other for SSH."""
    wanted, made = load(Path(inventory)), tmp_path / "inventory.yaml"
    ran = Operator(tmp_path).ok(
        *("init", *(host.address for host in wanted.hosts), "--user", "root"),
        *("--identity", str(lab.identity), "--known-hosts", str(lab.known_hosts)),
        *(("--accelerator", "cpu") if ON_CPUS else ()),
        *("-o", str(made)),
    )
    found = load(made)
    assert as_found
    assert [(h.name, h.nics.nccl, h.nics.gloo, len(h.gpus)) for h in found.hosts] == [
        (h.name, h.nics.nccl, h.nics.gloo, len(h.gpus)) for h in wanted.hosts
    ], ran.text


def test_bootstrap_proves_nccl_on_the_interfaces_asked_for(
    inventory: str, as_found: list[str], gpus: int, hosts: int, operator: Operator, table: Table
) -> None:
    ran = operator.ok("bootstrap", inventory, "--yes", "--json", timeout=800)
    table.versions |= {"vLLM": ran.json["vllm_version"], "Ray": ran.json["ray_version"]}
    again = operator.ok("bootstrap", inventory, "--yes", "--json")
    assert again.json["changed"] == 0
    table.add(
        "bootstrap",
        seconds=round(ran.seconds, 1),
        again=round(again.seconds, 1),
        fabric=ran.json["fabric"],
    )
    library = "Gloo" if ON_CPUS else "NCCL"
    if hosts == 2:
        expected = f"{library}, {gpus} ranks on 2 hosts: Socket on eth1 (gpu1), ens3 (gpu2), "
        assert any(line.startswith(expected) for line in ran.json["fabric"]), ran.json["fabric"]


@pytest.fixture(scope="module")
def weights_written(inventory: str, lab: LabPaths) -> Iterator[subprocess.Popen[bytes]]:
    """Writes DENSE with weights to gpu1's disk."""
    place = lab.host("gpu1") / "root" / WEIGHTS.removeprefix("/")
    argv = [sys.executable, "-m", "tests.gpu.shapes", DENSE, str(place)]
    with subprocess.Popen(argv) as writing:
        yield writing
        writing.kill()


@pytest.fixture
def serve_and_measure(
    gpus: int, hosts: int, operator: Operator, table: Table, measure: Measure
) -> Callable[[Layout], None]:
    def run(layout: Layout) -> None:
        layout = layout.on(gpus, hosts)
        known = table.has(layout.name, "tokens_per_s")
        if known and not layout.served_again:
            pytest.skip("measured on an earlier machine")
        stop_services(operator)
        estimated = operator.run("fit", layout.model, "--json", *layout.fit).json["speed"]
        words = ("serve", layout.model, "--name", NAME, "--yes", "--json", *layout.serve)
        ran = operator.ok(*words, timeout=600)
        served = ran.json
        cache = {one["name"]: one for one in served["reported"]}.get("kv_cache_tokens")
        spent = starts(operator)
        table.add(layout.name, serve_seconds=round(ran.seconds, 1), kv_cache=cache, starts=spent)
        ranks = [*served["ranks"], *(rank for r in served["replicas"] for rank in r["ranks"])]
        places = {(rank["host"], rank["pid"]) for rank in ranks}
        used = {f"gpu{n + 1}": gpus // hosts for n in range(hosts)}
        used = {layout.only: 2} if layout.only else used
        assert Counter(host for host, _ in places) == used, ran.text
        assert operator.ok(*words).json["changed"] is False
        if known:
            return
        measure(layout, estimated, served)
        assert cache is not None, served["reported"]
        assert abs(cache["off"]) < KV_CACHE, cache

    return run


def test_one_gpu_serves_as_estimated(
    hosts: int, serve_and_measure: Callable[[Layout], None]
) -> None:
    if hosts == 2:
        pytest.skip("with two GPUs, each of two replicas has one")
    serve_and_measure(ONE)


@pytest.mark.takes(150)
@pytest.mark.usefixtures("two_in_a_host", "weights_written")
def test_a_tensor_parallel_group_in_one_host_serves_as_estimated(
    serve_and_measure: Callable[[Layout], None],
) -> None:
    serve_and_measure(IN_ONE_HOST)


@pytest.mark.takes(155)
@pytest.mark.usefixtures("two_ranks")
def test_replicas_on_all_gpus_serve_as_estimated(
    operator: Operator, serve_and_measure: Callable[[Layout], None]
) -> None:
    """Several of a host at the same moment, each with ports and a compile cache of its own."""
    serve_and_measure(REPLICAS)
    states = operator.run("status", "--json").json["services"]
    assert [one["last_failure"] for one in states] == [""] * len(states)


@pytest.mark.takes(80)
@pytest.mark.usefixtures("two_ranks")
def test_a_killed_engine_costs_only_the_streams_that_it_had_begun(
    operator: Operator, gpus: int, hosts: int, on_host: OnHost, table: Table
) -> None:
    load = SteadyLoad(operator, on_host, model=NAME, rate=2.0 if ON_CPUS else 20.0)
    with load.during("kill -9 of an engine") as row:
        engine = "pkill -KILL -o -f VLLM::EngineCor"
        assert on_host(f"gpu{hosts}", engine).returncode == 0
        began = time.monotonic()
        until(lambda: not answers(operator), within=90, what="status tells of the killed engine")
        until(lambda: answers(operator), within=RECOVERY, what="all replicas are ready again")
        seconds = round(time.monotonic() - began, 1)
    table.add(f"kill -9 of one of {gpus} engines under load", ready_seconds=seconds, load=row)
    assert row["failed"] == 0, row
    assert row["whole"] > 0.9 * row["sent"], row


@pytest.mark.takes(190)
@pytest.mark.usefixtures("two_in_a_host")
def test_weights_of_real_size_beside_fp8_serve_as_estimated(
    operator: Operator,
    push_shape: Push,
    measure: Measure,
    weights_written: subprocess.Popen[bytes],
    table: Table,
    tmp_path: Path,
) -> None:
    """Both at once, on the GPUs of one host; fp8 is made while loading."""
    stop_services(operator)
    shape = push_shape(DENSE)
    assert weights_written.wait(120) == 0
    estimated = operator.run("fit", shape, "--json", *FP8).json["speed"]
    fleet = {
        "weights": {"model": WEIGHTS, "tp": 1, "on": "gpu1"},
        "fp8": {"model": shape, "tp": 1, "on": "gpu1", "flags": {"quantization": "fp8"}},
    }
    ran = operator.ok("apply", fleet_file(tmp_path, fleet), "--yes", "--json", timeout=400)
    table.add("weights and fp8", apply_seconds=round(ran.seconds, 1), starts=starts(operator))
    words = {"weights": (WEIGHTS, "--tp", "1", "--on", "gpu1"), "fp8": (shape, *FP8)}
    served = again(operator, words)
    measure(Layout("8B, fp8, one GPU", FP8, FP8, shape, service="fp8"), estimated, served["fp8"])
    require_forecasts(served, table)


@pytest.mark.takes(270)
@pytest.mark.usefixtures("two_ranks")
def test_replicas_that_divide_experts_serve_as_estimated(
    push_shape: Push, serve_and_measure: Callable[[Layout], None]
) -> None:
    if ON_CPUS:
        pytest.skip("30 billion weights need GPUs")
    push_shape(EXPERTS)
    serve_and_measure(DIVIDED)


@pytest.mark.takes(150)
@pytest.mark.usefixtures("two_ranks")
def test_a_tensor_parallel_group_over_both_hosts_serves_as_estimated(
    serve_and_measure: Callable[[Layout], None],
) -> None:
    serve_and_measure(TP)


@pytest.mark.takes(100)
def test_a_service_comes_back_by_itself_when_power_does(
    inventory: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    """All hosts lose it at once."""
    serve_if_none(operator)
    names = [host.name for host in load(Path(inventory)).hosts]
    for name in names:
        faults.power_off(name)
    began = time.monotonic()
    for name in names:
        faults.power_on(name)
    _comes_back("power", began, inventory, operator, table)


@pytest.mark.takes(110)
def test_a_service_comes_back_by_itself_when_docker_restarts(
    inventory: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    """On all hosts at once. Before release 28.2 it cannot give the node containers their CDI
    devices when it starts them again."""
    serve_if_none(operator)
    began = time.monotonic()
    for host in load(Path(inventory)).hosts:
        assert on_host(host.name, "systemctl restart docker").returncode == 0
    _comes_back("docker", began, inventory, operator, table)


def _comes_back(fault: str, began: float, inventory: str, operator: Operator, table: Table) -> None:
    until(lambda: answers(operator), within=RECOVERY, what="the service is ready again")
    seconds = round(time.monotonic() - began, 1)
    table.add(
        f"all hosts: {fault}",
        ready_seconds=seconds,
        starts=starts(operator),
        causes=causes(operator),
    )
    assert operator.ok("bootstrap", inventory, "--yes", "--json").json["changed"] == 0


@pytest.mark.takes(5)
def test_gpus_stay_with_containers_when_systemd_reads_its_units_again(
    operator: Operator, inventory: str, on_host: OnHost
) -> None:
    serve_if_none(operator)
    for host in load(Path(inventory)).hosts:
        assert on_host(host.name, "systemctl daemon-reload").returncode == 0
        if not ON_CPUS:
            seen = on_host(host.name, f"docker exec {CONTAINER} nvidia-smi -L")
            assert seen.stdout.count("UUID") == len(host.gpus), seen.stdout + seen.stderr
    assert answers(operator)


@pytest.mark.takes(90)
def test_a_killed_rank_is_replaced(
    operator: Operator, hosts: int, on_host: OnHost, table: Table
) -> None:
    serve_if_none(operator)
    began = time.monotonic()
    assert on_host(f"gpu{hosts}", "pkill -KILL -f 'RayWorkerProc|VLLM::EngineCore'").returncode == 0
    until(lambda: not answers(operator), within=90, what="status tells of the killed rank")
    noticed = time.monotonic() - began
    until(lambda: answers(operator), within=RECOVERY, what="the service is ready again")
    table.add(
        "kill -9 of a rank",
        noticed_seconds=round(noticed, 1),
        ready_seconds=round(time.monotonic() - began, 1),
        starts=starts(operator),
        causes=causes(operator),
    )


@pytest.mark.takes(45)
@pytest.mark.parametrize("kind", STALE)
def test_a_stale_cdi_specification_is_named_and_written_anew(
    kind: str, inventory: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    """As after an update of the driver, and after GPUs were changed: the engine then cannot start
    the node container."""
    if ON_CPUS:
        pytest.skip("needs GPUs")
    stop_services(operator)
    host = load(Path(inventory)).hosts[-1]
    as_made = on_host(host.name, f"cat {SPECIFICATION}").stdout
    stale = f"sed -i '{STALE[kind]}' {SPECIFICATION} && docker restart {CONTAINER}"
    assert on_host(host.name, stale).returncode != 0
    planned = operator.run("plan", inventory)
    found = causes(operator)
    ran = operator.ok("bootstrap", inventory, "--yes", "--json")
    seen = on_host(host.name, f"docker exec {CONTAINER} nvidia-smi -L").stdout
    table.add(
        f"CDI specification for {kind}", bootstrap_seconds=round(ran.seconds, 1), causes=found
    )
    assert f"is for {kind}" in planned.text, planned.text
    assert on_host(host.name, f"cat {SPECIFICATION}").stdout == as_made
    assert seen.count("UUID") == len(host.gpus), seen


@pytest.mark.takes(200)
@pytest.mark.parametrize("alias", OTHER_MODELS)
def test_other_models_on_one_gpu_serve_as_estimated(
    alias: str, hosts: int, push_shape: Push, serve_and_measure: Callable[[Layout], None]
) -> None:
    """Speeds of a mixture of experts are kept, not compared: the model of speed was fitted to dense
    models."""
    if ON_CPUS:
        pytest.skip("billions of weights need a GPU")
    if hosts == 2:
        pytest.skip("figures of one GPU are measured on machines with one")
    path = push_shape(alias)
    name = f"{alias}, one GPU"
    serve_and_measure(Layout(name, ONE.serve, ONE.fit, path, estimated=alias != EXPERTS))


@pytest.mark.takes(75)
@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("turn", range(1 if ON_CPUS else 2))
def test_replicas_on_all_gpus_start_together(turn: int, operator: Operator, table: Table) -> None:
    """Without compiling, so that they reach the same step at once."""
    stop_services(operator)
    eager = () if ON_CPUS else ("--", "--enforce-eager")
    words = ("serve", MODEL, "--name", NAME, "--tp", "1", "--replicas", "max", "--yes", "--json")
    ran = operator.ok(*words, *eager, timeout=600)
    assert all(replica["ranks"] for replica in ran.json["replicas"]), ran.text
    table.add(f"replicas on all GPUs, start {turn + 1}", serve_seconds=round(ran.seconds, 1))
    states = operator.run("status", "--json").json["services"]
    assert [one["last_failure"] for one in states] == [""] * len(states)


@pytest.mark.takes(45)
@pytest.mark.usefixtures("two_ranks")
def test_a_soak_finds_nothing(operator: Operator, table: Table) -> None:
    """Of the replicas on all GPUs."""
    ran = operator.run("soak", NAME, "--for", "20s", "--json", timeout=300)
    table.add("soak of 20 s", seconds=round(ran.seconds, 1), said=ran.json)
    assert ran.status == 0, ran.text


@pytest.mark.takes(75)
@pytest.mark.usefixtures("two_in_a_host")
def test_ranks_go_to_gpus_whose_memory_nobody_else_holds(
    operator: Operator, on_host: OnHost, table: Table
) -> None:
    """Somebody's process holds most of the first GPU of a host, which Ray would give away first."""
    stop_services(operator)
    hold = f"nohup python3 -c '{HOLD}' >/dev/null 2>&1 & echo $!"
    pid = on_host("gpu1", hold).stdout.strip()
    try:
        until(lambda: used_mib(on_host)["gpu1"][0] > HELD, within=60, what="the memory is held")
        words = ("serve", MODEL, "--name", NAME, "--tp", "1", "--on", "gpu1", "--yes", "--json",
                 "--", "--enforce-eager")  # fmt: skip
        ran = operator.ok(*words, timeout=400)
        first, second = used_mib(on_host)["gpu1"]
    finally:
        on_host("gpu1", f"kill -9 {pid}")
    table.add("serve beside a GPU that is held", serve_seconds=round(ran.seconds, 1),
              used_mib=[first, second])  # fmt: skip
    assert first < HELD + 8192
    assert second > 40960
    operator.ok("stop", NAME)


@pytest.mark.takes(110)
@pytest.mark.usefixtures("two_ranks")
def test_pipeline_stages_on_both_hosts_serve_as_estimated(
    serve_and_measure: Callable[[Layout], None],
) -> None:
    serve_and_measure(STAGES)


@pytest.mark.takes(140)
@pytest.mark.usefixtures("two_ranks")
def test_copies_of_vllms_own_serve_as_estimated(
    serve_and_measure: Callable[[Layout], None],
) -> None:
    serve_and_measure(COPIES_OF_VLLM)


@pytest.mark.takes(80)
@pytest.mark.usefixtures("two_in_a_host")
def test_a_second_start_of_a_model_finds_what_the_first_compiled(
    operator: Operator, table: Table
) -> None:
    ran = operator.ok("restart", NAME, "--yes", timeout=400)
    table.add("restart", seconds=round(ran.seconds, 1))
    assert answers(operator)


@pytest.mark.takes(30)
@pytest.mark.usefixtures("two_ranks")
def test_the_gate_measures_the_links_own_rate(
    gpu_lab: GpuLab, operator: Operator, inventory: str, table: Table
) -> None:
    if ON_CPUS:
        pytest.skip("Gloo's figure on slow cores is tests/lab/test_fabric.py's")
    stop_services(operator)  # Nothing else on the link
    gpu_lab.up(2, link_rate="10gbit")
    try:
        (*_, network) = operator.ok("check", "--fabric", "--json", inventory).json["fabric"][
            "network"
        ]
    finally:
        gpu_lab.up(2)
    table.add("links of 10 Gbit/s", gate=network)
    assert network["backend"] == "nccl"
    assert 0.85 < network["bandwidth"] * 8 / 10e9 < 1.0
