"""Names that users type, and the model that each means."""

from __future__ import annotations

import pytest

from clusterctl.errors import RequirementsNotMet, UsageError
from clusterctl.models.catalogue import CATALOGUE, by_alias
from clusterctl.models.config_json import described
from clusterctl.models.location import locate
from clusterctl.models.name import resolve
from clusterctl.models.version import Version, parse_version
from clusterctl.planning.problems import possible_tp

MODELS = "/data/models"


@pytest.mark.parametrize(
    ("name", "hub_id"),
    [
        ("qwen2.5-1.5b", "Qwen/Qwen2.5-1.5B-Instruct"),
        ("Qwen2.5-1.5B-Instruct", "Qwen/Qwen2.5-1.5B-Instruct"),
        ("deepseek-r1-1.5b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"),
        ("DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B"),
        ("DeepSeek-R1-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
        ("deepseek-r1-70b", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"),
        ("QWEN3-8B", "Qwen/Qwen3-8B"),
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
        ("google/gemma-4-26B-A4B", "google/gemma-4-26B-A4B"),
        ("Gemma-4-26B-A4B", "google/gemma-4-26B-A4B"),
        ("google/gemma-4-31b-it", "google/gemma-4-31B-it"),
        ("/root/autodl-tmp/DeepSeek-R1-32B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"),
        ("/root/llms/Qwen/Qwen3-8B/", "Qwen/Qwen3-8B"),
    ],
)
def test_every_way_of_naming_a_known_model_finds_its_entry(name: str, hub_id: str) -> None:
    model = resolve(name, MODELS)

    assert model.entry is not None
    assert model.entry.hub_id == hub_id
    assert model.hub_id == hub_id


def test_aliases_are_lower_case_and_lead_to_one_entry_each() -> None:
    names = [name for entry in CATALOGUE for name in entry.names]

    assert names == [name.lower() for name in names]
    assert len(names) == len(set(names))
    assert all(by_alias(name.upper()) for name in names)


def test_an_alias_is_looked_for_in_all_places_where_people_keep_a_model() -> None:
    model = resolve("qwen2.5-1.5b", "/data/models/")

    assert model.served_name == "qwen2.5-1.5b"
    assert model.candidates == (
        "/data/models/Qwen2.5-1.5B-Instruct",
        "/data/models/Qwen/Qwen2.5-1.5B-Instruct",
        "/data/models/qwen2.5-1.5b",
        "/data/models/qwen2.5-1.5b-instruct",
        "/data/models/models--Qwen--Qwen2.5-1.5B-Instruct",
        "/data/models/hub/models--Qwen--Qwen2.5-1.5B-Instruct",
        "/data/models/huggingface/hub/models--Qwen--Qwen2.5-1.5B-Instruct",
    )


def test_an_unknown_hub_id_is_taken_as_it_is() -> None:
    model = resolve("mistralai/Mistral-7B-v0.3", MODELS)

    assert (model.entry, model.hub_id) == (None, "mistralai/Mistral-7B-v0.3")
    assert model.served_name == "mistralai/Mistral-7B-v0.3"


def test_a_path_is_looked_for_nowhere_else() -> None:
    model = resolve("/srv/mine", MODELS)

    assert model.candidates == ("/srv/mine",)
    assert model.served_name == "mine"


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("qwen2.5-1b", "qwen2.5-1.5b"),
        ("deepseekr1-32b", "deepseek-r1-32b"),
        ("gpt-os-20b", "gpt-oss"),
    ],
)
def test_an_unknown_alias_brings_the_nearest_one(name: str, guess: str) -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(resolve(name, MODELS), {"gpu1": []})

    assert f"{name} is on none of the hosts (gpu1); did you mean" in str(caught.value)
    assert guess in str(caught.value)


def test_a_directory_of_the_hosts_is_named_as_model_ls_shows_it() -> None:
    found = resolve("all-MiniLM-L6-v2", MODELS)
    assert (found.served_name, found.hub_id) == ("all-MiniLM-L6-v2", None)
    assert found.candidates == (f"{MODELS}/all-MiniLM-L6-v2",)


@pytest.mark.parametrize(
    "name", ["models/x/y", "./qwen", "~/qwen", "/data/../etc", "/", "..", "a b"]
)
def test_what_is_no_path_from_the_root_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        resolve(name, MODELS)


def test_an_alias_unlike_any_other_brings_no_guess() -> None:
    with pytest.raises(RequirementsNotMet) as caught:
        locate(resolve("zzz", MODELS), {"gpu1": []})

    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("alias", "sizes"),
    [
        ("qwen2.5-1.5b", (1, 2, 4)),
        ("deepseek-r1-7b", (1, 2, 4)),
        ("deepseek-r1-32b", (1, 2, 4, 8)),
        ("deepseek-r1-70b", (1, 2, 4, 8, 16)),
        ("gemma-4-26b", (1, 2, 4, 8, 16)),
    ],
)
def test_tensor_parallel_sizes_of_known_models(alias: str, sizes: tuple[int, ...]) -> None:
    entry = by_alias(alias)

    assert entry is not None
    assert possible_tp(entry.shape, 16) == sizes


@pytest.mark.parametrize(
    ("alias", "version", "tokens"),
    [
        ("deepseek-r1-7b", None, ("--reasoning-parser", "deepseek_r1")),
        (
            "deepseek-r1-7b",
            (0, 7, 2),
            ("--enable-reasoning", "--reasoning-parser", "deepseek_r1"),
        ),
        ("qwen3-8b", (0, 8, 5), ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")),
        ("gemma-4-31b", (0, 18, 0), ()),
        ("glm-4.5-air", (0, 10, 0), ()),
        ("kimi-k2", (0, 10, 0), ("--enable-auto-tool-choice", "--tool-call-parser", "kimi_k2")),
        ("gpt-oss-20b", (0, 19, 0), ("--enable-auto-tool-choice", "--tool-call-parser", "openai")),
    ],
)
def test_only_flags_that_the_release_knows_are_given(
    alias: str, version: Version | None, tokens: tuple[str, ...]
) -> None:
    entry = by_alias(alias)

    assert entry is not None
    assert entry.tokens(version) == tokens


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.33.0", (0, 33, 0)),
        ("v0.8.5.post1", (0, 8, 5)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("vllm/vllm-openai:v0.7.2", (0, 7, 2)),
        ("registry:5000/vllm-openai:v0.33.0@sha256:abc", (0, 33, 0)),
        ("registry:5000/vllm-openai", None),
        ("vllm/vllm-openai:latest", None),
        ("", None),
    ],
)
def test_versions_are_read_from_vllm_and_from_image_tags(text: str, version: Version) -> None:
    assert parse_version(text) == version


def test_the_shape_of_a_model_with_vision_is_that_of_its_text_part() -> None:
    gemma = by_alias("gemma-4-31b")

    assert gemma is not None
    assert (gemma.shape.heads, gemma.shape.kv_heads, len(gemma.shape.layers)) == (32, (16, 4), 60)
    assert gemma.shape.multimodal


def test_latent_attention_has_no_key_value_heads_to_divide() -> None:
    shape = described(
        '{"num_attention_heads": 128, "num_hidden_layers": 61, "kv_lora_rank": 512,'
        ' "hidden_size": 7168, "vocab_size": 129280}'
    )

    assert shape is not None
    assert shape.kv_heads == ()


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"model_type": "bert"}', "\x00"])
def test_a_file_without_a_shape_has_none(text: str) -> None:
    assert described(text) is None
