"""Starts of vLLM 0.25.1 on one and two H200 with random weights, against the prediction.

`h200_rows.json` has what vLLM printed, the models' config.json as far as memory goes, and the
settings. What was predicted before the starts, and what was then found in vLLM's source:
docs/fit.md. No constant was fitted to these rows.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import chain, repeat
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from clusterctl.models.config_json import describe
from clusterctl.planning.hardware import find_gpu, parse_gpus
from clusterctl.planning.memory import FitPlan, plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.overheads import Fabric
from clusterctl.planning.placement import Site, seat_ranks
from clusterctl.planning.reported import Reported, learn, read_reported
from clusterctl.planning.rules import rules_for
from clusterctl.planning.weights import allocated_bytes
from clusterctl.units import GIB

RULES = rules_for("0.25.1")
WITHOUT_NVLS = {"NCCL_NVLS_ENABLE": "0"}  # On all these machines
MEASURED: dict[str, Any] = json.loads(Path(__file__).with_name("h200_rows.json").read_text())
COMPILED_BEFORE = "qwen3-8b few requests, compiled before"


@dataclass(frozen=True)
class Row:
    """One start."""

    name: str
    model: str
    arguments: str
    tp: int
    pp: int
    link: Fabric
    log: str
    env: dict[str, str]

    def plan(self, *extra: str) -> FitPlan:
        """The prediction, with more arguments than the start's."""
        site = Site("h", parse_gpus("2xH200"), self.link)
        shape = describe(MEASURED["models"][self.model], self.model)
        options = parse_options([*self.arguments.split(), *extra], self.env)
        return plan_memory(shape, seat_ranks([site], self.tp, self.pp), options, RULES)

    @property
    def reported(self) -> Reported:
        """What the log says, as clusterctl reads it."""
        return read_reported(self.log)

    def printed(self, what: str) -> float:
        """GiB of the first rank in the profiler's line."""
        found = re.search(rf"{what}: ([\d.]+)GiB", self.log)
        assert found
        return float(found[1])


def _row(entry: dict[str, Any]) -> Row:
    return Row(
        name=entry["name"],
        model=entry["model"],
        arguments=entry["arguments"],
        tp=entry["tp"],
        pp=entry["pp"],
        link=entry["link"],
        log="\n".join(entry["log"]),
        env={**WITHOUT_NVLS, **dict(pair.split("=") for pair in entry.get("env", "").split())},
    )


ROWS = tuple(map(_row, MEASURED["rows"]))
COLD = tuple(row for row in ROWS if row.name != COMPILED_BEFORE)
ALONE = tuple(row for row in COLD if row.tp == 1)
JOINED = tuple(row for row in COLD if row.tp > 1)


def _id(row: Row) -> str:
    return row.name


def named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def off(row: Row) -> float:
    """By what share the predicted tokens differ."""
    assert row.reported.kv_cache_tokens
    return row.plan().kv_cache_tokens / row.reported.kv_cache_tokens - 1


def test_the_catalogue_has_the_memory_that_pytorch_reports() -> None:
    gpu = find_gpu("NVIDIA H200")
    assert gpu
    assert gpu.memory_gib == pytest.approx(MEASURED["total_memory_bytes"] / GIB, abs=0.005)


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_tokens_and_concurrency_follow_from_the_printed_pool(row: Row) -> None:
    said = row.reported
    assert said.kv_cache_gib
    plan = row.plan("--kv-cache-memory-bytes", str(int(said.kv_cache_gib * GIB)))
    assert plan.kv_cache_tokens == pytest.approx(said.kv_cache_tokens, rel=0.0005)
    assert plan.max_concurrency == pytest.approx(said.max_concurrency, rel=0.001)


@pytest.mark.parametrize("row", ROWS, ids=_id)
def test_weights(row: Row) -> None:
    """0.05 GiB more are loaded with an fp8 cache, of which 32 MiB are no weights."""
    bar = 0.0035 if "fp8" in row.arguments else 0.003
    printed = row.reported.weights_gib
    assert printed
    assert row.plan().ranks[0].weights_gib == pytest.approx(printed, rel=bar + 0.005 / printed)


@pytest.mark.parametrize("row", COLD, ids=_id)
def test_activation_peak(row: Row) -> None:
    """0.05 GiB of PyTorch's own are counted with the runtime here."""
    peak = row.printed("torch peak memory increase")
    assert -0.07 < row.plan().ranks[0].activation_gib - peak < 0.01


@pytest.mark.parametrize("row", ALONE, ids=_id)
def test_tokens_without_tensor_parallelism(row: Row) -> None:
    assert -0.006 < off(row) < 0.0005


@pytest.mark.parametrize("row", JOINED, ids=_id)
def test_tokens_with_tensor_parallelism(row: Row) -> None:
    """The memory of NCCL and of graphs is a constant: too much is counted, never too little."""
    assert -0.012 < off(row) < 0


