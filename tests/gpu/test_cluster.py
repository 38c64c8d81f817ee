"""The main job on whole hosts that share this machine's GPUs: interfaces chosen, NCCL proven,
models served over both hosts, memory and speed as estimated, faults, nothing left. The tests build
on each other, in the order of this file, which is that of their value: a machine may be taken away
before the end. With one GPU there is one host, and what needs two ranks is skipped."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.inventory.load import load
from clusterctl.lab import faults
from clusterctl.lab.models import QWEN, TINY, tokenizer_files
from clusterctl.lab.paths import LabPaths
from clusterctl.models.catalogue import by_alias
from clusterctl.planning.speed import REQUESTS
from tests.gpu.conftest import ON_CPUS, GpuLab, Table
from tests.lab.cluster import Operator, until
from tests.lab.conftest import OnHost
from tests.lab.steady_load import SteadyLoad

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900, func_only=True),
    pytest.mark.skipif(os.geteuid() != 0, reason="the lab needs root"),
]

MODEL = f"/data/models/{TINY if ON_CPUS else QWEN}"
EXPERTS = "qwen3-30b-a3b"
NAME = "served"
AT_ONCE = (1, 2) if ON_CPUS else REQUESTS
SECONDS = {1: 3.0, 64: 5.0, 256: 6.0}
RECOVERY = 240.0
KV_CACHE = 0.01
"""How far off the predicted tokens of the KV cache may be."""
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

CONTAINER = "clusterctl-lab"
# nvidia-smi makes links in /dev/char itself: it runs before each look, so that they are in both.
# Of /etc/cdi and /etc/docker, files count: the engine's package may leave its directory.
WHAT_PURGE_REMOVES = """\
nvidia-smi >/dev/null 2>&1
dpkg-query -W -f '${Package}\\n'
ls -d /etc/clusterctl /opt/clusterctl /var/lib/clusterctl /var/log/clusterctl 2>/dev/null
find /dev/char -lname '*nvidia*'
find /etc/cdi /etc/docker /etc/systemd/system /etc/udev/rules.d /etc/sysctl.d ! -type d 2>/dev/null
true
"""


@dataclass(frozen=True)
class Layout:
    """How a model is served: the words of `serve`, and those with which `fit` says the same."""

    name: str
    serve: tuple[str, ...]
    fit: tuple[str, ...]
    model: str = MODEL
    estimated: bool = True
    """Whether its measured speed has to be near what `fit` said."""
    only: str = ""
    """The one host that serves it; all if it is empty."""
    served_again: bool = False
    """Whether it is served, though not measured, where an earlier run measured it: the faults that
    follow need a service."""

    def on(self, gpus: int, hosts: int) -> Layout:
        """The layout on so many GPUs of all hosts."""
        sizes = {"all": gpus, "each": gpus // hosts}

        def sized(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word.format(**sizes) for word in words)

        name = self.name.format(**sizes)
        return replace(self, name=name, serve=sized(self.serve), fit=sized(self.fit))


# {all} stands for the number of GPUs of all hosts, {each} for those of one.
COPIES = ("--tp", "1", "--", "--data-parallel-size", "{all}")
ONE = Layout("one GPU", ("--tp", "1"), ("--tp", "1"), served_again=True)
TP = Layout("TP {all}", ("--tp", "{all}"), ("--tp", "{all}"), served_again=True)
PAIR = ("--tp", "2", "--on", "gpu1")
IN_ONE_HOST = Layout("TP 2 in one host", PAIR, PAIR, only="gpu1")
STAGES = ("--tp", "{each}", "--pp", "2")
OTHERS = (
    Layout("TP {each}, PP 2", STAGES, STAGES),
    Layout("{all} replicas", ("--tp", "1", "--replicas", "{all}"), COPIES),
    Layout("DP {all}", ("--tp", "1", "--dp", "{all}"), COPIES),
)
# The exchange of tokens between divided experts is not estimated
DIVIDED = Layout(
    "DP {all} with divided experts",
    ("--tp", "1", "--dp", "{all}", "--ep"),
    (*COPIES, "--enable-expert-parallel"),
    f"/data/models/{EXPERTS}-shape",
    estimated=False,
)
OTHER_MODELS = ("qwen3-8b", "qwen3-14b", EXPERTS)


@pytest.fixture(scope="module")
def hosts(gpus: int) -> int:
    """Two hosts share the GPUs, where there are two; each may have several."""
    return min(gpus, 2)


@pytest.fixture
def two_ranks(hosts: int) -> None:
    if hosts < 2:
        pytest.skip("two ranks need two GPUs, and this machine has one")


@pytest.fixture
def two_in_a_host(gpus: int, hosts: int) -> None:
    if ON_CPUS or gpus < 2 * hosts:
        pytest.skip("two GPUs of one host need four, as hosts share them")


@pytest.fixture(scope="module")
def inventory(gpu_lab: GpuLab, hosts: int) -> str:
    return gpu_lab.up(hosts)


@pytest.fixture(scope="module")
def as_found(inventory: str, on_host: OnHost) -> list[str]:
    """What the hosts have before the first bootstrap."""
    return _state(inventory, on_host)


def _state(inventory: str, on_host: OnHost) -> list[str]:
    """A line for each thing: what differs is shown by itself."""
    return [
        f"{host.name}: {line}"
        for host in load(Path(inventory)).hosts
        for line in on_host(host.name, WHAT_PURGE_REMOVES).stdout.splitlines()
    ]


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
            argv = [sys.executable, "-m", "tests.gpu.load", api, NAME, str(requests)]
            done = subprocess.run(
                [*argv, str(SECONDS.get(requests, 3.0)), *servers],
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


Push = Callable[[str], str]


@pytest.fixture(scope="module")
def push_shape(
    operator: Operator, inventory: str, tmp_path_factory: pytest.TempPathFactory
) -> Push:
    """Puts a model of the catalogue on the hosts, its shape without weights; returns its path."""

    def run(alias: str) -> str:
        entry = by_alias(alias)
        assert entry is not None, alias
        directory = tmp_path_factory.mktemp("models") / f"{alias}-shape"
        directory.mkdir()
        # What the catalogue leaves out, as memory does not depend on it
        shape = {
            "model_type": "qwen3", "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
            **entry.config,
        }  # fmt: skip
        if "num_experts" in shape:
            shape |= {
                "model_type": "qwen3_moe", "intermediate_size": 6144, "norm_topk_prob": True,
                "decoder_sparse_step": 1, "mlp_only_layers": [],
            }  # fmt: skip
        for name, content in {"config.json": shape, **tokenizer_files(151_646)}.items():
            (directory / name).write_text(json.dumps(content))
        (directory / "RANDOM_WEIGHTS").touch()
        operator.ok("model", "push", str(directory), "-i", inventory)
        return f"/data/models/{directory.name}"

    return run


@pytest.fixture
def serve_and_measure(
    gpus: int, hosts: int, operator: Operator, table: Table, measure: Measure
) -> Callable[[Layout], None]:
    def run(layout: Layout) -> None:
        layout = layout.on(gpus, hosts)
        known = table.has(layout.name, "tokens_per_s")
        if known and not layout.served_again:
            pytest.skip("measured on an earlier machine")
        if operator.run("status", "--json").json["services"]:
            operator.ok("stop", NAME)
        estimated = operator.run("fit", layout.model, "--json", *layout.fit).json["speed"]
        words = ("serve", layout.model, "--name", NAME, "--yes", "--json", *layout.serve)
        ran = operator.ok(*words, timeout=600)
        served = ran.json
        cache = {one["name"]: one for one in served["reported"]}.get("kv_cache_tokens")
        table.add(layout.name, serve_seconds=round(ran.seconds, 1), kv_cache=cache)
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


@pytest.mark.usefixtures("two_in_a_host")
def test_a_tensor_parallel_group_in_one_host_serves_as_estimated(
    serve_and_measure: Callable[[Layout], None],
) -> None:
    serve_and_measure(IN_ONE_HOST)


@pytest.mark.usefixtures("two_in_a_host")
def test_a_second_start_of_a_model_finds_what_the_first_compiled(
    operator: Operator, table: Table
) -> None:
    ran = operator.ok("restart", NAME, "--yes", timeout=400)
    table.add("restart, TP 2 in one host", seconds=round(ran.seconds, 1))
    assert _answers(operator)


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("turn", range(1 if ON_CPUS else 3))
def test_replicas_on_all_gpus_start_together(turn: int, operator: Operator, table: Table) -> None:
    """Several of a host at the same moment, each with ports and a compile cache of its own. Without
    compiling from the second time on, so that they reach the same step at once."""
    if operator.run("status", "--json").json["services"]:
        operator.ok("stop", NAME)
    eager = ("--", "--enforce-eager") if turn and not ON_CPUS else ()
    words = ("serve", MODEL, "--name", NAME, "--tp", "1", "--replicas", "max", "--yes", "--json")
    ran = operator.ok(*words, *eager, timeout=600)
    assert all(replica["ranks"] for replica in ran.json["replicas"]), ran.text
    table.add(f"replicas on all GPUs, start {turn + 1}", serve_seconds=round(ran.seconds, 1))
    states = operator.run("status", "--json").json["services"]
    assert [one["last_failure"] for one in states] == [""] * len(states)


@pytest.mark.usefixtures("two_ranks")
def test_a_soak_finds_nothing(operator: Operator, table: Table) -> None:
    """Of the replicas on all GPUs, for a minute."""
    ran = operator.run("soak", NAME, "--for", "60s", "--json", timeout=300)
    table.add("soak of a minute", seconds=round(ran.seconds, 1), said=ran.json)
    assert ran.status == 0, ran.text


@pytest.mark.usefixtures("two_ranks")
def test_a_killed_engine_costs_only_the_streams_that_it_had_begun(
    operator: Operator, gpus: int, hosts: int, on_host: OnHost, table: Table
) -> None:
    load = SteadyLoad(operator, on_host, model=NAME, rate=2.0 if ON_CPUS else 20.0)
    with load.during("kill -9 of an engine") as row:
        engine = "pkill -KILL -o -f VLLM::EngineCor"
        assert on_host(f"gpu{hosts}", engine).returncode == 0
        began = time.monotonic()
        until(lambda: not _answers(operator), within=90, what="status tells of the killed engine")
        until(lambda: _answers(operator), within=RECOVERY, what="all replicas are ready again")
        seconds = round(time.monotonic() - began, 1)
    table.add(f"kill -9 of one of {gpus} engines under load", ready_seconds=seconds, load=row)
    assert row["failed"] == 0, row
    assert row["whole"] > 0.9 * row["sent"], row


@pytest.mark.usefixtures("two_in_a_host")
def test_ranks_go_to_gpus_whose_memory_nobody_else_holds(
    operator: Operator, on_host: OnHost, table: Table
) -> None:
    """Somebody's process holds most of the first GPU of a host, which Ray would give away first."""
    if operator.run("status", "--json").json["services"]:
        operator.ok("stop", NAME)
    hold = f"nohup python3 -c '{HOLD}' >/dev/null 2>&1 & echo $!"
    pid = on_host("gpu1", hold).stdout.strip()
    try:
        until(lambda: _memory_used(on_host)[0] > HELD, within=60, what="the memory is held")
        words = ("serve", MODEL, "--name", NAME, "--tp", "1", "--on", "gpu1", "--yes", "--json")
        ran = operator.ok(*words, timeout=400)
        first, second = _memory_used(on_host)
    finally:
        on_host("gpu1", f"kill -9 {pid}")
    table.add("serve beside a GPU that is held", serve_seconds=round(ran.seconds, 1),
              used_mib=[first, second])  # fmt: skip
    assert first < HELD + 8192
    assert second > 40960
    operator.ok("stop", NAME)


