"""What a first start teaches the next plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.models.config_json import describe
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.memory import FitPlan, plan_memory
from clusterctl.planning.options import ServeOptions, parse_options
from clusterctl.planning.overheads import Measured
from clusterctl.planning.placement import Site, seat_ranks
from clusterctl.planning.reported import Reported, compare, learn
from clusterctl.planning.rules import rules_for
from tests.fakes.catalogue import config_of

RULES = rules_for("0.19.0")
OPTIONS = parse_options(["--max-model-len", "131072", "--gpu-memory-utilization", "0.65"])
SEED_000 = Reported(13.72, 36.56, 0.69, 798_624, 11.99)


def plan(measured: Measured | None = None, options: ServeOptions = OPTIONS) -> FitPlan:
    site = Site("gpu1", parse_gpus("A100"), measured=((1, measured),) if measured else ())
    shape = describe(config_of("openai/gpt-oss-20b"))
    return plan_memory(shape, seat_ranks([site], 1, 1), options, RULES)


def test_every_printed_figure_stands_beside_its_prediction() -> None:
    found = {one.name: one for one in compare(plan(), SEED_000)}
    assert set(found) == {
        "weights_gib", "kv_cache_gib", "cuda_graphs_gib", "kv_cache_tokens", "max_concurrency",
    }  # fmt: skip
    assert not found["kv_cache_tokens"].worth_saying
    assert found["cuda_graphs_gib"].worth_saying
    assert [one.name for one in compare(plan(), Reported(weights_gib=13.72))] == ["weights_gib"]


def test_a_second_plan_knows_what_the_first_start_taught() -> None:
    learned = learn(plan(), SEED_000, RULES)
    again = plan(learned)
    assert again.ranks[0].kv_cache_gib == pytest.approx(36.56, abs=0.03)
    assert again.kv_cache_tokens == pytest.approx(798_624, rel=0.001)
    assert again.ranks[0].margin_gib < plan().ranks[0].margin_gib


def test_a_given_cache_teaches_nothing_about_the_runtime() -> None:
    given = plan(options=replace(OPTIONS, kv_cache_bytes=2**30))
    taught = learn(given, SEED_000, RULES)
    assert (taught.runtime_gib, taught.graphs_gib) == (None, 0.69)
    taught = learn(plan(), Reported(weights_gib=13.72), RULES)
    assert (taught.runtime_gib, taught.graphs_gib) == (None, None)
