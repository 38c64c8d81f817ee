"""The model of speed against measured rows: the order must hold, the size roughly.

Measured with vLLM 0.25.1 on two H200, Qwen2.5-1.5B's shape, 256 tokens in and 128 out, CUDA
graphs on: tokens/s with 1 and with 64 requests. The link between the hosts carried 4 GB/s.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from clusterctl.models.config_json import describe
from clusterctl.models.shape import Quantization
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.options import parse_options
from clusterctl.planning.placement import Placement, Site, seat_ranks
from clusterctl.planning.speed import (
    OUTPUT,
    PROMPT,
    REQUESTS,
    LinkSpeed,
    Load,
    Speed,
    SpeedModel,
    speed_of,
)
from tests.fakes.catalogue import config_of

ROWS = Path(__file__).with_name("h200_speeds.json")
ONE_GPU_ROWS = Path(__file__).with_name("h200_one_gpu.json")
MODELS = {
    "1.5B": "qwen/qwen2.5-1.5b-instruct",
    "32B": "deepseek-ai/deepseek-r1-distill-qwen-32b",
    "70B": "deepseek-ai/deepseek-r1-distill-llama-70b",
    "8B": "qwen/qwen3-8b",
    "14B": "qwen/qwen3-14b",
    "30B-A3B": "qwen/qwen3-30b-a3b",
}
SHAPE = describe(config_of("qwen/qwen2.5-1.5b-instruct"))
LINK = LinkSpeed(4e9, 41e-6)
ONE_HOST = [Site("a", parse_gpus("2xH200"), "nvlink")]
TWO_HOSTS = [Site("a", parse_gpus("H200")), Site("b", parse_gpus("H200"))]

MEASURED: dict[str, tuple[Placement, float, float]] = {
    "one H200": (seat_ranks(ONE_HOST, 1, 1), 471, 20083),
    "TP 2 over NVLink": (seat_ranks(ONE_HOST, 2, 1), 480, 20083),
    "PP 2 over 4 GB/s": (seat_ranks(TWO_HOSTS, 1, 2), 353, 10221),
    "TP 2 over 4 GB/s": (seat_ranks(TWO_HOSTS, 2, 1), 231, 3021),
}


def speed(name: str) -> Speed:
    return speed_of(SHAPE, MEASURED[name][0])


@pytest.mark.parametrize("name", MEASURED)
def test_within_a_factor_of_two(name: str) -> None:
    _, alone, loaded = MEASURED[name]
    assert alone / 2 < speed(name).alone < alone * 2
    assert loaded / 2 < speed(name).loaded < loaded * 2


def test_every_row_that_was_used_to_fit_the_constants() -> None:
    """All runs on H200 with vLLM 0.25.1 that are kept, but the held-out ones and those beside an
    image that was unpacked with few requests: it cost the small model up to half."""
    used = [row for row in _rows(held_out=False) if _undisturbed(row)]
    found = {requests: _errors(used, requests) for requests in REQUESTS}
    assert {requests: len(errors) for requests, errors in found.items()} == {1: 22, 64: 23, 256: 12}
    assert mean(found[1]) < 0.065
    assert mean(found[64]) < 0.105
    assert mean(found[256]) < 0.09
    assert max(max(errors) for errors in found.values()) < 0.29


def test_the_times_per_token_of_rows_that_were_used() -> None:
    first, token = [], []
    for row in _rows(held_out=False):
        if _undisturbed(row) and row["requests"] in REQUESTS and "token_ms" in row:
            load = _load(row)
            first.append(abs(load.first_token / row["first_token_ms"] * 1e3 - 1))
            token.append(abs(load.token / row["token_ms"] * 1e3 - 1))
    assert mean(token) < 0.07
    assert mean(first) < 0.20


def test_machines_that_were_held_out() -> None:
    """Four replicas on hosts of 1 and 3 GPUs, and TP 2 over sockets, with more of them, and over
    NVLink on two more machines, all measured after the constants were chosen or not used. The
    replicas' machine took 1.27 times as long as another one with one request, too."""
    held = _rows(held_out=True)
    tensor_parallel = [row for row in held if row["dp"] == 1]
    errors = [max(_errors(tensor_parallel, requests)) for requests in REQUESTS]
    assert errors == pytest.approx([0.31, 0.18, 0.11], abs=0.01)
    tokens = [abs(_load(row).token / row["token_ms"] * 1e3 - 1) for row in tensor_parallel]
    assert mean(tokens) < 0.10
    replicas = [row for row in held if row["dp"] == 4]
    assert max(_errors(replicas, 1) + _errors(replicas, 64) + _errors(replicas, 256)) < 0.43