@pytest.mark.parametrize(
    ("tp", "pp", "hosts", "tokens"),
    [(1, 1, 1, 2_573_216), (2, 1, 1, 5_233_600), (2, 2, 2, 10_562_496), (4, 1, 2, 5_320_848)],
)
def test_tokens_on_h100(tp: int, pp: int, hosts: int, tokens: int) -> None:
    """What vLLM 0.25.1 printed on four H100 as two hosts of two, 2026-11-26."""
    shape = describe(MEASURED["models"]["qwen2.5-1.5b"])
    sites = [Site(name, parse_gpus("2xH100"), "nvlink") for name in "ab"[:hosts]]
    flags = "--max-model-len 32768 --max-num-seqs 1024 --max-num-batched-tokens 8192"
    options = parse_options(flags.split(), WITHOUT_NVLS)
    plan = plan_memory(shape, seat_ranks(sites, tp, pp), options, RULES)
    assert -0.004 < plan.kv_cache_tokens / tokens - 1 < 0.0001


def test_multicast_takes_more_memory() -> None:
    """As measured on H100s by others, with vLLM 0.19: test_predictions_against_h100_starts.py."""
    row = named("qwen3-8b tp 2")
    with_nvls = replace(row, env={"NCCL_NVLS_ENABLE": "1"})
    assert with_nvls.plan().ranks[0].runtime_gib == 2.12
    assert row.plan().ranks[0].runtime_gib == 0.60


@pytest.mark.parametrize(
    ("gpus", "hosts", "requests", "tokens"),
    [
        ("2xH200", 1, 256, 1_039_536),
        ("H200", 2, 1024, 1_015_792),
        ("2xH200", 2, 1024, 1_152_352),
        ("2xH100", 2, 1024, 543_168),
    ],
)
def test_replicas_that_divide_experts_pay_for_their_exchange(
    gpus: str, hosts: int, requests: int, tokens: int
) -> None:
    """A replica on each GPU, of Qwen3-30B-A3B's shape: docs/fit.md. Never more than there is."""
    shape = describe(MEASURED["models"]["qwen3-30b-a3b"])
    sites = [Site(str(host), parse_gpus(gpus), "nvlink") for host in range(hosts)]
    ranks = sum(len(site.gpus) for site in sites)
    flags = f"--max-num-seqs {requests} --max-num-batched-tokens 8192"
    divided = f"{flags} --data-parallel-size {ranks} --enable-expert-parallel"
    placement = replace(seat_ranks(sites, 1, 1), replicas=ranks)
    plan = plan_memory(shape, placement, parse_options(divided.split()), RULES)
    assert -0.004 < plan.kv_cache_tokens / tokens - 1 < 0
    alone = plan_memory(shape, placement, parse_options(flags.split()), RULES)
    assert alone.ranks[0].runtime_gib < plan.ranks[0].runtime_gib
    assert alone.ranks[0].cuda_graphs_gib < plan.ranks[0].cuda_graphs_gib
    assert alone.ranks[0].activation_gib < plan.ranks[0].activation_gib


def test_the_mean_error_of_tokens() -> None:
    assert fmean(abs(off(row)) for row in ALONE) < 0.002
    assert fmean(abs(off(row)) for row in JOINED) < 0.003


def test_a_compiled_model_has_more_room_and_teaches_nothing_of_the_runtime() -> None:
    first, again = named("qwen3-8b few requests"), named(COMPILED_BEFORE)
    assert off(again) == pytest.approx(-0.009, abs=0.001)
    learned = learn(first.plan(), first.reported, RULES).runtime_gib
    assert learned
    assert learned == pytest.approx(0.22, abs=0.02)
    assert learn(again.plan(), again.reported, RULES).runtime_gib is None


ASKED: dict[str, Any] = json.loads(Path(__file__).with_name("asked_h200.json").read_text())


@pytest.mark.parametrize("name", ASKED)
def test_the_images_vllm_counts_what_is_predicted(name: str) -> None:
    """vLLM 0.25.1 asked on an H200 on the meta device, with no start."""
    plan, said = next(row for row in ROWS if row.name == name).plan(), ASKED[name]
    for rank, runs in zip(plan.ranks, said["stages"] * len(plan.ranks), strict=False):
        sizes = chain.from_iterable(repeat(size, count) for size, count in runs)
        weights = allocated_bytes(sizes, unsplit=True) / GIB
        assert rank.weights_gib == pytest.approx(weights, rel=0.01)
    blocks = min(rank.blocks for rank in plan.ranks)
    requests = said["concurrency"] / said["blocks"]
    assert requests == pytest.approx(plan.max_concurrency / blocks, rel=0.0005)
    assert said["memory"] / GIB == pytest.approx(plan.ranks[0].memory_gib, abs=0.01)
