"""LoRA adapters of this machine: what is refused before anything is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clusterctl.errors import ClusterctlError, UsageError
from clusterctl.models.catalogue import by_alias
from clusterctl.serving.adapters import Width, parse_adapter, parse_adapters, read_adapter

QWEN = by_alias("qwen2.5-1.5b")


def adapter(
    place: Path,
    *,
    rank: int = 8,
    layer: int = 27,
    part: str = "self_attn.q_proj",
    takes: int = 1536,
    gives: int = 1536,
    **config: Any,
) -> Path:
    """Write what PEFT writes, with a header alone in place of tensors."""
    place.mkdir()
    settings = {"peft_type": "LORA", "r": rank, "base_model_name_or_path": "Qwen/Qwen2.5-1.5B"}
    (place / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    name = f"base_model.model.model.layers.{layer}.{part}"
    header = {
        f"{name}.lora_A.weight": {"dtype": "F32", "shape": [rank, takes], "data_offsets": [0, 0]},
        f"{name}.lora_B.weight": {"dtype": "F32", "shape": [gives, rank], "data_offsets": [0, 0]},
    }
    text = json.dumps(header).encode()
    (place / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    return place


def said(caught: pytest.ExceptionInfo[ClusterctlError]) -> str:
    return str(caught.value)


def test_an_adapter_is_known_by_its_files(tmp_path: Path) -> None:
    found = read_adapter("sql", adapter(tmp_path / "sql"))

    assert found.rank == 8
    assert found.widths == (Width(27, "q_proj", True, 1536), Width(27, "q_proj", False, 1536))
    assert found.path == f"adapters/sql-{found.digest}"
    assert QWEN
    assert list(found.problems(QWEN.shape, 16)) == []
    other = read_adapter("sql", adapter(tmp_path / "other", rank=4))
    assert other.path != found.path


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rank": 64}, "has rank 64, and the service was started for ranks to 16"),
        ({"takes": 2048}, "its q_proj takes 2048 numbers, and that of the service's model 1536"),
        ({"gives": 512}, "its q_proj gives 512 numbers, and that of the service's model 1536"),
        ({"part": "self_attn.k_proj"}, "its k_proj gives 1536 numbers, and that of the service's"),
        ({"part": "mlp.up_proj"}, "its up_proj gives 1536 numbers, and that of the service's"),
        ({"part": "mlp.down_proj"}, "its down_proj takes 1536 numbers, and that of the service's"),
        ({"layer": 31}, "changes layer 32, and the service's model has 28"),
    ],
)
def test_an_adapter_for_another_model_is_named(
    tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    assert QWEN
    found = read_adapter("sql", adapter(tmp_path / "sql", **changed))

    (problem,) = found.problems(QWEN.shape, 16)

    assert words in str(problem)


def test_a_larger_rank_names_the_flag_that_takes_it(tmp_path: Path) -> None:
    (problem,) = read_adapter("sql", adapter(tmp_path / "sql", rank=48)).problems(None, 16)

    assert problem.hint == "serve it again, with -- --enable-lora --max-lora-rank 64"


def test_a_pickle_is_refused_even_beside_safetensors(tmp_path: Path) -> None:
    place = adapter(tmp_path / "sql")
    (place / "adapter_model.bin").write_bytes(b"\x80")

    with pytest.raises(UsageError, match=r"adapter_model\.bin may run code") as caught:
        read_adapter("sql", place)
    assert "safe_serialization=True" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"peft_type": "IA3"}, "of the type IA3"),
        ({"r": "many"}, "no rank"),
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "whole modules (lm_head)"),
    ],
)
def test_what_vllm_does_not_load_is_refused(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_adapter("sql", adapter(tmp_path / "sql", **config))
    assert words in said(caught)


@pytest.mark.parametrize(
    "content", [b"", b"PK\x03\x04" * 9, (9).to_bytes(8, "little") + b"not json!"]
)
def test_weights_that_are_none_are_refused(tmp_path: Path, content: bytes) -> None:
    place = adapter(tmp_path / "sql")
    (place / "adapter_model.safetensors").write_bytes(content)

    with pytest.raises(UsageError, match="safetensors"):
        read_adapter("sql", place)


def test_weights_that_change_nothing_are_refused(tmp_path: Path) -> None:
    """By its code (lora/lora_model.py) vLLM loads them, and answers as the model itself."""
    place = adapter(tmp_path / "sql")
    text = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    (place / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)

    with pytest.raises(UsageError, match="has no weights of an adapter"):
        read_adapter("sql", place)


def test_a_directory_without_an_adapter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a LoRA adapter"):
        read_adapter("sql", tmp_path)


@pytest.mark.parametrize("shape", [[8], [8, 1536, 1], ["8", "1536"], "8x1536", None])
def test_tensors_that_are_no_matrices_tell_nothing(tmp_path: Path, shape: Any) -> None:
    place = adapter(tmp_path / "sql")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    text = json.dumps({name: {"shape": shape}}).encode()
    (place / "adapter_model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)

    assert read_adapter("sql", place).widths == ()


def test_layers_of_a_tower_are_not_compared_with_those_of_the_language_model(
    tmp_path: Path,
) -> None:
    name = "vision_model.encoder.layers.3.self_attn.q_proj"
    place = adapter(tmp_path / "sql", part=name, takes=1024)

    assert read_adapter("sql", place).widths == ()


def test_two_adapters_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match="two adapters are named sql"):
        parse_adapters(["sql=./a", "code=./b", "sql=./c"])


@pytest.mark.parametrize("text", ["sql", "=./sql", "a/b=./sql", "../x=./sql", "sql=", "a:b=./sql"])
def test_a_name_that_cannot_be_one_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not NAME=DIRECTORY"):
        parse_adapter(text)
    assert parse_adapter("sql-2.1=./a=b") == ("sql-2.1", Path("a=b"))