SEVENTH, EIGHTH = "seventh machine", "eighth machine"
# By how much estimates of tokens/s are off with 1, 64 and 256 requests
ONE_GPU: dict[tuple[str, str], list[float]] = {
    (SEVENTH, "1.5B"): [-0.09, -0.065, -0.13],
    (EIGHTH, "1.5B"): [0.015, 0.09, 0.16],
    (SEVENTH, "8B"): [-0.04, -0.045, -0.03],
    (EIGHTH, "8B"): [-0.05, -0.06, -0.06],
    (SEVENTH, "14B"): [-0.01, 0.0, 0.005],
    (EIGHTH, "14B"): [-0.02, -0.005, -0.025],
    # vLLM compiled a kernel of the experts during the second row, perhaps during the third, too
    (SEVENTH, "30B-A3B"): [0.005, 1.02, 0.15],
    (EIGHTH, "30B-A3B"): [0.005, -0.05],
}


@pytest.mark.parametrize(("run", "model"), ONE_GPU)
def test_models_on_one_gpu_that_were_held_out(run: str, model: str) -> None:
    """Measured by tests/gpu after the constants were chosen, which no row of these was used for.
    With 256 requests a quarter of the prompts was in the prefix cache, from the load before."""
    rows = _one_gpu(run, model)
    found = [_load(row).tokens_per_s / row["tokens_per_s"] - 1 for row in rows]
    assert found == pytest.approx(ONE_GPU[run, model], abs=0.01)
    compiled = (SEVENTH, "30B-A3B")
    for row in rows if (run, model) != compiled else rows[:1]:
        load = _load(row)
        assert load.token == pytest.approx(row["token_ms"] / 1e3, rel=0.15)
        # The second machine's 1.5B had its first token a quarter later than the first one's
        bar = 0.27 if (run, model) == (EIGHTH, "1.5B") else 0.20
        assert load.first_token == pytest.approx(row["first_token_ms"] / 1e3, rel=bar)


@pytest.mark.parametrize(
    ("run", "model", "off"),
    [
        ("ninth machine", "1.5B", [0.02, 0.22, 0.065]),
        ("tenth machine", "1.5B", [0.21, 0.10, 0.14]),
        ("ninth machine", "8B", [-0.035, -0.025, -0.04]),
        ("tenth machine", "8B", [-0.035, 0.055, -0.04]),
        ("tenth machine, once more", "1.5B", [0.22, 0.23]),
        ("tenth machine, once more", "8B", [-0.02, -0.025]),
        ("eleventh machine", "1.5B", [-0.02, 0.005, 0.065]),
        ("eleventh machine", "8B", [-0.055, -0.02, 0.04]),
        ("eleventh machine", "14B", [-0.03, -0.005, 0.015]),
        # With 64 the first tokens took 0.8 s, four times as long as on the ninth machine
        ("eleventh machine", "30B-A3B", [0.0, 0.17, -0.03]),
        ("ninth machine", "14B", [-0.01, 0.0, -0.005]),
        ("ninth machine", "30B-A3B", [0.0, -0.055, -0.025]),
    ],
)
def test_machines_that_were_measured_later(run: str, model: str, off: list[float]) -> None:
    """Measured after the formula was written."""
    rows = _one_gpu(run, model)
    found = [_load(row).tokens_per_s / row["tokens_per_s"] - 1 for row in rows]
    assert found == pytest.approx(off, abs=0.01)
    for row in rows:
        assert _load(row).token == pytest.approx(row["token_ms"] / 1e3, rel=0.17)


