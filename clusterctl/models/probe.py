"""Find a model's directories on a host, in one round trip per host."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from clusterctl import deadlines
from clusterctl.errors import MALFORMED
from clusterctl.models.config_json import described
from clusterctl.models.shape import ModelShape
from clusterctl.transport.base import Transport


@dataclass(frozen=True)
class ModelDirectory:
    """A directory on a host, as the probe found it."""

    path: str
    config: str | None = None  # Text of config.json
    weight_files: int = 0
    pointers: int = 0  # Files that git-lfs left in place of weights
    # Shards of the index that are missing, as after an interrupted copy.
    missing: tuple[str, ...] = ()
    chat_template: bool = False
    # Weights are left out on purpose, as marked by a file RANDOM_WEIGHTS (the lab).
    random_weights: bool = False
    unreadable: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.config is not None and self.weight_files > 0 and not self.broken

    @property
    def broken(self) -> bool:
        return bool(self.pointers or self.missing)

    @property
    def shape_only(self) -> bool:
        """Whether there is a config.json but no weights, on purpose or by accident."""
        return self.config is not None and not self.weight_files and not self.broken

    def usable(self, *, random_weights: bool) -> bool:
        """Return whether vLLM can start from it; with `random_weights`, config.json is enough."""
        return self.config is not None if self.random_weights or random_weights else self.complete

    @property
    def defect(self) -> str:
        """Why an unusable directory is incomplete."""
        if self.unreadable:
            return "has a config.json that cannot be read, or only through another user's link"
        if self.config is None:
            return "has no config.json"
        if self.pointers:
            return f"has {self.pointers} git-lfs pointers in place of weights"
        if self.missing:
            files = ", ".join(self.missing[:3])
            return f"lacks {len(self.missing)} of its weight files: {files}"
        return "has no weights, only a config.json"

    @property
    def shape(self) -> ModelShape | None:
        return described(self.config)


def reach() -> str:
    """Return the common beginning of scripts that read models."""
    return resources.files(__package__).joinpath("reach.sh").read_text(encoding="utf-8")


def look_for(transport: Transport, candidates: Sequence[str]) -> tuple[ModelDirectory, ...]:
    """Return the candidate directories that exist on the host, in their order. Changes nothing.

    Raises ConnectionFailed, CommandTimedOut, and CommandFailed if there is no usable shell.
    """
    script = resources.files(__package__).joinpath("probe.sh").read_text(encoding="utf-8")
    argv = ["sh", "-c", reach() + script, "model-probe", *candidates]
    result = transport.run(argv, sudo=True, timeout=deadlines.MODEL_LOOK)
    return parse_probe(result.output("looking for the model", transport.host.name))


def parse_probe(text: str) -> tuple[ModelDirectory, ...]:
    """Parse the records in the probe's output, skipping truncated ones."""
    found: list[ModelDirectory] = []
    record: list[str] = []
    for line in text.splitlines():
        if line.startswith("directory "):
            record = [line]
        elif record and line != "end":
            record.append(line)
        elif record:
            content = "\n".join(line[1:] for line in record if line.startswith("|"))
            quantization = "\n".join(line[1:] for line in record if line.startswith("+"))
            counts = _all(record, "weights")[:1] or ("0 0",)
            files, pointers = map(int, counts[0].split())
            found.append(
                ModelDirectory(
                    path=_all(record, "directory")[0],
                    config=_with_quantization(content, quantization) or None,
                    weight_files=files,
                    pointers=pointers,
                    missing=_all(record, "missing"),
                    chat_template="chat-template" in record,
                    random_weights="random-weights" in record,
                    unreadable=_all(record, "unreadable"),
                )
            )
            record = []
    return tuple(found)


def _with_quantization(config: str, quantization: str) -> str:
    """Return the text of config.json, completed with ModelOpt's file if it lacks that."""
    if not config or not quantization:
        return config
    try:
        found, more = json.loads(config), json.loads(quantization)
        if found.get("quantization_config"):
            return config
        return json.dumps({**found, "quantization_config": {**more, "quant_method": "modelopt"}})
    except (*MALFORMED, AttributeError, TypeError):
        return config  # told where config.json is read


def _all(record: Sequence[str], word: str) -> tuple[str, ...]:
    return tuple(line.partition(" ")[2] for line in record if line.startswith(f"{word} "))