def _memory_used(on_host: OnHost) -> tuple[int, ...]:
    """Return the MiB in use on each GPU of gpu1."""
    query = "nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"
    return tuple(map(int, on_host("gpu1", query).stdout.split()))


@pytest.mark.usefixtures("two_ranks")
def test_a_tensor_parallel_group_over_both_hosts_serves_as_estimated(
    serve_and_measure: Callable[[Layout], None],
) -> None:
    serve_and_measure(TP)


@pytest.mark.parametrize("fault", ["power", "docker"])
def test_a_service_comes_back_by_itself_when_its_hosts_do(
    fault: str, inventory: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    """All hosts at once lose power, or restart Docker, which cannot give the node containers their
    CDI devices when it starts them again before release 28.2."""
    names = [host.name for host in load(Path(inventory)).hosts]
    assert _answers(operator)
    if fault == "power":
        for name in names:
            faults.power_off(name)
    began = time.monotonic()
    for name in names:
        if fault == "power":
            faults.power_on(name)
        else:
            assert on_host(name, "systemctl restart docker").returncode == 0
    until(lambda: _answers(operator), within=RECOVERY, what="the service is ready again")
    table.add(f"all hosts: {fault}", ready_seconds=round(time.monotonic() - began, 1))
    assert operator.ok("bootstrap", inventory, "--yes", "--json").json["changed"] == 0


def test_gpus_stay_with_containers_when_systemd_reads_its_units_again(
    operator: Operator, inventory: str, on_host: OnHost
) -> None:
    for host in load(Path(inventory)).hosts:
        assert on_host(host.name, "systemctl daemon-reload").returncode == 0
        if not ON_CPUS:
            seen = on_host(host.name, f"docker exec {CONTAINER} nvidia-smi -L")
            assert seen.stdout.count("UUID") == len(host.gpus), seen.stdout + seen.stderr
    assert _answers(operator)


def test_a_killed_rank_is_replaced(
    operator: Operator, hosts: int, on_host: OnHost, table: Table
) -> None:
    began = time.monotonic()
    assert on_host(f"gpu{hosts}", "pkill -KILL -f 'RayWorkerProc|VLLM::EngineCore'").returncode == 0
    until(lambda: not _answers(operator), within=90, what="status tells of the killed rank")
    noticed = time.monotonic() - began
    until(lambda: _answers(operator), within=RECOVERY, what="the service is ready again")
    table.add(
        "kill -9 of a rank",
        noticed_seconds=round(noticed, 1),
        ready_seconds=round(time.monotonic() - began, 1),
    )


def _answers(operator: Operator) -> bool:
    """Whether all services are ready, as status says of those that answer."""
    services = operator.run("status", "--json").json["services"]
    return bool(services) and all(one["state"] == "ready" for one in services)


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


@pytest.mark.usefixtures("two_ranks")
@pytest.mark.parametrize("layout", OTHERS, ids=[layout.name for layout in OTHERS])
def test_another_layout_serves_as_estimated(
    layout: Layout, serve_and_measure: Callable[[Layout], None]
) -> None:
    serve_and_measure(layout)


@pytest.mark.usefixtures("two_ranks")
def test_replicas_that_divide_experts_serve_as_estimated(
    push_shape: Push, serve_and_measure: Callable[[Layout], None]
) -> None:
    if ON_CPUS:
        pytest.skip("30 billion weights need GPUs")
    push_shape(EXPERTS)
    serve_and_measure(DIVIDED)


@pytest.mark.usefixtures("two_ranks")
def test_the_gate_measures_the_links_own_rate(
    gpu_lab: GpuLab, operator: Operator, inventory: str, table: Table
) -> None:
    if ON_CPUS:
        pytest.skip("Gloo's figure on slow cores is tests/lab/test_fabric.py's")
    if operator.run("status", "--json").json["services"]:
        operator.ok("stop", NAME)  # Nothing else on the link
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


def test_down_leaves_the_hosts_as_found(
    as_found: list[str], inventory: str, operator: Operator, on_host: OnHost, table: Table
) -> None:
    ran = operator.ok("down", "--purge", "--yes", "-i", inventory)
    table.add("down --purge", seconds=round(ran.seconds, 1))
    left = _state(inventory, on_host)
    assert (set(left) - set(as_found), set(as_found) - set(left)) == (set(), set())
