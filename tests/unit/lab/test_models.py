"""Models and tokenizers made from nothing: of the right shape, and the same every time."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path

import pytest

from clusterctl.lab.models import (
    QWEN,
    QWEN_CONFIG,
    TINY,
    TINY_CONFIG,
    build_models,
    byte_symbols,
    models_key,
    tokenizer_files,
    weight_shapes,
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    build_models(directory)
    return directory


def test_the_tokenizer_covers_every_byte(models: Path) -> None:
    vocabulary = json.loads((models / TINY / "tokenizer.json").read_text())["model"]["vocab"]
    assert set(byte_symbols().values()) <= vocabulary.keys()
    assert len(set(byte_symbols().values())) == 256


@pytest.mark.parametrize(("name", "config"), [(TINY, TINY_CONFIG), (QWEN, QWEN_CONFIG)])
def test_every_token_has_a_row_in_the_model(
    models: Path, name: str, config: dict[str, int]
) -> None:
    document = json.loads((models / name / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in document["added_tokens"]}
    ids = Counter([*document["model"]["vocab"].values(), *added.values()])
    assert max(ids.values()) == 1
    assert max(ids) < config["vocab_size"]
    assert min(ids) == 0
    assert added["<|im_end|>"] == config["eos_token_id"]
    assert len(ids) == max(ids) + 1


def test_qwen_has_the_special_tokens_where_the_real_one_has_them() -> None:
    assert (QWEN_CONFIG["bos_token_id"], QWEN_CONFIG["eos_token_id"]) == (151_643, 151_645)


def test_the_weights_file_holds_every_tensor_end_to_end(models: Path) -> None:
    data = (models / TINY / "model.safetensors").read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    assert {name: tuple(entry["shape"]) for name, entry in header.items()} == dict(
        weight_shapes(TINY_CONFIG)
    )
    end = 0
    for entry in header.values():
        start, stop = entry["data_offsets"]
        assert start == end
        assert stop - start == 2 * math.prod(entry["shape"])
        end = stop
    assert len(data) == 8 + size + end


def test_the_real_shape_has_the_real_number_of_parameters() -> None:
    count = sum(math.prod(shape) for _, shape in weight_shapes(QWEN_CONFIG))
    assert count == 1_543_714_304


def test_the_same_files_come_out_every_time(models: Path, tmp_path: Path) -> None:
    build_models(tmp_path)
    for file in (path for path in models.rglob("*") if path.is_file()):
        assert (tmp_path / file.relative_to(models)).read_bytes() == file.read_bytes()


def test_the_cache_has_a_key_for_them() -> None:
    assert models_key()


def test_a_larger_vocabulary_is_filled_with_words_that_nothing_is_encoded_to() -> None:
    files = tokenizer_files(2000)["tokenizer.json"]["model"]
    reachable = set(byte_symbols().values())
    assert files["merges"] == []
    assert len(files["vocab"]) == 2000 - 3
    assert len(set(files["vocab"]) - reachable) > 1000
