"""Models for the lab, generated here: nothing is downloaded.

`tiny` has (random) weights on disk and loads in an instant. The other has the real shape of
Qwen2.5-1.5B-Instruct but no weights: it is served with `--load-format dummy`, which generates
random weights of the real sizes.
"""

from __future__ import annotations

import array
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clusterctl.lab.paths import content_key

TINY = "tiny"
QWEN = "Qwen2.5-1.5B-Instruct"
_SEED = 20
_TINY_VOCABULARY = 512
# Tokens of Qwen2.5's own tokenizer up to <|im_end|>; the model has some more rows.
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
    """Key of the models, which changes with the source of this module, their generator."""
    return content_key(Path(__file__).read_bytes())


def build_models(directory: Path) -> None:
    """Write both models below `directory`."""
    _write_json(directory / TINY, {"config.json": TINY_CONFIG, **tokenizer_files(_TINY_VOCABULARY)})
    (directory / TINY / "model.safetensors").write_bytes(safetensors(TINY_CONFIG))
    _write_json(directory / QWEN, {"config.json": QWEN_CONFIG, **tokenizer_files(_QWEN_TOKENS)})
    # With this file `serve` needs no flag: it marks the weights as omitted on purpose.
    (directory / QWEN / "RANDOM_WEIGHTS").touch()


def weight_shapes(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of every tensor of a Qwen2 model with tied embeddings."""
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
    """Return a safetensors file with random weights: a length, a JSON header, the tensors."""
    source = random.Random(_SEED)  # noqa: S311  (weights, not secrets)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in weight_shapes(config):
        start = len(body)
        count = math.prod(shape)
        if name.endswith("norm.weight"):
            values = array.array("f", [1.0]) * count
        else:
            values = array.array("f", (source.gauss(0.0, 0.05) for _ in range(count)))
        if sys.byteorder == "big":
            values.byteswap()
        body += array.array("H", values.tobytes())[1::2].tobytes()  # bfloat16: the upper halves
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


def _write_json(directory: Path, files: dict[str, Any]) -> None:
    directory.mkdir(parents=True)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1, ensure_ascii=False))


END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SYLLABLES = [first + last for first in "bdfgklmnprstvz" for last in "aeiou"]


_TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "add_prefix_space": False,
    "eos_token": TURN_END,
    "pad_token": END_OF_TEXT,
    "model_max_length": 32768,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}


def byte_symbols() -> dict[int, str]:
    """Map bytes to characters as byte-level vocabularies do: printable ones stay, others get the
    next free one from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    free = itertools.count(256)
    return {byte: chr(byte if byte in printable else next(free)) for byte in range(256)}


def tokenizer_files(size: int) -> dict[str, Any]:
    """Return {name: JSON content} of a tokenizer with `size` tokens, the special ones last.

    A prompt is encoded byte by byte, since the tokenizer merges no tokens. All other tokens are
    words of two to four syllables after a space, which occur only in the model's answers.
    """
    symbols = byte_symbols()
    words = (
        symbols[ord(" ")] + "".join(parts)
        for length in (2, 3, 4)
        for parts in itertools.product(_SYLLABLES, repeat=length)
    )
    vocabulary = [*symbols.values(), *itertools.islice(words, size - len(symbols) - len(SPECIAL))]
    ids = {token: number for number, token in enumerate(vocabulary)}
    first_special = len(vocabulary)
    added = [
        {"id": first_special + offset, "content": token, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False, "special": True}
        for offset, token in enumerate(SPECIAL)
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False,
                  "byte_fallback": False, "vocab": ids, "merges": []},
    }  # fmt: skip
    return {"tokenizer.json": tokenizer, "tokenizer_config.json": _TOKENIZER_CONFIG}
