"""For which architectures the formulas agree with vLLM's own code."""

from __future__ import annotations

import json

from clusterctl.models.families import FAMILIES
from clusterctl.planning.proof import DRAFTED, PROVEN, is_proven, proven_architectures
from clusterctl.serving.release_flags import NEWEST_RELEASE
from scripts.prove_formula import dumped

TABLE = json.loads(PROVEN.read_text())


def test_the_table_is_of_the_newest_release_that_was_read() -> None:
    assert TABLE["vllm"] == [NEWEST_RELEASE["vllm"]]
    known = {name.removesuffix(DRAFTED) for name in TABLE["architectures"]}
    assert known <= set(NEWEST_RELEASE["architectures"])


def test_what_agrees_is_proven_and_nothing_else() -> None:
    assert is_proven("Qwen3ForCausalLM")
    assert is_proven("Qwen3_5ForConditionalGeneration")
    assert not is_proven("NeverCompared")
    assert not any(
        is_proven(name)
        for name, row in TABLE["architectures"].items()
        if row["weights_off"] > 0.005 or row["tokens_off"] > 0.0001
    )


def test_no_proven_architecture_is_guessed_to_be_like_another() -> None:
    assert {name.removesuffix(DRAFTED) for name in proven_architectures()} <= set(FAMILIES)


def test_an_architecture_is_as_far_off_as_its_worst_configuration() -> None:
    row = {"model": "a/b", "architecture": "A", "vllm": "9.9.9", "tp": 1, "quantization": "fp8"}
    rows = [
        row | {"weights_off": -0.02, "tokens_off": 0.0},
        row | {"weights_off": 0.001, "tokens_off": 0.5, "tp": 8},
        row | {"weights_off": 0.0, "tokens_off": 0.0, "model": "a/c", "quantization": ""},
    ]

    found = json.loads(dumped(rows))["architectures"]["A"]

    assert found == {
        "weights_off": 0.02,
        "tokens_off": 0.5,
        "compared": "a/b fp8 TP 1, 8; a/c TP 1",
    }
