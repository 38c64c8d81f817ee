"""Which precision of a model suits given GPUs, and the search for models that fit."""

from __future__ import annotations

import pytest

from clusterctl.models.catalogue import by_alias
from clusterctl.planning.editions import best_edition, edition_note, search
from clusterctl.planning.hardware import parse_gpus


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


def test_a_search_finds_words_in_any_order_and_what_fits() -> None:
    assert [each.entry.alias for each in search("a3b qwen3.6")] == ["qwen3.6-35b-a3b"]
    assert {each.entry.kind for each in search("rerank")} == {"rerank"}
    small = {each.entry.alias for each in search("", parse_gpus("1xRTX4090"))}
    assert "qwen3.5-9b" in small
    assert not small & {"kimi-k3", "llama-3.1-405b-base"}
