"""The catalogue's figures against those of its models' publishers and against vLLM's registries."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.errors import UsageError
from clusterctl.models.catalogue import (
    CATALOGUE,
    EDITIONS,
    CatalogueEntry,
    by_alias,
    config_file,
)
from clusterctl.models.families import FAMILIES
from clusterctl.planning.weights import PipelineStage, weight_bytes
from clusterctl.serving.release_flags import NEWEST_RELEASE
from scripts.catalogue import table
from tests.fakes.catalogue import SHAPED

ROOT = Path(__file__).parents[3]
DOCUMENT = json.loads((ROOT / "clusterctl/models/catalogue.json").read_text())
CONFIGS = list((ROOT / "clusterctl/models/configs").glob("*.json"))
PAGE = (ROOT / "docs/catalogue.md").read_text().splitlines()

COLLECTED = ("transformers", "public")

every_model = pytest.mark.parametrize("entry", EDITIONS, ids=lambda entry: entry.alias)
every_figure = pytest.mark.parametrize("entry", SHAPED, ids=lambda entry: entry.alias)


@every_figure
def test_the_shape_has_as_many_parameters_as_published(entry: CatalogueEntry) -> None:
    shape = replace(entry.shape, rotary=())
    whole = PipelineStage(0, len(shape.layers), 1, has_embedding=True, has_head=True)
    billions = weight_bytes(shape, whole, None) / 2e9

    assert billions == pytest.approx(entry.billions, rel=0.02, abs=0.005)


@pytest.mark.parametrize(
    "entry",
    [by_alias(model["alias"]) for model in DOCUMENT["models"] if model["source"] in COLLECTED],
    ids=lambda entry: entry.alias,
)
def test_collected_sizes_make_about_as_many_parameters_as_published(entry: CatalogueEntry) -> None:
    """Publishers round: Qwen3.5-4B has 4.56 billion with its encoder."""
    shape = replace(entry.shape, rotary=())
    if entry.architecture not in FAMILIES:
        pytest.skip("the formula does not know this architecture")
    whole = PipelineStage(0, len(shape.layers), 1, has_embedding=True, has_head=True)

    assert weight_bytes(shape, whole, None) / 2e9 == pytest.approx(entry.billions, rel=0.15)


@every_model
def test_vllm_knows_the_architecture_and_the_parsers(entry: CatalogueEntry) -> None:
    tokens = entry.tokens(None)

    assert entry.architecture in NEWEST_RELEASE["architectures"]
    for flag, known in (("--reasoning-parser", "reasoning"), ("--tool-call-parser", "tool")):
        if flag in tokens:
            assert tokens[tokens.index(flag) + 1] in NEWEST_RELEASE[f"{known}_parsers"]


def test_every_figure_has_a_source_and_every_group_of_flags_is_used() -> None:
    models = DOCUMENT["models"]

    assert {model["source"] for model in models} == set(DOCUMENT["sources"])
    assert all(
        config_file(entry.hub_id).exists() for entry in EDITIONS if not entry.given and entry.config
    )
    assert {file.stem for file in CONFIGS} <= {
        entry.hub_id.replace("/", "--") for entry in EDITIONS
    }
    assert {name for model in models for name in model.get("flags", ())} == set(DOCUMENT["flags"])
    assert len({model["hub_id"].casefold() for model in models}) == len(models)


def test_the_page_shows_the_catalogue() -> None:
    assert [line for line in PAGE if line.startswith("| `")] == table()


def test_every_line_that_people_serve_is_there() -> None:
    """The models that public signals of 2026-11 name most, each in its own line."""
    wanted = [
        "qwen3.6-35b-a3b",
        "qwen3.6-27b",
        "qwen3.8-27b",
        "qwen3.8-flash-next",
        "qwen3.8-2.4t-a95b",
        "qwen3.5-0.8b",
        "qwen3.5-397b-a17b",
        "qwen3-coder-next",
        "qwen3-next-80b-a3b",
        "qwen3-30b-a3b-2507",
        "qwen3-235b-a22b-2507",
        "qwen3-vl-30b-a3b",
        "qwen3-embedding-8b",
        "qwen3-reranker-8b",
        "qwen3-asr-1.7b",
        "deepseek-v4-flash",
        "deepseek-v4.1-flash",
        "deepseek-v4-pro",
        "deepseek-v3.2",
        "deepseek-v3.1",
        "gpt-oss-120b",
        "gpt-oss-20b",
        "gemma-4-31b",
        "gemma-4-26b",
        "gemma-4-12b",
        "gemma-4-e4b",
        "gemma-4-e2b",
        "kimi-k3",
        "kimi-k2.5",
        "kimi-k2.6",
        "kimi-k2.7-code",
        "glm-5.3",
        "glm-5.3-flash",
        "glm-5.2",
        "glm-5.1",
        "glm-4.7",
        "glm-4.6",
        "minimax-m3",
        "minimax-m2.7",
        "minimax-m2.5",
        "llama-3.1-8b",
        "llama-3.3-70b",
        "nemotron-3-super",
        "nemotron-3-ultra",
        "nemotron-3-nano",
        "nemotron-3.5-lightning",
        "hy3",
        "hy4-preview",
        "mistral-medium-3.5",
        "mistral-small-4",
        "ministral-3-8b",
        "mistral-large-3",
        "mimo-v2.5",
        "step-3.5-flash",
        "step-3.7-flash",
        "muse-glimmer-30b",
        "bge-m3",
        "bge-reranker-v2-m3",
        "whisper-large-v3",
        "whisper-large-v3-turbo",
        "voxtral-small-24b",
        "deepseek-ocr-2",
        "paddleocr-vl-1.6",
        "paddleocr-vl",
        "glm-ocr",
    ]

    assert not [alias for alias in wanted if by_alias(alias) is None]


def test_a_variant_has_an_alias_and_the_flags_that_it_needs() -> None:
    entry = by_alias("qwen3.6-35b-a3b-nvfp4")

    assert entry is not None
    assert entry.hub_id == "nvidia/Qwen3.6-35B-A3B-NVFP4"
    assert entry.tokens((0, 33, 0))[-4:] == ("--kv-cache-dtype", "fp8", "--moe-backend", "marlin")
    assert entry.tokens((0, 16, 0)) == ()  # before the first release of its recipe


def test_flags_for_a_class_of_gpus_are_given_there_alone() -> None:
    entry = by_alias("glm-5.3-flash")

    assert entry is not None
    assert "--kv-cache-dtype" in entry.tokens(None, 100)
    assert "--kv-cache-dtype" not in entry.tokens(None, 90)
    assert "--kv-cache-dtype" not in entry.tokens(None)


def test_planning_without_a_config_says_which_command_reads_it() -> None:
    entry = by_alias("hy4-preview")

    assert entry is not None
    assert entry.known_shape is None
    with pytest.raises(UsageError, match=r"no config\.json of tencent/Hy4-preview") as caught:
        _ = entry.shape
    assert "clusterctl fit tencent/Hy4-preview" in (caught.value.hint or "")


def test_the_page_names_the_models_with_code_of_their_own_which_users_decide_on() -> None:
    named = next(line for line in PAGE if "come with Python code of their own" in line)
    own = [f"`{entry.alias}`" for entry in CATALOGUE if entry.own_code]

    assert sorted(own) == re.findall(r"`[^`]+`", named)
    assert not [entry.alias for entry in CATALOGUE if "--trust-remote-code" in entry.tokens(None)]