def test_the_mean_error_of_dense_models_on_one_gpu() -> None:
    rows = [row for run, model in ONE_GPU if model != "30B-A3B" for row in _one_gpu(run, model)]
    assert len(rows) == 18
    assert mean(abs(_load(row).tokens_per_s / row["tokens_per_s"] - 1) for row in rows) < 0.055
    assert mean(abs(_load(row).token / row["token_ms"] * 1e3 - 1) for row in rows) < 0.05
    first = [abs(_load(row).first_token / row["first_token_ms"] * 1e3 - 1) for row in rows]
    assert mean(first) < 0.12


def test_later_prompts_wait_less_than_those_of_the_first_round() -> None:
    """Those that came together end together: their next prompts fill one pass at a time."""
    once = SpeedModel(SHAPE, seat_ranks(ONE_HOST, 1, 1), None, LinkSpeed(4e9, 41e-6), rounds=1)
    first, later = (replace(once, rounds=rounds).load(256) for rounds in (1, 100))
    assert later.first_token < 0.75 * first.first_token
    assert later.tokens_per_s == first.tokens_per_s
    assert later.token > first.token


def test_a_step_reads_the_cache_of_prompts_and_answers_as_long_as_they_are() -> None:
    """Long answers of the 8B on an H200: 147,456 bytes a token, 0.85 of 4.8 TB/s."""
    model = SpeedModel(describe(config_of(MODELS["8B"])), seat_ranks(ONE_HOST, 1, 1), None, LINK)
    tokens = {
        cached: replace(model, prompt=4096 - cached, cached=cached).load(64) for cached in (0, 4000)
    }
    short = model.load(64)
    read = 64 * (4096 - PROMPT) * 147_456 / (4.8e12 * 0.85)
    # The prompts of others are prefilled between two tokens.
    assert tokens[4000].token - short.token == pytest.approx(read, rel=0.15)
    assert tokens[0].first_token > 5 * tokens[4000].first_token
    less = replace(model, prompt=4096, options=parse_options(["--kv-cache-dtype", "fp8"])).load(64)
    assert less.tokens_per_s > 1.05 * tokens[0].tokens_per_s


def test_a_prompt_that_is_all_in_the_cache_takes_one_pass() -> None:
    model = SpeedModel(SHAPE, seat_ranks(ONE_HOST, 1, 1), None, LINK, prompt=0, cached=PROMPT)
    assert 0 < model.load(64).first_token < speed("one H200").loads[1].first_token


def test_quantized_weights_are_read_faster_and_not_computed_with_faster() -> None:
    shape = describe(config_of(MODELS["14B"]))
    stored = {"bf16": None, "awq": Quantization("awq", 4), "fp8": Quantization("fp8", 8)}
    models = {
        (method, gpu): SpeedModel(
            shape, seat_ranks([Site("a", parse_gpus(gpu))], 1, 1), weights, LINK
        )
        for method, weights in stored.items()
        for gpu in ("H200", "A100")
    }
    first = {each: model.load(256).first_token for each, model in models.items()}
    assert first["awq", "H200"] == pytest.approx(first["bf16", "H200"], rel=0.01)
    assert first["awq", "A100"] == pytest.approx(first["bf16", "A100"], rel=0.01)
    assert first["fp8", "A100"] == pytest.approx(first["bf16", "A100"], rel=0.01)
    assert first["fp8", "H200"] < 0.65 * first["bf16", "H200"]
    alone = {each: model.load(1).token for each, model in models.items()}
    assert alone["awq", "H200"] < 0.5 * alone["bf16", "H200"]


def test_passes_of_fewer_tokens_take_longer_together() -> None:
    experts = describe(config_of(MODELS["30B-A3B"]))
    placement = seat_ranks(ONE_HOST, 1, 1)
    many, few = (speed_of(experts, placement, batched=size).loads[2] for size in (8192, 512))
    assert few.tokens_per_s < 0.9 * many.tokens_per_s


def _one_gpu(run: str, model: str) -> list[dict[str, Any]]:
    rows = json.loads(ONE_GPU_ROWS.read_text("utf-8"))
    return [row for row in rows if (row["run"], row["model"]) == (run, model)]


