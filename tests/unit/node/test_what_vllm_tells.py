"""Log lines and metrics of vLLM, as data."""

from __future__ import annotations

import pytest

from clusterctl.node.attempt import later, plain, stage_of
from clusterctl.node.endpoint import (
    EndpointError,
    EngineProgress,
    LocalApi,
    Metrics,
    parse_metrics,
)


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("INFO 11-21 10:00:00 [ray_utils.py:607] No current placement group found.", "ray"),
        ("(Worker_TP1 pid=7) INFO [x.py:5040] Starting to load model tiny...", "weights"),
        ("(Worker_TP0 pid=7) INFO [model_runner.py:281] Loading model from scratch...", "weights"),
        ("Loading safetensors checkpoint shards:  50% Completed | 1/2", "weights"),
        ("INFO 02-23 21:55:21 model_runner.py:1115] Loading model weights took 1.4 GB", "weights"),
        ("INFO [backends.py:1] torch.compile takes 12.1 s in total", "kv-cache"),
        ("INFO [kv_cache_utils.py:2328] GPU KV cache size: 74,880 tokens", "kv-cache"),
        ("Capturing CUDA graphs (decode): 12%", "graphs"),
        ("INFO init engine (profile, create kv cache, warmup model) took 3.10 s", "warm-up"),
        ("INFO: Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)", "listening"),
        ("INFO something else", None),
        # Of a start with random weights, through Ray: what stands between its placement group and
        # the end of loading.
        (
            "(EngineCore pid=9) INFO 04-18 20:23:14 [core.py:105] Initializing a V1 LLM engine "
            "(v0.19.0) with config: model='m', load_format=dummy, tensor_parallel_size=2",
            None,
        ),
        (
            "\x1b[36m(RayWorkerWrapper pid=31, ip=10.0.0.2)\x1b[0m INFO 04-18 20:23:14 "
            "[parallel_state.py:1400] world_size=2 rank=1 local_rank=0 "
            "distributed_init_method=tcp://10.0.0.1:45759 backend=nccl",
            "ranks",
        ),
        (
            "(RayWorkerWrapper pid=31) INFO 04-18 20:23:14 [parallel_state.py:1716] rank 0 in "
            "world size 2 is assigned as DP rank 0, PP rank 0, PCP rank 0, TP rank 0",
            "ranks",
        ),
        (
            "\x1b[36m(RayWorkerProc pid=31)\x1b[0m INFO 04-18 20:23:16 [cuda.py:334] Using "
            "TRITON_ATTN attention backend out of potential backends: ['TRITON_ATTN'].",
            "weights",
        ),
        (
            "(RayWorkerProc pid=31) INFO 04-17 14:03:23 [cuda.py:274] Using "
            "AttentionBackendEnum.TRITON_ATTN backend.",
            "weights",
        ),
        ("(RayWorkerWrapper pid=31) INFO [cuda.py:230] Using Flash Attention backend.", "weights"),
        ("(APIServer pid=7) INFO [cuda.py:334] Using TRITON_ATTN attention backend", None),
    ],
)
def test_stage_of_a_line(line: str, stage: str | None) -> None:
    assert stage_of(line) == stage


def test_a_stage_never_goes_back() -> None:
    assert later("kv-cache", "weights") == "kv-cache"
    assert later("", "weights") == "weights"
    assert later("weights", "graphs") == "graphs"
    assert later("ray", "ranks") == "ranks"
    assert later("weights", "ranks") == "weights"


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
    assert parse_metrics(text) == Metrics(3, 4, 0.75, 1000, (1000, 0, 0.5, 0.75))
    assert parse_metrics("") == Metrics(0, 0, 0, 0, (0, 0))


def test_the_use_of_the_kv_cache_under_the_name_of_old_releases() -> None:
    text = """
vllm:num_requests_running{model_name="m"} 1.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.125
vllm:gpu_prefix_cache_hit_rate{model_name="m"} 0.9
vllm:cpu_cache_usage_perc{model_name="m"} 0.5
vllm:generation_tokens_total{model_name="m"} 40.0
"""
    assert parse_metrics(text) == Metrics(1, 0, 0.125, 40, (40, 0, 0.125))


def counted(running: float, waiting: float, tokens: float, kv_cache_use: float = 0.0) -> Metrics:
    return Metrics(running, waiting, kv_cache_use, tokens, (tokens, kv_cache_use))


def test_an_engine_whose_tokens_move_is_at_most_one_look_silent() -> None:
    progress = EngineProgress(now=0)
    for second in range(0, 100, 5):
        progress.update(second, counted(1, 0, second))
        silence = progress.silence()
        assert silence
        assert second - silence.since <= 5
    assert progress.tokens_per_second == 1
    assert not progress.wants_canary(95, every=15)


def test_requests_and_no_tokens_are_silence_since_they_are_there() -> None:
    progress = EngineProgress(now=0)
    progress.update(30, counted(0, 0, 7))
    progress.update(35, counted(1, 2, 7))
    progress.update(40, counted(1, 2, 7))
    silence = progress.silence()
    assert silence
    assert silence.text(46) == "no token for 11 s (1 requests running, 2 waiting)"


def test_a_prompt_that_is_read_in_chunks_is_no_silence() -> None:
    progress = EngineProgress(now=0)
    for second in range(0, 300, 5):
        progress.update(second, counted(1, 0, 7, kv_cache_use=second / 1000))
        silence = progress.silence()
        assert silence
        assert second - silence.since <= 5


def test_an_idle_engine_owes_nothing_and_is_asked_for_a_sign() -> None:
    progress = EngineProgress(now=0)
    for second in range(5, 20, 5):
        progress.update(second, counted(0, 0, 7))
        assert progress.silence() is None
        assert progress.wants_canary(second, every=15) == (second == 15)

    progress.answered(16)

    assert not progress.wants_canary(20, every=15)
    assert progress.wants_canary(31, every=15)


def test_a_canary_without_an_answer_is_silence_since_the_last_sign() -> None:
    progress = EngineProgress(now=0)
    progress.update(5, counted(0, 0, 7))
    progress.unanswered("POST /v1/completions: timed out")
    progress.update(40, counted(1, 0, 7))  # the canary itself, which the engine took
    silence = progress.silence()
    assert silence
    assert silence.text(50) == "no answer for 50 s (POST /v1/completions: timed out)"

    progress.update(55, counted(0, 0, 11))

    assert progress.silence() is None


def test_metrics_that_cannot_be_read_are_silence_since_they_could() -> None:
    progress = EngineProgress(now=0)
    progress.update(100, counted(0, 0, 7))
    progress.unread("GET /metrics: timed out")
    silence = progress.silence()
    assert silence
    assert silence.text(110) == "no answer for 10 s (GET /metrics: timed out)"
    assert not progress.wants_canary(120, every=15)

    progress.update(125, counted(0, 0, 7))

    assert progress.silence() is None


def test_metrics_that_are_none_are_an_error_of_the_endpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api = LocalApi("127.0.0.1", 1, "tiny", "")
    monkeypatch.setattr(api, "request", lambda *_: b"vllm:num_requests_running many\xff")
    with pytest.raises(EndpointError, match="GET /metrics"):
        api.metrics(1.0)


def test_what_reads_like_an_error_in_every_start_is_not_shown() -> None:
    assert plain("INFO 11-21 10:00:00 [ray_utils.py:607] No current placement group found.") == ""
    assert plain("INFO 11-21 10:00:00 [x.py:5040] Starting to load model") != ""
