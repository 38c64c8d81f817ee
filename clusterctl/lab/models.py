"""Models for the lab, made here: nothing is downloaded.

`tiny` has real weights (random ones) on disk and loads in an instant. The other has the
real shape of Qwen2.5-1.5B-Instruct and no weights: it is served with `--load-format dummy`,
which fills in random weights of the real sizes.
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

from clusterctl.lab.cache import content_key
from clusterctl.lab.tokenizer import tokenizer_files

TINY = "tiny"
QWEN = "Qwen2.5-1.5B-Instruct"
_SEED = 20
_TINY_VOCABULARY = 512
# Tokens of Qwen2.5's own tokenizer up to <|im_end|>; the model has some rows more.
_QWEN_TOKENS = 151_646

_SHARED: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
}
TINY_CONFIG: dict[str, Any] = {
    **_SHARED,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
    "vocab_size": _TINY_VOCABULARY,
    "bos_token_id": _TINY_VOCABULARY - 3,
    "eos_token_id": _TINY_VOCABULARY - 1,
}
QWEN_CONFIG: dict[str, Any] = {
    **_SHARED,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "max_position_embeddings": 32768,
    "vocab_size": 151_936,
    "bos_token_id": _QWEN_TOKENS - 3,
    "eos_token_id": _QWEN_TOKENS - 1,
}


def models_key() -> str:
    """Changes when what makes the models does: the sources of the two modules."""
    sources = (Path(__file__), Path(__file__).with_name("tokenizer.py"))
    return content_key(*(source.read_bytes() for source in sources))


def build_models(directory: Path) -> None:
    """Write both models below `directory`."""
    _write_json(directory / TINY, {"config.json": TINY_CONFIG, **tokenizer_files(_TINY_VOCABULARY)})
    (directory / TINY / "model.safetensors").write_bytes(safetensors(TINY_CONFIG))
    _write_json(directory / QWEN, {"config.json": QWEN_CONFIG, **tokenizer_files(_QWEN_TOKENS)})
    # `serve` asks for no flag where the directory itself says that weights are left out.
    (directory / QWEN / "RANDOM_WEIGHTS").touch()


def weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of a Qwen2 model with tied embeddings."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for name, rows in (("q_proj", hidden), ("k_proj", keys), ("v_proj", keys)):
            yield f"{layer}.self_attn.{name}.weight", (rows, hidden)
            yield f"{layer}.self_attn.{name}.bias", (rows,)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, hidden)
        yield f"{layer}.mlp.gate_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.up_proj.weight", (inner, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, inner)
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)


def safetensors(config: dict[str, Any]) -> bytes:
    """A safetensors file with random weights: a length, a JSON header, the tensors."""
    source = random.Random(_SEED)  # noqa: S311  (weights, not secrets)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in weight_shapes(config):
        start = len(body)
        body += _random_tensor(name, math.prod(shape), source)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _random_tensor(name: str, count: int, source: random.Random) -> bytes:
    """bfloat16 numbers: norms are one, the rest is normal noise."""
    if name.endswith("norm.weight"):
        values = array.array("f", [1.0]) * count
    else:
        values = array.array("f", (source.gauss(0.0, 0.05) for _ in range(count)))
    if sys.byteorder == "big":
        values.byteswap()
    # A bfloat16 is the upper half of the float32.
    halves = array.array("H", values.tobytes())
    return halves[1::2].tobytes()


def _write_json(directory: Path, files: dict[str, Any]) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1, ensure_ascii=False))
