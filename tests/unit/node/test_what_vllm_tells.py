"""Log lines and metrics of vLLM, as data."""

from __future__ import annotations

import pytest

from clusterctl.node.endpoint import Metrics, parse_metrics
from clusterctl.node.progress import Progress
from clusterctl.node.stages import later, plain, stage_of


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("INFO 11-21 10:00:00 [ray_utils.py:607] No current placement group found.", "ray"),
        ("(Worker_TP1 pid=7) INFO [x.py:5040] Starting to load model tiny...", "weights"),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2", "weights"),
        ("INFO 02-23 21:55:21 model_runner.py:1115] Loading model weights took 1.4 GB", "weights"),
        ("INFO [backends.py:1] torch.compile takes 12.1 s in total", "kv-cache"),
        ("INFO [kv_cache_utils.py:2328] GPU KV cache size: 74,880 tokens", "kv-cache"),
        ("Capturing CUDA graphs (decode): 12%", "graphs"),
        ("INFO init engine (profile, create kv cache, warmup model) took 3.10 s", "warm-up"),
        ("INFO: Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", "listening"),
        ("INFO something else", None),
    ],
)
def test_stage_of_a_line(line: str, stage: str | None) -> None:
    assert stage_of(line) == stage


def test_a_stage_never_goes_back() -> None:
    assert later("kv-cache", "weights") == "kv-cache"
    assert later("", "weights") == "weights"
    assert later("weights", "graphs") == "graphs"


def test_a_plain_line_has_neither_process_nor_time() -> None:
    line = "(EngineCore pid=12) INFO 11-21 12:00:00 [core.py:403] init engine took 3.1 s"
    assert plain(line) == "init engine took 3.1 s"


def test_metrics_of_two_engines_are_summed() -> None:
    text = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 4.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:generation_tokens_total{engine="0"} 1e+03
"""
    assert parse_metrics(text) == Metrics(3, 4, 0.75, 1000)
    assert parse_metrics("") == Metrics(0, 0, 0, 0)


def test_the_use_of_the_kv_cache_under_the_name_of_old_releases() -> None:
    text = """
vllm:num_requests_running{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.9
vllm:cpu_cache_usage_perc{model_name="m"} 0.5
vllm:generation_tokens_total{model_name="m"} 40.0
"""
    assert parse_metrics(text) == Metrics(1, 0, 0.125, 40)


def test_tokens_that_move_are_no_stall() -> None:
    progress = Progress(stall=10)
    for second in range(0, 100, 5):
        progress.update(second, Metrics(1, 0, 0, second))
        assert progress.stalled(second) == ""
    assert progress.tokens_per_second == 1
    assert not progress.idle


def test_requests_and_no_tokens_are_a_stall() -> None:
    progress = Progress(stall=10)
    progress.update(0, Metrics(1, 2, 0, 7))
    progress.update(5, Metrics(1, 2, 0, 7))
    assert progress.stalled(9) == ""
    assert progress.stalled(11) == "1 requests running, 2 waiting, and no token for 11 s"


def test_idle_for_long_is_no_stall() -> None:
    progress = Progress(stall=10)
    progress.update(0, Metrics(0, 0, 0, 7))
    progress.update(100, Metrics(0, 0, 0, 7))
    progress.update(101, Metrics(1, 0, 0, 7))
    assert progress.stalled(105) == ""


def test_a_counter_that_went_back_is_a_new_engine() -> None:
    progress = Progress(stall=10)
    progress.update(0, Metrics(1, 0, 0, 700))
    progress.update(20, Metrics(1, 0, 0, 3))
    assert progress.stalled(20) == ""
    assert progress.tokens_per_second == 0