def _errors(rows: list[dict[str, Any]], requests: int) -> list[float]:
    few = [row for row in rows if row["requests"] == requests]
    return [abs(_load(row).tokens_per_s / row["tokens_per_s"] - 1) for row in few]


def _undisturbed(row: dict[str, Any]) -> bool:
    return not ("unpacked" in row["run"] and row["model"] == "1.5B" and row["requests"] <= 8)


# Of a load of tests/gpu. The client of h200_speeds.json is not kept: as many rounds are assumed.
SECONDS = {1: 3.0, 64: 5.0, 256: 6.0}


def _load(row: dict[str, Any]) -> Load:
    """The estimate for a row as it was measured: so many rounds, so many tokens that were in the
    prefix cache."""
    answer = row["requests"] * OUTPUT / row["tokens_per_s"]  # seconds
    rounds = math.ceil(row.get("seconds", SECONDS[row["requests"]]) / answer)
    cached = row.get("cached", 0)
    model = replace(_model(row), rounds=rounds, prompt=PROMPT - cached, cached=cached)
    return model.load(row["requests"])


def _rows(*, held_out: bool) -> list[dict[str, Any]]:
    rows = json.loads(ROWS.read_text("utf-8"))
    held = ("fourth", "fifth", "sixth")
    return [row for row in rows if row["run"].startswith(held) == held_out]


def _model(row: dict[str, Any]) -> SpeedModel:
    """Of a row's layout: as many GPUs a host as it had."""
    gpus, hosts = row["tp"] * row["pp"] * row["dp"], row["hosts"]
    sites = [
        Site(f"gpu{number}", parse_gpus(f"{gpus // hosts}xH200"), "nvlink")
        for number in range(hosts)
    ]
    placement = replace(seat_ranks(sites, row["tp"], row["pp"]), replicas=row["dp"])
    link = LinkSpeed(row["link_gb_s"] * 1e9, 41e-6)
    return SpeedModel(describe(config_of(MODELS[row["model"]])), placement, None, link)


def test_the_order_under_load_is_the_measured_one() -> None:
    one, nvlink = speed("one H200").loaded, speed("TP 2 over NVLink").loaded
    stages, spread = speed("PP 2 over 4 GB/s").loaded, speed("TP 2 over 4 GB/s").loaded
    assert nvlink == pytest.approx(one, rel=0.25)  # measured as equal: something else bounds them
    assert one > 1.5 * stages > 1.5 * 1.5 * spread


def test_the_order_of_a_single_request_is_the_measured_one() -> None:
    assert speed("one H200").alone > speed("PP 2 over 4 GB/s").alone
    assert speed("PP 2 over 4 GB/s").alone > 1.4 * speed("TP 2 over 4 GB/s").alone


def test_with_many_requests_replicas_beat_one_and_everything_over_the_link() -> None:
    """With 64, two replicas were measured at 16,086 tokens/s and one GPU at 15,996."""
    replicas = speed_of(SHAPE, replace(seat_ranks(ONE_HOST, 1, 1), replicas=2))
    assert replicas.loaded == pytest.approx(speed("one H200").loaded, rel=0.05)
    most = max(speed(name).loads[-1].tokens_per_s for name in MEASURED)
    assert replicas.loads[-1].tokens_per_s > most


def test_a_32b_model_over_the_link() -> None:
    """599 tokens/s with 64 requests were measured (eager)."""
    shape = describe(config_of("deepseek-ai/deepseek-r1-distill-qwen-32b"))
    assert 300 < speed_of(shape, seat_ranks(TWO_HOSTS, 2, 1)).loaded < 1200


def test_a_faster_link_is_never_slower() -> None:
    placement = MEASURED["TP 2 over 4 GB/s"][0]
    found = [
        speed_of(SHAPE, placement, network=LinkSpeed(bandwidth, 40e-6)).loaded
        for bandwidth in (0.1e9, 1e9, 4e9, 25e9, 50e9)
    ]
    assert found == sorted(found)


