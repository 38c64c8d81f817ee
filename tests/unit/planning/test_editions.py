"""Which precision of a model suits given GPUs, and the search for models that fit."""

from __future__ import annotations

import pytest

from clusterctl.errors import UsageError
from clusterctl.models.catalogue import by_alias
from clusterctl.planning.editions import best_edition, edition_note, search
from clusterctl.planning.fit_request import FitArguments, load_shape, without_cluster
from clusterctl.planning.hardware import parse_gpus
from clusterctl.planning.weights import PipelineStage, weight_bytes


@pytest.mark.parametrize(
    ("alias", "gpus", "best"),
    [
        ("qwen3.6-35b-a3b", "2xRTX5090", "qwen3.6-35b-a3b-fp8"),
        ("qwen3.6-35b-a3b", "1xRTX5090", "qwen3.6-35b-a3b-nvfp4"),
        ("qwen3.6-35b-a3b", "2xH100", "qwen3.6-35b-a3b"),
        ("qwen3.6-35b-a3b-nvfp4", "2xH100", "qwen3.6-35b-a3b"),  # asked by a variant
        ("qwen3.6-35b-a3b", "2xA100-40GB", "qwen3.6-35b-a3b"),
        ("hy3", "4xH100", "hy3-nvfp4"),
        ("hy3", "2xH100", None),
        ("hy3", "4xH200", "hy3-fp8"),
    ],
)
def test_the_most_bits_that_fit_and_that_the_gpus_compute_in(
    alias: str, gpus: str, best: str | None
) -> None:
    entry = by_alias(alias)

    assert entry is not None
    found = best_edition(entry, parse_gpus(gpus))
    assert (found.alias if found else None) == best


def test_fit_names_the_precision_that_suits_the_gpus() -> None:
    entry = by_alias("qwen3.6-35b-a3b")

    assert entry is not None
    note = edition_note(entry, parse_gpus("1xRTX5090")) or ""
    assert "bf16 84 GB, fp8 42 GB, nvfp4 21 GB" in note
    assert note.endswith("qwen3.6-35b-a3b-nvfp4 (nvidia/Qwen3.6-35B-A3B-NVFP4)")


def test_an_edition_that_does_not_fit_as_planned_is_not_called_the_best() -> None:
    gpus = "2xRTX5090"  # 67 GB, and the recipe's minimum in bf16 is 65 GB
    (bf16,) = [each for each in _notes("qwen3.6-27b", gpus) if "recipe names" in each]
    (only,) = [each for each in _notes("nemotron-3-ultra-nvfp4", "4xA100-80GB") if "recipe" in each]
    (none,) = [each for each in _notes("kimi-k3", "8xH200") if "recipe names" in each]

    assert bf16.endswith("fp8 suits them best: qwen3.6-27b-fp8 (Qwen/Qwen3.6-27B-FP8)")
    assert only.endswith("these GPUs have 340 GB")
    assert none.endswith("too few for each")


def _notes(model: str, gpus: str) -> tuple[str, ...]:
    return without_cluster(FitArguments(model, gpus=gpus)).notes


def test_a_search_finds_words_in_any_order_and_what_fits() -> None:
    assert [each.entry.alias for each in search("a3b qwen3.6")] == ["qwen3.6-35b-a3b"]
    assert {each.entry.kind for each in search("rerank")} == {"rerank"}
    small = {each.entry.alias for each in search("", parse_gpus("1xRTX4090"))}
    assert "qwen3.5-9b" in small
    assert not small & {"kimi-k3", "llama-3.1-405b-base"}


def test_an_edition_without_config_json_is_its_model_in_its_precision() -> None:
    """Qwen3.8-27B-FP8, of the same shape, has its own config.json."""
    found = load_shape("Qwen/Qwen3.6-27B-FP8")
    real = load_shape("Qwen/Qwen3.8-27B-FP8")
    assert any("no config.json says" in each for each in found.assumptions)
    assert not real.assumptions
    whole = PipelineStage(0, len(real.layers), 1, has_embedding=True, has_head=True)
    weights = [weight_bytes(each, whole, each.quantization) for each in (found, real)]
    assert weights[0] == pytest.approx(weights[1], rel=0.02)


def test_the_hub_comes_before_a_guess_and_a_model_without_config_json_is_an_error() -> None:
    read = load_shape("Qwen/Qwen3-8B")
    assert load_shape("Qwen/Qwen3.6-27B-FP8", lambda _: read) == read
    with pytest.raises(UsageError, match=r"no config\.json of Qwen/Qwen3\.8-2\.4T-A95B") as raised:
        load_shape("qwen3.8-2.4t-a95b")
    assert (raised.value.detail or "").startswith("its recipe names as minimum: bf16 5871 GB")


def test_an_edition_in_fp8_with_widths_that_are_no_multiples_of_a_block_is_planned() -> None:
    assert without_cluster(FitArguments("gemma-4-26b-fp8", gpus="H200")).unproven


def test_a_checkpoint_in_fp8_is_not_planned_in_bf16_where_its_config_json_is_the_bases() -> None:
    found = load_shape("ministral-3-14b")
    assert found.quantization
    assert "Ministral-3-14B-Instruct-2512 is stored" in found.assumptions[-1]
