"""Models of the catalogue in their real sizes, with a tokenizer of made-up words: without weights,
or with random ones in files as large as the model's own.

    python -m tests.gpu.shapes ALIAS DIRECTORY     with weights; for a dense Qwen3
"""

from __future__ import annotations

import array
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.lab.models import tokenizer_files
from clusterctl.models.catalogue import by_alias

TOKENS = 151_646
FILES = 4
BLOCK = 2**20
"""Values that tensors consist of, over and over."""


def config_of(alias: str) -> dict[str, Any]:
    """Return the catalogue's, and what it leaves out, as memory does not depend on it."""
    entry = by_alias(alias)
    assert entry is not None, alias
    shape = {
        "model_type": "qwen3", "head_dim": 128, "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        **entry.config,
    }  # fmt: skip
    if "num_experts" in shape:
        shape |= {
            "model_type": "qwen3_moe", "intermediate_size": 6144, "norm_topk_prob": True,
            "decoder_sparse_step": 1, "mlp_only_layers": [],
        }  # fmt: skip
    return shape


def write_shape(alias: str, directory: Path) -> None:
    """Write the model without weights, marked as such."""
    write_files(config_of(alias), directory)
    (directory / "RANDOM_WEIGHTS").touch()


def write_files(config: dict[str, Any], directory: Path) -> None:
    directory.mkdir(parents=True)
    for name, content in {"config.json": config, **tokenizer_files(TOKENS)}.items():
        (directory / name).write_text(json.dumps(content))


def weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of a dense Qwen3 whose head is its own matrix."""
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads = size * config["num_attention_heads"]
    keys = size * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", heads), ("k_proj", keys), ("v_proj", keys)):
            yield f"{layer}.self_attn.{name}.weight", (rows, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, heads)
        for name in ("q_norm", "k_norm"):
            yield f"{layer}.self_attn.{name}.weight", (size,)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{layer}.{name}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (config["vocab_size"], hidden)


def write_weights(alias: str, directory: Path) -> None:
    """Write the model with bfloat16 weights in FILES safetensors files of about one size."""
    config = config_of(alias)
    write_files(config, directory)
    source = random.Random(alias)  # noqa: S311 - weights, not secrets
    values = array.array("f", (source.gauss(0.0, 0.02) for _ in range(BLOCK)))
    block = array.array("H", values.tobytes())[1::2].tobytes()  # The upper halves
    tensors = list(weight_shapes(config))
    whole = sum(2 * math.prod(shape) for _, shape in tensors)
    parts: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(FILES)]
    done = 0
    for name, shape in tensors:
        parts[min(FILES - 1, done * FILES // whole)].append((name, shape))
        done += 2 * math.prod(shape)
    places: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        file = f"model-{number:05}-of-{FILES:05}.safetensors"
        _write_file(directory / file, part, block)
        places |= {name: file for name, _ in part}
    index = {"metadata": {"total_size": whole}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def _write_file(path: Path, tensors: list[tuple[str, tuple[int, ...]]], block: bytes) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    size = 0
    for name, shape in tensors:
        end = size + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [size, end]}
        size = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, size, len(block)):
            file.write(block[: size - start])


if __name__ == "__main__":
    write_weights(sys.argv[1], Path(sys.argv[2]))