GEMMA, QWEN_7B = "google/gemma-4-26b-a4b", "deepseek-ai/deepseek-r1-distill-qwen-7b"
QWEN_72B = {
    **config_of("deepseek-ai/deepseek-r1-distill-qwen-32b"),
    "num_hidden_layers": 80, "hidden_size": 8192, "intermediate_size": 24576,
    "num_attention_heads": 64, "num_key_value_heads": 64,
}  # fmt: skip


def with_flags(config: dict[str, Any], gpus: str, flags: str) -> Load:
    """The estimate for one request with these flags, on all of the GPUs of a host."""
    found = parse_gpus(gpus)
    placement = seat_ranks([Site("a", found)], len(found), 1)
    return speed_of(describe(config), placement, options=parse_options(flags.split())).loads[0]


@pytest.mark.parametrize(
    ("config", "gpus", "token_ms", "off"),
    [
        (config_of(GEMMA), "A100", 1000 / 18.5, 0.05),
        (config_of(QWEN_7B), "A800", 22.5, 0.1),
        (QWEN_72B, "8xL20", 39.2, 0.8),
    ],
    ids=["Gemma 4 26B, a log", "7B, vllm-omni#7960", "held out: Qwen1.5 72B, vllm#4852"],
)
def test_without_cuda_graphs(
    config: dict[str, Any], gpus: str, token_ms: float, off: float
) -> None:
    """The first two gave the time of a launch. The third is vLLM 0.5, with less Python a launch."""
    load = with_flags(config, gpus, "--enforce-eager")
    assert load.token * 1e3 == pytest.approx(token_ms, rel=off)
    assert with_flags(config, gpus, "").token < 0.75 * load.token


def test_what_bounds_the_gpu_anyway_is_no_slower_without_graphs() -> None:
    """The GPU computes while the host launches: 58.9 GiB take longer to read than to launch."""
    gemma = config_of("google/gemma-4-31b-it")
    graphs, eager = (with_flags(gemma, "T4", flags).token for flags in ("", "--enforce-eager"))
    assert eager == graphs


def test_offloaded_weights_are_read_over_pcie_in_each_step() -> None:
    config = config_of("deepseek-ai/deepseek-r1-distill-llama-70b")
    steps = {}
    for gpus in ("V100", "A100", "H100"):
        half = with_flags(config, gpus, "--cpu-offload-gb 60").token
        steps[gpus] = half - with_flags(config, gpus, "").token
    assert steps["A100"] == pytest.approx(60 * 2**30 / (31.5e9 * 0.72), rel=0.02)
    assert steps["V100"] == pytest.approx(2 * steps["A100"])
    assert steps["H100"] == pytest.approx(steps["A100"] / 2)


def test_of_offloaded_experts_only_the_chosen_ones_are_read() -> None:
    config = config_of(GEMMA)
    few, all_of_them = (
        with_flags(config, "A100", ""),
        with_flags(config, "A100", "--cpu-offload-gb 99"),
    )
    read = 31.5e9 * 0.72 * (all_of_them.token - few.token)
    assert 3e9 < read < 10e9  # of 48


def test_requests_beyond_max_num_seqs_wait_for_those_before_them() -> None:
    flags = parse_options(["--max-num-seqs", "16"])
    one, some, many = speed_of(SHAPE, seat_ranks(ONE_HOST, 1, 1), options=flags).loads
    free = speed_of(SHAPE, seat_ranks(ONE_HOST, 1, 1)).loads
    assert one == free[0]
    assert some.tokens_per_s == many.tokens_per_s < free[1].tokens_per_s
    assert some.token < free[1].token
    assert free[1].first_token < some.first_token < many.first_token


def test_the_wait_for_a_place_is_that_of_all_requests_in_turn() -> None:
    """By Little's law: as many requests as are there, each until its end, make the throughput."""
    flags = parse_options(["--max-num-seqs", "16"])
    model = SpeedModel(SHAPE, seat_ranks(ONE_HOST, 1, 1), None, LINK, flags, rounds=1000)
    found = model.load(64)
    lasts = found.first_token + OUTPUT * found.token
    assert 64 * OUTPUT / lasts == pytest.approx(found.tokens_per_s, rel=0.02)
    once = replace(model, rounds=1).load(64)
    assert once.first_token == pytest.approx(found.first_token / 2, rel=0.1)
