"""Which layouts are proposed on which GPUs, in which order, and how layers are split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.errors import DoesNotFit, UsageError
from clusterctl.models.config_json import describe
from clusterctl.models.shape import ModelShape
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.memory import best_split, plan_memory
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import Site, seat_ranks, split_layers
from clusterctl.planning.planner import propose
from clusterctl.planning.report import Hardware, PlanRequest, Proposal
from clusterctl.planning.rules import rules_for
from clusterctl.planning.speed import LinkSpeed
from clusterctl.serving.vllm_flags import parse_arguments
from tests.fakes.catalogue import config_of

NEWEST = rules_for("0.33.0")
SMALL_FLAGS = parse_arguments(
    ["--max-model-len", "8192", "--max-num-seqs", "256", "--max-num-batched-tokens", "2048"]
)
SMALL_STEPS = parse_options(SMALL_FLAGS)


def shape_of(hub_id: str) -> ModelShape:
    figures = config_of(hub_id)
    assert figures is not None
    return describe(figures, hub_id)


R1_32B = shape_of("deepseek-ai/deepseek-r1-distill-qwen-32b")
QWEN_1_5B = shape_of("qwen/qwen2.5-1.5b-instruct")


def unlike(first: str, second: str) -> tuple[Site, Site]:
    return Site("gpu1", parse_gpus(first)), Site("gpu2", parse_gpus(second))


def proposed(
    shape: ModelShape, sites: Sequence[Site], network: LinkSpeed | None = None
) -> tuple[Proposal, ...]:
    hardware = Hardware(tuple(sites), network, vllm="0.33.0")
    return propose(PlanRequest(shape, hardware, arguments=SMALL_FLAGS))


def test_tensor_parallel_on_unlike_gpus_is_decided_by_the_smaller() -> None:
    placement = seat_ranks(unlike("RTX 3090", "H800"), tp=2, pp=1)
    plan = plan_memory(QWEN_1_5B, placement, SMALL_STEPS, NEWEST)
    assert (plan.limited_by.host, plan.limited_by.gpu) == ("gpu1", "RTX 3090")
    assert plan.limited_by.unused_gib > 40
    assert plan.placement.groups_cross_hosts


@pytest.mark.parametrize(
    ("gpus", "layers", "tokens"),
    [(("RTX 3090", "H800"), (13, 51), 117_280), (("H800", "RTX 3090"), (51, 13), 114_944)],
)
def test_layers_are_split_by_what_unlike_gpus_hold(
    gpus: tuple[str, str], layers: tuple[int, int], tokens: int
) -> None:
    """61 GiB of weights on 24 + 80 GB: halves do not fit, 13 and 51 layers do.

    The tokens are what the rules give: 120,192 by those of before the second model runner, less
    the tuning of a first compile, which the stage with the embedding table pays for.
    """
    placement = seat_ranks(unlike(*gpus), tp=1, pp=2)
    assert plan_memory(R1_32B, placement, SMALL_STEPS, NEWEST).verdict == "does not fit"
    plan = best_split(R1_32B, placement, SMALL_STEPS, NEWEST)
    assert plan.partition == layers
    assert plan.verdict == "fits"
    assert plan.kv_cache_tokens == pytest.approx(tokens, rel=0.001)


def test_no_other_split_holds_more() -> None:
    placement = seat_ranks(unlike("RTX 3090", "H800"), tp=1, pp=2)
    found = best_split(R1_32B, placement, SMALL_STEPS, NEWEST).kv_cache_tokens
    for first in range(1, 64):
        other = replace(placement, partition=(first, 64 - first))
        assert plan_memory(R1_32B, other, SMALL_STEPS, NEWEST).kv_cache_tokens <= found


def test_like_gpus_keep_the_split_of_vllm() -> None:
    placement = seat_ranks(unlike("H100", "H100"), tp=1, pp=2)
    plan = best_split(R1_32B, placement, SMALL_STEPS, NEWEST)
    assert plan.placement.partition == ()
    assert plan.partition == (32, 32)


def test_replicas_beat_stages_when_one_gpu_holds_the_model() -> None:
    best = proposed(QWEN_1_5B, unlike("H200", "H200"))[0]
    placement = best.plan.placement
    assert (placement.tp, placement.pp, placement.replicas) == (1, 1, 2)
    assert "replicas" in best.reason


def test_groups_stay_inside_hosts_over_an_ordinary_network() -> None:
    sites = unlike("2xH100", "2xH100")
    for proposal in proposed(R1_32B, sites):
        assert not proposal.plan.placement.groups_cross_hosts
    fast = LinkSpeed(50e9, 5e-6)
    found = proposed(R1_32B, sites, fast)
    assert any(proposal.plan.placement.groups_cross_hosts for proposal in found)


def test_the_one_gpu_that_holds_the_model_is_found_wherever_it_is() -> None:
    best = proposed(R1_32B, unlike("RTX 3090", "H800"))[0]
    assert (best.plan.placement.tp, best.plan.placement.pp) == (1, 1)
    assert best.plan.placement.hosts == ("gpu2",)


def test_nothing_is_proposed_where_nothing_fits() -> None:
    assert proposed(R1_32B, [Site("a", parse_gpus("T4"))]) == ()


def test_too_few_gpus_is_named() -> None:
    with pytest.raises(DoesNotFit, match="needs 4 GPUs, and there are 2"):
        seat_ranks(unlike("H100", "H100"), tp=4, pp=1)


def test_ranks_sit_stage_by_stage() -> None:
    placement = seat_ranks(unlike("2xH100", "2xH100"), tp=2, pp=2)
    assert [(seat.host, seat.stage, seat.place) for seat in placement.seats] == [
        ("gpu1", 0, 0), ("gpu1", 0, 1), ("gpu2", 1, 0), ("gpu2", 1, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "pp", "split"),
    [(28, 2, (14, 14)), (64, 3, (21, 22, 21)), (30, 4, (7, 8, 8, 7)), (61, 2, (31, 30))],
)
def test_the_split_of_vllm(layers: int, pp: int, split: tuple[int, ...]) -> None:
    assert split_layers(layers, pp) == split


@pytest.mark.parametrize("partition", [(10, 10), (64,), (20, 20, 24)])
def test_a_partition_that_does_not_add_up(partition: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match="does not split"):
        split_layers(64, 2, partition)


def test_more_stages_than_layers() -> None:
    with pytest.raises(UsageError):
        split_layers(4, 5)


@given(st.integers(1, 128), st.integers(1, 16))
def test_every_split_has_all_layers_and_no_empty_stage(layers: int, pp: int) -> None:
    if pp > layers:
        return
    split = split_layers(layers, pp)
    assert sum(split) == layers
    assert max(split) - min(split) <= 1
    assert min(split) >= 1
