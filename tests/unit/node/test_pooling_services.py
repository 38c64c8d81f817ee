"""Services whose model generates nothing: found out by asking, and watched by what it serves."""

from __future__ import annotations

from typing import Any

import pytest

from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.endpoint import COMPLETIONS, TASKS, Metrics, Task, parse_metrics, task_of
from tests.fakes.node_bench import Bench, await_value


@pytest.mark.parametrize(
    ("task", "proof"),
    [
        ("completions", "completions"),
        ("embeddings", "embeddings, 3 numbers"),
        ("scores", "scores, 0.5 for a text and itself"),
        ("classes", "classes, 3 of them"),
        ("pooling", "pooling, 2 x 2 numbers"),
    ],
)
def test_a_service_is_ready_once_it_answers_what_it_serves(
    bench: Bench, task: str, proof: str
) -> None:
    bench.behaviour("vllm", {"task": task})
    bench.declare()
    bench.start()

    ready = bench.await_service("ready", task=task)

    assert ready.detail.endswith(f": answers {proof}")


def test_what_answers_nothing_known_is_told_at_once_and_not_tried_again(bench: Bench) -> None:
    bench.behaviour("vllm", {"task": "speech"})
    bench.declare(ready_timeout=600.0)
    bench.start()

    failed = bench.await_service("failed")

    assert "answers no request that would prove it" in failed.detail
    said = failed.last_error[-1]
    assert all(f"POST {task.path}: HTTP 404" in said for task in TASKS)
    assert len(bench.starts("vllm")) == 1
    found = diagnose(failed.last_error)
    assert found[0].id == "nothing-to-ask"


def test_the_canary_is_of_the_same_task(bench: Bench) -> None:
    bench.behaviour("vllm", {"task": "embeddings"})
    bench.declare()
    bench.start()
    bench.await_service("ready")

    bench.behaviour("vllm", {"task": "completions"})

    await_value(lambda: "stalled" in bench.events("chat"), "the stall to be noticed")


def test_what_a_model_reads_moves_it_where_it_generates_nothing() -> None:
    text = "vllm:prompt_tokens_total 7\nvllm:generation_tokens_total 5\n"

    assert parse_metrics(text, task_of("embeddings").counter) == Metrics(0, 0, 0, 7, (7, 7))
    assert parse_metrics(text) == Metrics(0, 0, 0, 5, (5, 7))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"data": [], "results": [], "choices": []},
        {"data": [{"embedding": [], "probs": [], "data": []}], "results": [{}], "choices": [{}]},
        {"data": [{"embedding": [None], "probs": 1, "data": ["x"]}], "results": [1], "choices": 1},
    ],
)
def test_what_is_no_answer_proves_nothing(task: Task, answer: Any) -> None:
    with pytest.raises(ValueError, match=f"no {task.name} in"):
        task.answer(answer)


def test_a_vector_of_a_whole_text_is_pooled_too() -> None:
    assert task_of("pooling").answer({"data": [{"data": [0.1, 0.2]}]}) == "2 numbers"


def test_a_supervisor_that_names_no_task_asked_for_completions() -> None:
    assert task_of("") is COMPLETIONS
