"""Read the description of a model from a directory: config.json and safetensors headers, but never
the weights. The only module in this package that reads files."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clusterctl.errors import MALFORMED, UsageError

_HEADER_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100_000_000  # The safetensors format's own limit

_FETCH = "copy the model again: the directory is incomplete"


def read_config(path: Path) -> dict[str, Any]:
    """Parse the config.json of a model directory, or that file itself.

    Raises UsageError if it is missing, is not JSON, or is not an object.
    """
    file = path / "config.json" if path.is_dir() else path
    if file.suffix == ".gguf":
        raise not_planned(str(path))
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        if path.is_dir() and any(path.glob("*.gguf")):
            raise not_planned(str(path)) from None
        if (own := file.with_name("params.json")).is_file():
            raise UsageError(
                f"{own} is in Mistral's own format, from which memory is not planned",
                hint="name the config.json of the same model, if it has one; clusterctl serve "
                "starts it without a forecast",
            ) from None
        raise UsageError(f"no config.json at {file}", hint=_FETCH) from None
    except (OSError, UnicodeDecodeError) as failed:
        raise UsageError(f"cannot read {file}: {failed}", hint=_FETCH) from failed
    return with_quantization(parse_config(text, str(file)), file.with_name(QUANTIZATION_FILE))


def not_planned(model: str) -> UsageError:
    """Return the error for a model in llama.cpp's format."""
    return UsageError(
        f"{model} is GGUF, llama.cpp's format, whose memory cannot be planned: each tensor has "
        "its own format",
        hint="plan with the config.json of the model that it was converted from; vLLM 0.28 and "
        "newer need a plugin to serve it",
    )


QUANTIZATION_FILE = "hf_quant_config.json"  # ModelOpt's, beside a config.json that lacks it


def with_quantization(config: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the config with ModelOpt's description of the quantization, which vLLM reads if
    config.json has none. Raises UsageError if the file is not JSON."""
    if config.get("quantization_config") or not file.is_file():
        return config
    found = parse_config(file.read_text(encoding="utf-8"), str(file))
    return {**config, "quantization_config": {**found, "quant_method": "modelopt"}}


def parse_config(text: str, origin: str = "config.json") -> dict[str, Any]:
    """Parse the text of a config.json. Raises UsageError."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as failed:
        hint = "a git-lfs pointer or an error page?" if text[:1] in "v<" else _FETCH
        raise UsageError(f"{origin} is not JSON: {failed}", hint=hint) from failed
    if not isinstance(parsed, dict):
        raise UsageError(f"{origin} is not a JSON object", hint=_FETCH)
    return parsed


def checkpoint_bytes(directory: Path) -> int | None:
    """Return the bytes of all tensors of a checkpoint, from its index or its files' headers.

    None if the directory has no safetensors at all (config.json alone is valid). Raises UsageError
    with the missing shards of the index.
    """
    file = directory / "model.safetensors.index.json"
    if not file.is_file():
        files = sorted(directory.glob("*.safetensors"))
        return sum(header_bytes(file) for file in files) if files else None
    index = parse_config(file.read_text(encoding="utf-8"), str(file))
    names = index.get("weight_map")
    shards = sorted(set(names.values())) if isinstance(names, Mapping) else []
    missing = [name for name in shards if not (directory / str(name)).is_file()]
    if missing and len(missing) < len(shards):
        shown = ", ".join(missing[:5]) + (" ..." if len(missing) > 5 else "")
        raise UsageError(
            f"{len(missing)} of {len(shards)} shards are missing in {directory}: {shown}",
            hint=_FETCH,
        )
    total = (index.get("metadata") or {}).get("total_size")
    return int(total) if isinstance(total, int | float) else None


def header_bytes(file: Path) -> int:
    """Return the bytes of the tensors in a safetensors file, from its header. Raises UsageError."""
    try:
        with file.open("rb") as stream:
            (length,) = _HEADER_LENGTH.unpack(stream.read(_HEADER_LENGTH.size))
            header = json.loads(stream.read(min(length, _LONGEST_HEADER)))
        ends = [
            int(entry["data_offsets"][1])
            for name, entry in header.items()
            if name != "__metadata__" and isinstance(entry, dict)
        ]
    except (OSError, struct.error, *MALFORMED) as failed:
        raise UsageError(
            f"{file} is not a safetensors file: {failed}", hint=f"git lfs pull, or {_FETCH}"
        ) from failed
    return max(ends, default=0)
