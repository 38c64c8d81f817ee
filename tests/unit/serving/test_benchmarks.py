"""Benchmarks: what is sent to vLLM's own, what is read from it, and what is kept."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from clusterctl.errors import StepFailed, UsageError
from clusterctl.kinds.known import kind_named
from clusterctl.reporting.bench_view import bench_lines
from clusterctl.serving.bench import (
    BenchFigures,
    BenchLoad,
    BenchResult,
    LastTime,
    bench_job,
    comparison,
    loads,
    read_figures,
    read_results,
    with_results,
)
from clusterctl.serving.service import build_service
from tests.unit.serving.launches import launch

# vLLM 0.32.0 on CPUs, two requests at once; its lists of single requests are left out.
SAMPLE = """{
 "num_prompts": 8,
 "max_concurrency": 2,
 "duration": 4.173,
 "completed": 8,
 "failed": 0,
 "request_throughput": 1.917,
 "output_throughput": 30.671,
 "p50_ttft_ms": 80.814,
 "p95_ttft_ms": 604.655,
 "p99_ttft_ms": 752.419,
 "p50_tpot_ms": 38.141,
 "p95_tpot_ms": 97.915,
 "p99_tpot_ms": 98.846,
 "p50_itl_ms": 35.187,
 "p95_itl_ms": 114.683,
 "p99_itl_ms": 376.685,
 "p50_e2el_ms": 976.332,
 "p95_e2el_ms": 1604.752,
 "p99_e2el_ms": 1619.448
}"""

LOAD = BenchLoad(1, None, 256, 128, 8)
FIGURES = BenchFigures(8, 0, 10.0, 0.8, 100.0, *({"p50": 1.0, "p95": 2.0, "p99": 3.0},) * 3)
ESTIMATE = {"tokens_per_s": 110.0, "off": 0.1, "first_token_ms": 20.0, "token_ms": 2.25}
RESULT = BenchResult(1e9, "a", "m", {"vllm": "0.32.0"}, "f", 2, 1, LOAD, FIGURES)


def test_the_figures_are_those_that_vllm_wrote() -> None:
    figures = read_figures(SAMPLE.encode(), "", "tiny", "0.32.0")

    assert (figures.completed, figures.failed) == (8, 0)
    assert figures.tokens_per_s == pytest.approx(16 * 8 / figures.seconds, rel=0.001)
    for latencies in (figures.ttft_ms, figures.tpot_ms, figures.itl_ms):
        assert list(latencies) == ["p50", "p95", "p99"]
        assert 0 < latencies["p50"] <= latencies["p95"] <= latencies["p99"]


def test_a_release_without_the_command_is_named() -> None:
    said = "vllm: error: argument subparser: invalid choice: 'bench' (choose from chat, serve)"
    with pytest.raises(UsageError, match=r"vLLM 0\.7\.2 has no `vllm bench`"):
        read_figures(None, said, "chat", "0.7.2")


@pytest.mark.parametrize(
    "result",
    [
        None,
        b"""{"completed": 1, "num_prompts": 1, "duration": NaN}""",
        b"",
        b"[]",
        b"{}",
        b'{"completed": "x"}',
    ],
)
def test_no_result_shows_the_end_of_the_output(result: bytes | None) -> None:
    with pytest.raises(StepFailed, match="ended without a result") as caught:
        read_figures(result, "Traceback ... no tokenizer", "chat", "0.32.0")
    assert "no tokenizer" in str(caught.value.detail)


def test_answers_to_no_request_are_an_error() -> None:
    none = json.dumps({**json.loads(SAMPLE), "completed": 0})
    with pytest.raises(StepFailed, match="answered none of the benchmark's 8 requests"):
        read_figures(none.encode(), "", "chat", "0.32.0")


def test_the_key_is_in_no_argument() -> None:
    document = build_service(launch())
    job = bench_job(document, "http://127.0.0.1:8000", "s3cret", LOAD, 7)

    assert "s3cret" not in " ".join(job.argv)
    assert "s3cret" not in repr(job)
    assert job.env["OPENAI_API_KEY"] == "s3cret"
    assert job.argv[: job.argv.index("--base-url")] == [
        "vllm", "bench", "serve", "--model", document.argv[2],
        "--served-model-name", document.served_name,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("embed", "--backend openai-embeddings --endpoint /v1/embeddings --dataset-name random"),
        ("rerank", "--backend vllm-rerank --endpoint /v1/rerank --dataset-name random-rerank"),
        ("tokens", "--backend vllm-pooling --endpoint /pooling --dataset-name random"),
    ],
)
def test_a_kind_that_generates_nothing_is_measured_by_what_it_answers(
    kind: str, words: str
) -> None:
    document = build_service(launch())

    argv = " ".join(bench_job(document, "http://a", "k", LOAD, 7, kind_named(kind)).argv)

    assert words in argv
    assert "--percentile-metrics e2el" in argv
    assert "--ignore-eos" not in argv
    assert "--random-output-len" not in argv


def test_texts_are_counted_where_nothing_is_generated() -> None:
    sample = {
        "num_prompts": 8, "completed": 8, "duration": 2.0, "request_throughput": 4.0,
        "input_sequence_throughput": 40.0, "total_token_throughput": 1024.0,
        "p50_e2el_ms": 10.0, "p95_e2el_ms": 20.0, "p99_e2el_ms": 30.0,
    }  # fmt: skip

    found = read_figures(json.dumps(sample).encode(), "", "r", "0.32.0", kind_named("rerank"))

    assert (found.units_per_s, found.unit, found.tokens_per_s) == (40.0, "pairs", 1024.0)
    assert found.e2el_ms == {"p50": 10.0, "p95": 20.0, "p99": 30.0}
    document = {
        **asdict(replace(RESULT, figures=found)),
        "load": {**asdict(LOAD), "text": "1 at once"},
        "predicted": None,
        "earlier": None,
    }
    head, row, notes, more = bench_lines([document])
    assert head.split() == ["load", "service", "pairs/s", "tokens/s", "ms"]
    assert row.split() == [
        "1",
        "at",
        "once",
        "a",
        "40.0",
        "1,024.0",
        *["10.0", "/", "20.0", "/", "30.0"],
    ]
    assert notes == "256 tokens in; latencies are p50 / p95 / p99"
    assert "those read" in more


@pytest.mark.parametrize("word", ["--trust-remote-code", "--no-trust-remote-code"])
def test_a_models_code_runs_in_the_benchmark_only_if_it_does_in_the_service(word: str) -> None:
    job = bench_job(build_service(launch(word)), "http://127.0.0.1:8000", "s3cret", LOAD, 7)

    assert ("--trust-remote-code" in job.argv) == (word == "--trust-remote-code")


def test_without_options_one_and_eight_requests_are_compared() -> None:
    given = {"prompt": 256, "output": 128, "requests": None}
    found = loads(rates=(), sweep=False, **given)  # type: ignore[arg-type]
    assert [(load.concurrency, load.requests) for load in found] == [(1, 8), (8, 32)]
    opened = loads(rates=(2.5, 0.1), sweep=False, **given)  # type: ignore[arg-type]
    assert [(str(load), load.requests) for load in opened] == [
        ("2.5 requests/s", 75),
        ("0.1 requests/s", 20),
    ]
    swept = loads(rates=(), sweep=True, **given)  # type: ignore[arg-type]
    assert [load.concurrency for load in swept] == [1, 4, 16, 64]
    with pytest.raises(UsageError):
        loads(rates=(1,), sweep=True, **given)  # type: ignore[arg-type]


def test_results_are_kept_in_bounds_and_found_again() -> None:
    later = replace(RESULT, time=2e9, figures=replace(FIGURES, tokens_per_s=120.0))
    damaged = json.dumps({**asdict(RESULT), "figures": {**asdict(FIGURES), "tokens_per_s": "x"}})
    data = with_results(b'{"other": "version"}\nnot JSON\n' + damaged.encode(), [RESULT, later])

    assert read_results(data) == [RESULT, later]
    for _ in range(600):
        data = with_results(data, [later])
    assert len(data.splitlines()) == 500


def test_two_services_stand_below_each_other_for_each_load() -> None:
    documents = [
        {
            "service": name,
            "load": {"text": text, "prompt": 256, "output": 128},
            "figures": {**vars(replace(FIGURES, tokens_per_s=speed, failed=0))},
            "predicted": ESTIMATE if name == "a" else None,
            "earlier": asdict(LastTime(1e9, "0.31.0", 80.0, 0.25, noise, verdict)),
        }
        for name, speed, noise, verdict in (
            ("a", 100.0, None, "unknown"),
            ("b", 50.0, 0.1, "faster"),
        )
        for text in ("1 at once", "8 at once")
    ]
    lines = bench_lines(documents)

    assert [line.split()[3] for line in lines[1:5]] == ["a", "b", "a", "b"]
    assert "110 (+10%), TTFT 20, TPOT 2.2" in lines[1]
    assert "1.0 / 2.0 / 3.0" in lines[1]
    assert any("a, 1 at once: +25% against 80.0 tokens/s of 2001-09-0" in line for line in lines)
    assert any("0.31.0; noise is unknown: --runs 3 measures it" in line for line in lines)
    assert any("b, 1 at once: faster: +25%" in line for line in lines)


def measured(*speeds: float, vllm: str = "0.32.0") -> list[BenchResult]:
    return [
        replace(RESULT, versions={"vllm": vllm}, figures=replace(FIGURES, tokens_per_s=speed))
        for speed in speeds
    ]


def test_only_a_difference_beyond_the_noise_is_called_one() -> None:
    kept = [*measured(50.0, vllm="0.30.0"), *measured(100.0, 104.0, 96.0, vllm="0.31.0")]
    slower = comparison(measured(80.0, 78.0, 82.0), kept)
    assert slower
    assert (slower.verdict, slower.vllm) == ("slower", "0.31.0")
    assert slower.change == pytest.approx(-0.2, abs=0.001)
    # By hand: standard deviations of the logarithms 0.0400 and 0.0250, four degrees of freedom
    assert slower.noise == pytest.approx(0.0785, abs=0.001)
    same = comparison(measured(95.0, 100.0, 97.0), kept)
    assert same
    assert same.verdict == "the same"
    faster = comparison(measured(130.0, 131.0), kept)
    assert faster
    assert faster.verdict == "faster"


def test_noise_of_single_runs_is_unknown_until_there_are_more() -> None:
    once = comparison(measured(80.0), measured(100.0))
    assert once
    assert (once.noise, once.verdict) == (None, "unknown")
    assert comparison(measured(80.0), [replace(RESULT, service="b")]) is None
    assert comparison(measured(80.0, 0.0), measured(100.0)) is None
    history = comparison(measured(80.0), measured(100.0, 101.0, 99.0))
    assert history
    assert history.verdict == "slower"
