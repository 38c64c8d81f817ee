"""Kinds of models besides text: found out by asking, proven, and watched by what they answer."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from clusterctl.diagnosis.verdict import diagnose
from clusterctl.kinds import ocr, speech, vision
from clusterctl.kinds.kind import ModelKind
from clusterctl.kinds.known import ASKED, KINDS, kind_named, planned_kind
from clusterctl.models.catalogue import CATALOGUE
from clusterctl.node.endpoint import Metrics, parse_metrics
from tests.fakes.node_bench import Bench, await_value


@pytest.mark.parametrize(
    ("kind", "proof"),
    [
        ("text", "completions"),
        ("embed", "embeddings, 3 numbers, similar texts are nearer (0.98 against 0.16)"),
        ("rerank", "scores, the right passage comes first (0.50 against 0.00)"),
        ("classify", "classes, 3 of them"),
        ("tokens", "pooling, 2 x 2 numbers"),
        ("speech", "transcriptions, 2 words for a second of tones"),
    ],
)
def test_a_service_is_ready_once_it_answers_what_it_serves(
    bench: Bench, kind: str, proof: str
) -> None:
    bench.behaviour("vllm", {"kind": kind})
    bench.declare()
    bench.start()

    ready = bench.await_service("ready", kind=kind)

    assert ready.detail.endswith(f": answers {proof}")


@pytest.mark.parametrize(
    ("kind", "proof"),
    [
        ("vision", "answers about pictures, it sees that a picture is red"),
        ("ocr", "texts of pages, it reads the word on a page"),
    ],
)
def test_what_config_json_shows_is_asked_first(bench: Bench, kind: str, proof: str) -> None:
    bench.behaviour("vllm", {"kind": kind})
    bench.declare(kind=kind)
    bench.start()

    ready = bench.await_service("ready", kind=kind)

    assert ready.detail.endswith(f": answers {proof}")


def test_a_plan_that_is_wrong_about_the_kind_does_not_end_the_service(bench: Bench) -> None:
    bench.behaviour("vllm", {"kind": "embed", "paths": ["/health", "/v1/embeddings", "/pooling"]})
    bench.declare(kind="vision")
    bench.start()

    assert bench.await_service("ready").kind == "embed"


@pytest.mark.parametrize(
    ("paths", "kind"),
    [(["/rerank", "/pooling", "/classify"], "rerank"), (["/rerank", "/pooling"], "tokens")],
)
def test_late_interaction_is_known_by_the_path_that_it_lacks(
    bench: Bench, paths: list[str], kind: str
) -> None:
    """Both answer both requests."""
    bench.behaviour("vllm", {"kind": "rerank+tokens", "paths": ["/health", *paths]})
    bench.declare()
    bench.start()

    assert bench.await_service("ready").kind == kind


def test_what_answers_nothing_known_is_told_at_once_and_not_tried_again(bench: Bench) -> None:
    bench.behaviour("vllm", {"kind": "weather"})
    bench.declare(ready_timeout=600.0)
    bench.start()

    failed = bench.await_service("failed")

    assert "answers no request that would prove it" in failed.detail
    said = failed.last_error[-1]
    assert all(f"POST {kind.ask('', 1).path}: HTTP 404" in said for kind in ASKED)
    assert len(bench.starts("vllm")) == 1
    found = diagnose(failed.last_error)
    assert found[0].id == "nothing-to-ask"


def test_what_an_unknown_kind_offers_is_told(bench: Bench) -> None:
    bench.behaviour("vllm", {"kind": "weather", "paths": ["/health", "/v1/forecast"]})
    bench.declare(ready_timeout=600.0)
    bench.start()

    failed = bench.await_service("failed")

    assert failed.last_error[-1].endswith("it has /health, /v1/forecast")


def test_the_canary_is_of_the_same_kind(bench: Bench) -> None:
    bench.behaviour("vllm", {"kind": "embed"})
    bench.declare()
    bench.start()
    bench.await_service("ready")

    bench.behaviour("vllm", {"kind": "text"})

    await_value(lambda: "stalled" in bench.events("chat"), "the stall to be noticed")


def test_what_a_model_reads_moves_it_where_it_generates_nothing() -> None:
    text = "vllm:prompt_tokens_total 7\nvllm:generation_tokens_total 5\n"

    assert parse_metrics(text, kind_named("embed").counter) == Metrics(0, 0, 0, 7, (7, 7))
    assert parse_metrics(text) == Metrics(0, 0, 0, 5, (5, 7))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": [], "results": [], "choices": [], "text": None},
        {"data": [{"embedding": [], "probs": [], "data": []}], "results": [{}], "choices": [{}]},
        {"data": [{"embedding": [None], "probs": 1, "data": ["x"]}], "results": [1], "choices": 1},
    ],
)
def test_what_is_no_answer_proves_nothing(kind: ModelKind, answer: Any) -> None:
    _, read = kind.first("text", 4)

    with pytest.raises(ValueError, match=f"no {kind.result} in"):
        kind.answer(answer)
    with pytest.raises(ValueError, match=f"no {kind.result} in"):
        kind.answer(answer, read)


@pytest.mark.parametrize("wrong", [[0.0, 0.0], [float("nan"), 1.0], [1.0, 2.0, 3.0]])
def test_vectors_that_can_mean_nothing_prove_nothing(wrong: list[float]) -> None:
    embed = kind_named("embed")
    data = [{"embedding": vector} for vector in ([0.1, 0.2], [0.1, 0.2], wrong)]

    with pytest.raises(ValueError, match="no embeddings in"):
        embed.answer({"data": data}, embed.judge)


def test_meaning_that_is_missing_is_told() -> None:
    embed, rerank, page = kind_named("embed"), kind_named("rerank"), kind_named("ocr")
    data = [{"embedding": vector} for vector in ([1.0, 0.0], [0.0, 1.0], [1.0, 0.1])]
    results = [{"index": 0, "relevance_score": 0.9}, {"index": 1, "relevance_score": 0.2}]

    assert "NOT: similar texts are nearer (0.00 against 1.00" in embed.answer(
        {"data": data}, embed.judge
    )
    assert "NOT: the right passage" in rerank.answer({"results": results}, rerank.judge)
    assert "(it says 'no idea')" in page.answer({"choices": [{"text": "no idea"}]}, page.judge)


def test_a_vector_of_a_whole_text_is_pooled_too() -> None:
    assert kind_named("tokens").answer({"data": [{"data": [0.1, 0.2]}]}) == "2 numbers"


def test_a_supervisor_of_an_older_version_names_a_kind_by_its_answers_or_not_at_all() -> None:
    assert kind_named("").name == "text"
    assert kind_named("embeddings").name == "embed"


@pytest.mark.parametrize(
    ("architecture", "pictures", "kind"),
    [
        ("WhisperForConditionalGeneration", False, "speech"),
        ("Qwen3ASRForConditionalGeneration", True, "speech"),
        ("PaddleOCRVLForConditionalGeneration", True, "ocr"),
        ("Qwen3VLForConditionalGeneration", True, "vision"),
        ("Qwen3TTSForConditionalGeneration", False, "speech-out"),
        ("Qwen3ForCausalLM", False, ""),
        ("BertModel", False, ""),
    ],
)
def test_config_json_shows_some_kinds(architecture: str, pictures: bool, kind: str) -> None:
    assert planned_kind(architecture, pictures=pictures) == kind


def test_each_entry_of_the_catalogue_is_of_a_known_kind() -> None:
    assert {entry.kind for entry in CATALOGUE} <= {kind.name for kind in KINDS}


def test_sound_and_pictures_are_files_of_their_formats() -> None:
    sound, page = speech.tones(), ocr.page()

    assert (sound[:4], sound[8:12], len(sound)) == (b"RIFF", b"WAVE", 44 + 2 * 16_000)
    assert page.startswith(b"\x89PNG\r\n")
    start = page.index(b"IDAT") + 4
    pixels = zlib.decompress(page[start : page.index(b"IEND") - 8])
    width = int.from_bytes(page[16:20], "big")
    assert len(pixels) == int.from_bytes(page[20:24], "big") * (1 + 3 * width)
    assert vision.png([vision.RED * 2] * 2)[16:24] == bytes([0, 0, 0, 2, 0, 0, 0, 2])


def test_a_sound_is_sent_as_a_form() -> None:
    kind, body = kind_named("speech").ask("", 4).encoded("whisper")

    assert kind.startswith("multipart/form-data; boundary=")
    boundary = kind.partition("=")[2].encode()
    assert body.count(b"--" + boundary) == 5
    assert b'name="max_completion_tokens"\r\n\r\n4\r\n' in body
    assert b'name="model"\r\n\r\nwhisper\r\n' in body
    assert b'name="file"; filename="sound.wav"\r\n\r\nRIFF' in body
