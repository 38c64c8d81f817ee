"""What `serve` prints of its plan before anything starts."""

from __future__ import annotations

import json

import pytest

from clusterctl.cli.serve import _answer, _show_plan
from clusterctl.operations.serving import Changes
from clusterctl.serving.endpoint import ServiceAnswer
from tests.fakes.fit_requests import fit_request

REPORT = fit_request("qwen2.5-1.5b", gpus="H200", hosts=2, tp=2, vllm="0.25.1")
CHANGES = Changes(("start qwen: vllm serve",), restarts=False, notes=("a note",), fit=REPORT)


def test_a_dry_run_shows_the_table_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    _show_plan(CHANGES, as_json=False)
    shown = capsys.readouterr().out
    assert "KV cache" in shown
    assert f"{REPORT.plan.kv_cache_tokens:,} tokens" in shown
    assert "host2" in shown
    assert "note: a note" in shown


def test_a_dry_run_for_machines_has_changes_and_plan(capsys: pytest.CaptureFixture[str]) -> None:
    _show_plan(CHANGES, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["changes"] == ["start qwen: vllm serve"]
    assert document["fit"]["kv_cache_tokens"] == REPORT.plan.kv_cache_tokens
    assert not document["restarts"]


def test_without_a_plan_the_notes_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    _show_plan(Changes((), restarts=False, notes=("memory is not planned: x",)), as_json=False)
    assert capsys.readouterr().out == "note: memory is not planned: x\n"


def test_what_proved_a_service_is_said_in_its_own_words() -> None:
    completion = ServiceAnswer("text", "Hello!", 3, 0.42)
    embedding = ServiceAnswer("embed", "1024 numbers", 0, 0.021)

    assert _answer(completion) == "completion  3 tokens in 0.4 s: 'Hello!'"
    assert _answer(embedding) == "answers     embeddings, 1024 numbers, in 0.02 s"
