"""LoRA adapters on this machine: what they are, and whether a model accepts them. Only reads
files."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

from clusterctl.errors import ClusterctlError, Problems, UsageError, raise_all
from clusterctl.models.shape import ModelShape
from clusterctl.serving.request import ServiceRequest

DIRECTORY = "adapters"  # Below the models' directory of hosts

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_MOST_HEADER = 16 * 2**20  # Bytes; that of an adapter has some 100 KiB
_TOWER = re.compile("vision|visual|audio|encoder")  # Layers that are not the language model's
_PART = re.compile(r"\blayers\.(\d+)\..*?([a-z0-9_]+)\.lora_([AB])\b")
_FIRST = re.compile(r"\.lora_(embedding_)?A\b")  # The first of an adapter's two matrices

DEFAULT_RANK = 16  # vLLM's --max-lora-rank


@dataclass(frozen=True)
class Width:
    """How wide the vectors are that a part of a layer takes or gives, which tells models apart."""

    layer: int
    part: str
    takes: bool
    numbers: int


@dataclass(frozen=True)
class LocalAdapter:
    """An adapter in a directory on this machine."""

    name: str  # The `model` of requests
    directory: Path
    rank: int
    base: str  # The model that it was trained on, as it names it; may be empty
    widths: tuple[Width, ...]
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
        other = shape and next(filter(None, (_misfit(shape, each) for each in self.widths)), "")
        if other:
            yield UsageError(
                f"{what} is for another model: {other}",
                hint=f"it names its base as {self.base}" if self.base else None,
            )


def _misfit(shape: ModelShape, width: Width) -> str:
    """Return what shows that it is of another model; empty if nothing does."""
    if width.layer >= len(shape.layers):
        return (
            f"it changes layer {width.layer + 1}, and the service's model has {len(shape.layers)}"
        )
    expected = shape.projections[width.layer].get(width.part)
    if expected is None:
        return ""  # vLLM itself knows
    verb, right = ("takes", expected.takes) if width.takes else ("gives", expected.gives)
    if width.numbers == right:
        return ""
    return (
        f"its {width.part} {verb} {width.numbers} numbers, and that of the service's model {right}"
    )


def _rank_flag(rank: int) -> int:
    """Return the value of --max-lora-rank for it, among those vLLM accepts (config/lora.py)."""
    return next((each for each in (1, 8, 16, 32, 64, 128, 256, 320, 512) if each >= rank), rank)


def is_adapter_name(name: str) -> bool:
    return bool(_NAME.match(name))


def parse_adapter(text: str) -> tuple[str, Path]:
    """Return name and directory of `NAME=DIRECTORY`. Raises UsageError."""
    name, _, directory = text.partition("=")
    if not directory or not is_adapter_name(name):
        raise UsageError(
            f"{text!r} is not NAME=DIRECTORY",
            hint="sql=./sql-lora; a name has letters, digits, and . _ - between them, at most 63",
        )
    return name, Path(directory)


def parse_adapters(texts: Sequence[str]) -> list[tuple[str, Path]]:
    """Return names and directories. Raises UsageError, for two of one name, too."""
    found = [parse_adapter(text) for text in texts]
    for name, number in Counter(name for name, _ in found).items():
        if number > 1:
            raise UsageError(f"two adapters are named {name}", hint="requests choose by the name")
    return found


def with_adapters(
    request: ServiceRequest, models: str, base: Path
) -> tuple[ServiceRequest, tuple[LocalAdapter, ...]]:
    """Return the request with the paths of its adapters on hosts, and these adapters. Relative
    directories start at `base`. Raises all reasons why vLLM could or must not load them."""
    found, problems = list[LocalAdapter](), list[ClusterctlError]()
    for name, directory in (request.adapters or {}).items():
        try:
            # An unknown user's home stays as it is written, and cannot be read.
            found.append(read_adapter(name, base / os.path.expanduser(directory)))  # noqa: PTH111
        except (UsageError, Problems) as error:
            problems.append(error)
    raise_all(problems)
    if request.adapters is None:
        return request, ()
    paths = {each.name: f"{models}/{each.path}" for each in found}
    return replace(request, adapters=paths), tuple(found)


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
    if not any(_FIRST.search(each) for each in header):
        raise UsageError(
            f"{directory / _WEIGHTS} has no weights of an adapter: the model itself would answer",
            hint="save the adapter again",
        )
    parts = list(_parts(header))
    digest = hashlib.sha256()
    for file in (_CONFIG, _WEIGHTS):
        with (directory / file).open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    return LocalAdapter(
        name,
        directory,
        max([int(config["r"]), *(shape[0] for _, _, side, shape in parts if side == "A")]),
        str(config.get("base_model_name_or_path") or ""),
        tuple(
            Width(layer, part, side == "A", shape[-1] if side == "A" else shape[0])
            for layer, part, side, shape in parts
        ),
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
        raise UsageError(f"{file} cannot be read: not a JSON object", hint="save the adapter again")
    return found


def _parts(header: Mapping[str, Any]) -> Iterator[tuple[int, str, str, list[int]]]:
    """Yield layer, part, side (A or B) and shape of the tensors of the language model."""
    for name, tensor in header.items():
        found = None if _TOWER.search(name) else _PART.search(name)
        shape = tensor.get("shape") if isinstance(tensor, dict) else None
        if found and _is_matrix(shape):
            yield int(found[1]), found[2], found[3], shape


def _is_matrix(shape: object) -> TypeGuard[list[int]]:
    return isinstance(shape, list) and [type(each) for each in shape] == [int, int]
