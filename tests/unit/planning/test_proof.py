"""For which architectures the formulas agree with vLLM's own code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clusterctl.models.catalogue import config_file
from clusterctl.models.config_json import describe
from clusterctl.models.families import FAMILIES
from clusterctl.planning.proof import (
    DRAFTED,
    PROVEN,
    PROVEN_WITHIN,
    is_proven,
    proven_architectures,
)
from clusterctl.serving.release_flags import NEWEST_RELEASE
from scripts.prove_formula import ASKED, dumped, predicted

SAID = json.loads(ASKED.read_text())
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

    found = json.loads(dumped(rows, {}))["architectures"]

    assert found["A"] == {
        "weights_off": 0.02,
        "tokens_off": 0.5,
        "compared": "a/b fp8 TP 1, 8; a/c TP 1",
    }


@pytest.mark.parametrize("hub_id", sorted(SAID))
def test_the_catalogues_models_still_agree_with_what_vllm_said(hub_id: str) -> None:
    shape = describe(json.loads(config_file(hub_id).read_text()), hub_id)
    directory = Path(hub_id.replace("/", "--"))

    for size, (weights, tokens) in SAID[hub_id].items():
        ours = predicted(shape, directory, int(size), TABLE["vllm"][0])

        assert ours[0] == pytest.approx(weights, rel=PROVEN_WITHIN)
        assert ours[1] == pytest.approx(tokens, rel=0.0001)


def test_what_was_not_compared_again_stays_and_is_as_far_off_as_before() -> None:
    row = {"model": "a/b", "architecture": "A", "vllm": "9.9.9", "tp": 1, "quantization": "fp8",
           "weights_off": 0.001, "tokens_off": 0.0}  # fmt: skip
    old = {"weights_off": 0.01, "tokens_off": 0.0, "compared": "a/b fp8 TP 8"}
    other = old | {"compared": "a/c TP 1"}

    def table(vllm: str, row_of_a: dict[str, object]) -> dict[str, dict[str, object]]:
        before = {"vllm": [vllm], "architectures": {"A": row_of_a, "B": old}}
        found: dict[str, dict[str, object]] = json.loads(dumped([row], before))["architectures"]
        return found

    assert table("9.9.9", other)["A"] == other | {"compared": "a/c TP 1; a/b fp8 TP 1"}
    assert table("9.9.9", old)["A"]["weights_off"] == 0.001
    assert table("9.9.9", old)["B"] == old
    assert set(table("9.9.8", old)) == {"A"}
