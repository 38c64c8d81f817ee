"""Find a model's directories on a host, in one round trip per host."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from clusterctl import deadlines
from clusterctl.errors import CommandFailed
from clusterctl.models.config_json import described
from clusterctl.models.shape import ModelShape
from clusterctl.transport.base import Transport


@dataclass(frozen=True)
class ModelDirectory:
    """A directory on a host, as the probe found it."""

    path: str
    config: str | None = None  # Text of config.json
    weight_files: int = 0
    weight_bytes: int = 0
    pointers: int = 0  # Files that git-lfs left in place of weights
    # Shards of the index that are missing, as after an interrupted copy.
    missing: tuple[str, ...] = ()
    tokenizer: bool = False
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
    def shape(self) -> ModelShape | None:
        return described(self.config)

    @property
    def config_hash(self) -> str:
        """The hash of the config's text; empty without a config."""
        return hashlib.sha256(self.config.encode()).hexdigest()[:12] if self.config else ""


def look_for(transport: Transport, candidates: Sequence[str]) -> tuple[ModelDirectory, ...]:
    """Return the candidate directories that exist on the host, in their order. Changes nothing.

    Raises ConnectionFailed, CommandTimedOut, and CommandFailed if there is no usable shell.
    """
    script = resources.files(__package__).joinpath("probe.sh").read_text(encoding="utf-8")
    argv = ["sh", "-c", script, "model-probe", *candidates]
    result = transport.run(argv, sudo=True, timeout=deadlines.MODEL_LOOK)
    if not result.ok:
        raise CommandFailed(
            "the directories of the model could not be read",
            host=transport.host.name,
            detail=result.last_lines(),
        )
    return parse_probe(result.stdout)


def parse_probe(text: str) -> tuple[ModelDirectory, ...]:
    """Parse the records in the probe's output, skipping truncated ones."""
    found: list[ModelDirectory] = []
    record: list[str] = []
    for line in text.splitlines():
        if line == "end" and record:
            found.append(_directory(record))
            record = []
        elif line.startswith("directory "):
            record = [line]
        elif record:
            record.append(line)
    return tuple(found)


def _directory(record: Sequence[str]) -> ModelDirectory:
    files, total, pointers = (int(n) for n in _first(record, "weights", "0 0 0").split())
    return ModelDirectory(
        path=_first(record, "directory", ""),
        config=_content(record),
        weight_files=files,
        weight_bytes=total,
        pointers=pointers,
        missing=_all(record, "missing"),
        tokenizer="tokenizer" in record,
        chat_template="chat-template" in record,
        random_weights="random-weights" in record,
        unreadable=_all(record, "unreadable"),
    )


def _content(record: Sequence[str]) -> str | None:
    content = [line[1:] for line in record if line.startswith("|")]
    return "\n".join(content) if content else None


def _all(record: Sequence[str], word: str) -> tuple[str, ...]:
    return tuple(line.partition(" ")[2] for line in record if line.startswith(f"{word} "))


def _first(record: Sequence[str], word: str, otherwise: str) -> str:
    return next(iter(_all(record, word)), otherwise)
