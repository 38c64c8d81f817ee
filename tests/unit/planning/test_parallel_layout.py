"""Which cuts of a model a cluster can hold, and what is said of the others: GPUs of which only the
count is known."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from clusterctl.errors import DoesNotFit, Problems, UsageError
from clusterctl.models.catalogue import by_hub_id
from clusterctl.models.config_json import describe
from clusterctl.models.name import resolve
from clusterctl.models.shape import ModelShape
from clusterctl.planning.forecast import MemoryForecast, forecast_memory, layout_env
from clusterctl.planning.placement import HostGpus
from clusterctl.planning.replicas import Sizes, seats_for
from clusterctl.planning.report import Hardware
from clusterctl.serving.arguments import UNDECIDED, Launch, Layout
from clusterctl.serving.request import ServiceRequest


def shape_of(hub_id: str) -> ModelShape:
    entry = by_hub_id(hub_id)
    assert entry is not None
    return entry.shape


QWEN = shape_of("Qwen/Qwen2.5-1.5B-Instruct")
LLAMA_70B = shape_of("deepseek-ai/DeepSeek-R1-Distill-Llama-70B")
BERT = describe(
    {
        "architectures": ["BertModel"],
        "hidden_size": 768,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "vocab_size": 30522,
    }
)
PAIR = (HostGpus("gpu1", 1), HostGpus("gpu2", 1))
EIGHTS = (HostGpus("a", 8), HostGpus("b", 8))


def plan_layout(
    shape: ModelShape | None,
    gpus: tuple[HostGpus, ...],
    *,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    data_parallel: int = 1,
) -> Layout:
    return unplanned(
        shape,
        gpus,
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
    ).layout


def unplanned(
    shape: ModelShape | None,
    gpus: tuple[HostGpus, ...],
    *,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    data_parallel: int = 1,
) -> MemoryForecast:
    request = ServiceRequest(
        "org/m",
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
    )
    launch = Launch(request, "org/m", ("m",), UNDECIDED, "10.0.0.1", shape=shape)
    hardware = Hardware((), gpus=gpus)
    found = forecast_memory(launch, resolve("org/m", "/models"), None, hardware)
    assert found.report is None
    return found


def test_tensor_parallel_over_two_hosts_is_done_as_asked() -> None:
    layout = plan_layout(QWEN, PAIR, tensor_parallel=2)

    assert (layout.tensor_parallel, layout.pipeline_parallel, layout.ranks) == (2, 1, 2)


def test_more_ranks_than_gpus_name_the_largest_size_that_works() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_layout(QWEN, PAIR, tensor_parallel=4)

    assert str(caught.value) == "--tp 4 needs 4 GPUs and there are 2 free (gpu1 1, gpu2 1)"
    assert caught.value.hint == "--tp 2 works"
    assert caught.value.exit_code == 11


def test_a_size_that_divides_no_heads_names_those_that_do() -> None:
    with pytest.raises(UsageError) as caught:
        plan_layout(QWEN, EIGHTS, tensor_parallel=8)

    assert str(caught.value) == "--tp 8 does not divide the model's 12 attention heads"
    assert caught.value.hint == "sizes that work: --tp 1, 2, 4"


def test_key_value_heads_are_checked_as_vllm_checks_them() -> None:
    with pytest.raises(UsageError, match="2 key/value heads"):
        plan_layout(QWEN, EIGHTS, tensor_parallel=3)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Problems) as caught:
        plan_layout(QWEN, PAIR, tensor_parallel=5, pipeline_parallel=40)

    assert len(caught.value.errors) == 3
    assert caught.value.exit_code == 2


def test_without_a_memory_plan_each_host_becomes_a_stage_of_all_its_gpus() -> None:
    layout = plan_layout(LLAMA_70B, EIGHTS)

    assert (layout.tensor_parallel, layout.pipeline_parallel) == (8, 2)
    assert "stages" in layout.reason


def test_an_encoder_gets_one_gpu_whatever_there_is() -> None:
    assert plan_layout(BERT, EIGHTS).ranks == 1
    assert plan_layout(BERT, EIGHTS, data_parallel=4).ranks == 4


def test_uneven_hosts_are_cut_by_the_smallest() -> None:
    layout = plan_layout(LLAMA_70B, (HostGpus("a", 8), HostGpus("b", 2)))

    assert (layout.tensor_parallel, layout.pipeline_parallel) == (2, 2)


def test_copied_key_value_heads_are_noted() -> None:
    assert "2 key/value heads" in unplanned(QWEN, EIGHTS, tensor_parallel=4).notes[0]


def test_an_unknown_shape_checks_the_gpus_alone() -> None:
    assert plan_layout(None, PAIR, tensor_parallel=2).ranks == 2
    with pytest.raises(DoesNotFit):
        plan_layout(None, PAIR, tensor_parallel=3)


def test_a_cluster_without_free_gpus_says_who_to_ask() -> None:
    with pytest.raises(DoesNotFit) as caught:
        plan_layout(QWEN, (HostGpus("gpu1", 0),))

    assert "clusterctl status" in (caught.value.hint or "")


def test_copies_for_data_parallel_need_their_own_gpus() -> None:
    assert plan_layout(QWEN, PAIR, tensor_parallel=1, data_parallel=2).ranks == 2
    with pytest.raises(DoesNotFit, match="--tp 2 --dp 2 needs 4"):
        plan_layout(QWEN, PAIR, tensor_parallel=2, data_parallel=2)
    uneven = (HostGpus("a", 3), HostGpus("b", 1))
    with pytest.raises(
        DoesNotFit, match="needs 4 GPUs, 2 of one host for each copy, and"
    ) as caught:
        plan_layout(QWEN, uneven, tensor_parallel=2, data_parallel=2)
    assert caught.value.hint == "--dp 1 works"
    eight = (HostGpus("a", 8),)
    with pytest.raises(DoesNotFit) as caught:
        plan_layout(QWEN, eight, tensor_parallel=4, data_parallel=3)
    assert caught.value.hint == "--dp 2 works"


def seated(
    gpus: tuple[int, ...], tp: int, pp: int = 1, dp: int = 1, env: Mapping[str, str] | None = None
) -> tuple[Layout, dict[str, str]]:
    """The first replica's layout on hosts with so many GPUs, and the variables that it needs."""
    hosts = tuple(HostGpus(f"gpu{number}", count) for number, count in enumerate(gpus, 1))
    hardware = Hardware((), gpus=hosts, env=env or {})
    (seats,) = seats_for(hardware, Sizes(tp, pp, dp), (), 1, None)
    layout = Layout(tp, pp, dp, seats=seats)
    return layout, layout_env(layout, hardware)


