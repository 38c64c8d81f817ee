"""The catalogue's figures against those of its models' publishers and against vLLM's registries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.models.catalogue import CATALOGUE, CatalogueEntry
from clusterctl.planning.problems import possible_tp
from clusterctl.planning.weights import PipelineStage, weight_bytes
from clusterctl.serving.release_flags import NEWEST_RELEASE

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "clusterctl/models/catalogue.json").read_text())
PAGE = (ROOT / "docs/catalogue.md").read_text().splitlines()

every_model = pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.alias)


@every_model
def test_the_shape_has_as_many_parameters_as_published(entry: CatalogueEntry) -> None:
    shape = replace(entry.shape, rotary=())
    whole = PipelineStage(0, len(shape.layers), 1, has_embedding=True, has_head=True)
    billions = weight_bytes(shape, whole, None) / 2e9

    assert billions == pytest.approx(entry.billions, rel=0.02, abs=0.005)


@every_model
def test_vllm_knows_the_architecture_and_the_parsers(entry: CatalogueEntry) -> None:
    tokens = entry.tokens(None)

    assert entry.shape.architecture in NEWEST_RELEASE["architectures"]
    for flag, known in (("--reasoning-parser", "reasoning"), ("--tool-call-parser", "tool")):
        if flag in tokens:
            assert tokens[tokens.index(flag) + 1] in NEWEST_RELEASE[f"{known}_parsers"]


def test_every_figure_has_a_source_and_every_group_of_flags_is_used() -> None:
    models = DOCUMENT["models"]

    assert {model["source"] for model in models} == set(DOCUMENT["sources"])
    assert {name for model in models for name in model.get("flags", ())} == set(DOCUMENT["flags"])
    assert len({model["hub_id"].casefold() for model in models}) == len(models)


def test_the_page_shows_the_catalogue() -> None:
    rows = [line.strip("| ").split(" | ") for line in PAGE if line.startswith("| `")]

    assert [row[0].strip("`") for row in rows] == [entry.alias for entry in CATALOGUE]
    for row, entry in zip(rows, CATALOGUE, strict=True):
        flags = [" ".join(entry.tokens(None))] if entry.tokens(None) else []
        sizes = ", ".join(str(size) for size in possible_tp(entry.shape, 8))
        assert row[1:] == [entry.hub_id, f"{entry.billions:g}", sizes, *flags]


def test_the_page_names_the_models_with_code_of_their_own_which_users_decide_on() -> None:
    named = next(line for line in PAGE if "come with Python code of their own" in line)
    own = [f"`{entry.alias}`" for entry in CATALOGUE if entry.own_code]

    assert sorted(own) == re.findall(r"`[^`]+`", named)
    assert not [entry.alias for entry in CATALOGUE if "--trust-remote-code" in entry.tokens(None)]
