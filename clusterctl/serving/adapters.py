"""LoRA adapters on this machine: what they are, and whether a model accepts them. Only reads
files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.models.shape import ModelShape

DIRECTORY = "adapters"  # Below the models' directory of hosts

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_MOST_HEADER = 16 * 2**20  # Bytes; that of an adapter has some 100 KiB
_PART = re.compile(r"\blayers\.(\d+)\..*?([a-z0-9_]+)\.lora_([AB])\b")

# Parts of a layer whose input is the hidden state, so that its width tells models apart.
_READS_HIDDEN = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"})

DEFAULT_RANK = 16  # vLLM's --max-lora-rank


@dataclass(frozen=True)
class LocalAdapter:
    """An adapter in a directory on this machine."""

    name: str  # The `model` of requests
    directory: Path
    rank: int
    base: str  # The model that it was trained on, as it names it; may be empty
    modules: frozenset[str]
    layers: int  # The highest number of a layer that it changes, plus one
    hidden: int  # Width of the hidden state; 0 if it does not show
    digest: str  # Of its content, twelve hexadecimal digits

    @property
    def path(self) -> str:
        """Its path on hosts, below the models directory."""
        return f"{DIRECTORY}/{self.name}-{self.digest}"

    def problems(self, shape: ModelShape | None, most: int) -> Iterator[UsageError]:
        """Yield why a model of that shape, started for adapters of ranks up to `most`, does not
        accept it."""
        what = f"{self.directory}"
        if self.rank > most:
            yield UsageError(
                f"{what} has rank {self.rank}, and the service was started for ranks to {most}",
                hint="serve it again, with -- --enable-lora --max-lora-rank "
                f"{_rank_flag(self.rank)}",
            )
        if shape and self.hidden and self.hidden != shape.hidden:
            yield UsageError(
                f"{what} is for another model: its hidden state is {self.hidden} wide, and that of "
                f"the service's model {shape.hidden}",
                hint=f"it names its base as {self.base}" if self.base else None,
            )
        if shape and self.layers > len(shape.layers):
            yield UsageError(
                f"{what} is for another model: it changes layer {self.layers}, and the service's "
                f"model has {len(shape.layers)}",
                hint=f"it names its base as {self.base}" if self.base else None,
            )


def _rank_flag(rank: int) -> int:
    """Return the value of --max-lora-rank for it, among those vLLM accepts (config/lora.py)."""
    return next((each for each in (1, 8, 16, 32, 64, 128, 256, 320, 512) if each >= rank), rank)


def parse_adapter(text: str) -> tuple[str, Path]:
    """Return name and directory of `NAME=DIRECTORY`. Raises UsageError."""
    name, _, directory = text.partition("=")
    if not directory or not _NAME.match(name):
        raise UsageError(
            f"{text!r} is not NAME=DIRECTORY",
            hint="sql=./sql-lora; a name has letters, digits, and . _ - between them, at most 63",
        )
    return name, Path(directory)


def read_adapter(name: str, directory: Path) -> LocalAdapter:
    """Read an adapter. Raises UsageError, or all reasons why vLLM could or must not load it."""
    if not (directory / _CONFIG).is_file():
        raise UsageError(
            f"{directory} is not a LoRA adapter: it has no {_CONFIG}",
            hint="name the directory that PEFT's save_pretrained wrote",
        )
    config = _json_object(directory / _CONFIG, (directory / _CONFIG).read_bytes())
    problems: list[ClusterctlError] = [
        UsageError(f"{directory}: {why}", hint=hint) for why, hint in _faults(directory, config)
    ]
    raise_all(problems)

    header = _header(directory / _WEIGHTS)
    parts = [(found, shape) for found, shape in _parts(header)]
    hidden = {
        shape[-1] for (_, part, side), shape in parts if side == "A" and part in _READS_HIDDEN
    }
    digest = hashlib.sha256()
    for file in (_CONFIG, _WEIGHTS):
        with (directory / file).open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return LocalAdapter(
        name,
        directory,
        max([int(config["r"]), *(shape[0] for (_, _, side), shape in parts if side == "A")]),
        str(config.get("base_model_name_or_path") or ""),
        frozenset(part for (_, part, _), _ in parts),
        max((layer + 1 for (layer, _, _), _ in parts), default=0),
        hidden.pop() if len(hidden) == 1 else 0,
        digest.hexdigest()[:12],
    )


def _faults(directory: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield why vLLM could or must not load it, with the fix (lora/peft_helper.py)."""
    again = "save it again: model.save_pretrained(DIRECTORY, safe_serialization=True)"
    pickles = sorted(each.name for each in directory.iterdir() if each.suffix in _PICKLES)
    if pickles:
        yield f"{', '.join(pickles)} may run code when it is read", f"remove it; {again}"
    elif not (directory / _WEIGHTS).is_file():
        yield f"it has no {_WEIGHTS}", again
    if config.get("peft_type") != "LORA":
        yield f"it is of the type {config.get('peft_type')}, not LORA", "vLLM serves LoRA alone"
    if type(config.get("r")) is not int or config["r"] < 1:
        yield f"{_CONFIG} has no rank `r`", again
    if config.get("use_dora"):
        yield "it uses DoRA, which vLLM does not load", "train it with use_dora=False"
    if config.get("modules_to_save"):
        names = ", ".join(map(str, config["modules_to_save"]))
        yield f"it replaces whole modules ({names}), which vLLM does not load", "merge it instead"


def _header(file: Path) -> Mapping[str, Any]:
    """Return the header of a safetensors file. Raises UsageError."""
    with file.open("rb") as opened:
        size = int.from_bytes(opened.read(8), "little")
        if not 2 <= size <= _MOST_HEADER:
            raise UsageError(f"{file} is not a safetensors file", hint="save the adapter again")
        return _json_object(file, opened.read(size))


def _json_object(file: Path, data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{file} cannot be read: no JSON object", hint="save the adapter again")
    return found


def _parts(header: Mapping[str, Any]) -> Iterator[tuple[tuple[int, str, str], list[int]]]:
    """Yield the layer, its part and the side (A or B) of each tensor, with the tensor's shape."""
    for name, tensor in header.items():
        found = _PART.search(name)
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if found and isinstance(shape, list) and len(shape) == 2:
            yield (int(found[1]), found[2], found[3]), shape
