"""Kinds that vLLM's benchmark has no requests for, measured at a server that stands in for vLLM."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from clusterctl.kinds.known import KINDS, kind_named
from clusterctl.reporting.bench_view import bench_lines
from clusterctl.serving.bench import (
    RESULT,
    BenchFigures,
    BenchLoad,
    BenchResult,
    bench_job,
    comparison,
    read_figures,
)
from clusterctl.serving.service import build_service
from tests.fakes.model_server import ModelServer
from tests.unit.serving.launches import launch

CLOSED = BenchLoad(2, None, 256, 32, 6)


def measured(
    place: Path, server: ModelServer, name: str, load: BenchLoad = CLOSED, seed: int = 7
) -> tuple[BenchFigures, str]:
    """Run the benchmark as in the node container, and return what it measured and said."""
    kind, url = kind_named(name), f"http://127.0.0.1:{server.port}"
    job = bench_job(build_service(launch()), url, server.key, load, seed, kind)
    for file, text in job.files.items():
        (place / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    ran = subprocess.run(
        job.argv, cwd=place, env={**os.environ, **job.env}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert server.key not in " ".join(job.argv)
    return read_figures((place / RESULT).read_bytes(), ran.stderr, name, "0.32.0", kind), ran.stderr


@pytest.fixture
def server() -> Any:
    opened = ModelServer("k" * 64)
    yield opened
    opened.close()


def test_speech_is_measured_in_seconds_of_sound(server: ModelServer, tmp_path: Path) -> None:
    figures, _ = measured(tmp_path, server, "speech")

    assert (figures.completed, figures.failed, figures.unit) == (6, 0, "audio seconds")
    assert figures.units_per_s == pytest.approx(6 * 30 / figures.seconds)
    assert server.paths == ["/v1/audio/transcriptions"] * 6
    forms = [request["form"] for request in server.requests]
    assert len(set(forms)) == 6  # None is in a cache of vLLM
    assert b'name="max_completion_tokens"\r\n\r\n32\r\n' in forms[0]
    assert 0 < figures.e2el_ms["p50"] <= figures.e2el_ms["p95"] <= figures.e2el_ms["p99"]


def test_ocr_is_measured_in_pages_of_as_many_tokens(server: ModelServer, tmp_path: Path) -> None:
    figures, _ = measured(tmp_path, server, "ocr", BenchLoad(None, 50.0, 256, 32, 3))
    again, _ = measured(tmp_path, server, "ocr", BenchLoad(None, 50.0, 256, 32, 3), seed=2**31 - 1)

    assert (figures.completed, figures.unit, figures.per) == (3, "pages", "min")
    assert again.units_per_s == pytest.approx(3 / again.seconds)
    assert figures.tokens_per_s == pytest.approx(3 * server.words / figures.seconds)
    pages = {json.dumps(request["messages"]) for request in server.requests}
    assert len(pages) == 6
    assert {(one["max_tokens"], one["ignore_eos"]) for one in server.requests} == {(32, True)}


def test_what_was_not_answered_is_counted_and_the_reason_is_said(
    server: ModelServer, tmp_path: Path
) -> None:
    server.lacks = "/v1/audio/transcriptions"
    with pytest.raises(Exception, match="answered none of the benchmark's 6 requests") as raised:
        measured(tmp_path, server, "speech")
    assert "404" in str(raised.value.detail)  # type: ignore[attr-defined]


def document(name: str, figures: BenchFigures) -> dict[str, Any]:
    result = BenchResult(1e9, name, "m", {"vllm": "0.32.0"}, "f", 1, 1, CLOSED, figures)
    load = {**asdict(CLOSED), "text": "2 at once"}
    earlier = comparison([result], [replace(result, figures=replace(figures, units_per_s=1.0))])
    assert earlier is not None
    return {**asdict(result), "load": load, "predicted": None, "earlier": asdict(earlier)}


def test_each_service_is_listed_in_its_own_unit() -> None:
    none: dict[str, float] = {}
    ms = {"p50": 1.0, "p95": 2.0, "p99": 3.0}
    sound = BenchFigures(
        8, 0, 10.0, 0.8, 0.0, none, none, none, "audio seconds", 24.0, "s", "30 s", ms
    )
    pages = replace(
        sound, unit="pages", units_per_s=0.8, per="min", sent="a page", tokens_per_s=9.0
    )

    head, first, second, *notes = bench_lines([document("whisper", sound), document("ocr", pages)])

    assert head.split() == ["load", "service", "audio", "seconds/s", "pages/min", "tokens/s", "ms"]
    assert first.split()[3:7] == ["whisper", "24.0", "-", "-"]
    assert second.split()[3:7] == ["ocr", "-", "48.0", "9.0"]
    assert notes[:3] == ["latencies are p50 / p95 / p99", "whisper: 30 s", "ocr: a page"]
    assert "ocr, 2 at once: -20% against 60.0 pages/min of" in notes[4]


def test_every_kind_that_is_served_has_a_unit_and_a_way_to_measure_it() -> None:
    units = {kind.name: f"{kind.unit}/{kind.per}" for kind in KINDS if kind.bench}

    assert set(units) == {kind.name for kind in KINDS if not kind.refused}
    assert units == {
        "text": "tokens/s", "vision": "tokens/s", "embed": "texts/s", "rerank": "pairs/s",
        "classify": "texts/s", "tokens": "texts/s", "speech": "audio seconds/s", "ocr": "pages/min",
    }  # fmt: skip
