"""A LoRA adapter for the lab's model `tiny`, as peft writes one."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def adapter(place: Path, seed: int) -> Path:
    """Write one of rank 8, for the queries of its four layers, and return its directory."""
    place.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 64, "target_modules": ["q_proj"],
              "bias": "none", "base_model_name_or_path": "tiny"}  # fmt: skip
    (place / "adapter_config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {}
    body = bytearray()
    for layer in range(4):
        for side, shape in (("A", [8, 128]), ("B", [128, 8])):
            values = [((n * 7919 + seed) % 13 - 6) / 4 for n in range(1024)]
            start = len(body)
            body += struct.pack("<1024f", *values)
            name = f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_{side}.weight"
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, len(body)]}
    text = json.dumps(header).encode()
    (place / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return place