@pytest.mark.parametrize(
    ("gpus", "tp", "dp", "copies", "placement"),
    [
        ((1, 1), 1, 2, [1, 1], None),
        ((2, 2), 1, 4, [2, 2], None),
        ((4, 4), 1, 3, [3], None),
        ((1, 3), 1, 4, [3, 1], "fill"),
        ((8, 8), 4, 4, [2, 2], None),
        ((3, 2), 2, 2, [1, 1], None),
        ((0, 4), 2, 2, [2], None),
        ((2, 2, 2, 2), 4, 2, [1, 1], "span"),
    ],
)
def test_copies_are_dealt_out_as_vllm_can_start_them(
    gpus: tuple[int, ...], tp: int, dp: int, copies: list[int], placement: str | None
) -> None:
    """vLLM starts as many on every host as on the first, unless it is told to fill them."""
    layout, env = seated(gpus, tp, dp=dp)
    assert layout.copies == copies
    assert env.get("VLLM_RAY_DP_PACK_STRATEGY") == placement


def test_a_group_that_spans_hosts_does_without_symmetric_memory() -> None:
    """vLLM 0.25 on two hosts of 2 GPUs hung in it, ranks 0 and 2, while 1 and 3 went on."""
    off = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0"}
    assert seated((2, 2), 4)[1] == off
    assert seated((1, 1), 2)[1] == off
    assert seated((3, 1), 2, 2)[1] == off
    assert seated((2, 2), 2)[1] == {}
    assert seated((2, 2), 2, dp=2)[1] == {}
    assert seated((2, 2), 2, 2)[1] == {}
    assert seated((2, 2), 4, env={"VLLM_ALLREDUCE_USE_SYMM_MEM": "1"})[1] == {}
