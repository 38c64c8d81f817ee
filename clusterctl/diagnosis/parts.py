"""The parts of the software that may fail, and what runs in them: `parts.yaml` as typed data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from clusterctl.node.attempt import stage_of

# Frames that belong to no part: they call what the part gave them.
_NEUTRAL = ("/torch/nn/", "/torch/utils/", "/torch/_ops", "/torch/_C", "<frozen", "<string>")

_BY_STAGE = {
    "ray": "starting ranks through Ray",
    "ranks": "connecting ranks",
    "weights": "loading the model",
    "kv-cache": "setting up the KV cache",
    "graphs": "capturing CUDA graphs",
    "warm-up": "warming up",
}


@dataclass(frozen=True)
class Part:
    """A part of the software; the fields are explained in parts.yaml."""

    name: str
    files: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    says: tuple[str, ...] = ()


def part_of(paths: Sequence[str], line: str, message: str) -> Part:
    """Return the part that raised an exception: `paths` of its traceback, innermost first."""
    for part in parts():
        if any(words in message for words in part.says):
            return part

    own = [path for path in paths if not any(one in path for one in _NEUTRAL)]
    for path in [*own, line]:
        if part_there := _with_file(path.lower()):
            return part_there
    return Part("a program")


def _with_file(path: str) -> Part | None:
    return next((part for part in parts() if any(one in path for one in part.files)), None)


def running_in(functions: Sequence[str], before: Sequence[str]) -> str:
    """Return what was running: by the functions of a traceback, innermost first, else by the last
    line before it that shows a stage of the start; empty if neither does."""
    of_functions = _running()
    for function in functions:
        if function in of_functions:
            return of_functions[function]

    for line in reversed(before):
        if stage := stage_of(line):
            return _BY_STAGE.get(stage, "")
    return ""


@cache
def parts() -> tuple[Part, ...]:
    """Return all parts in the order in which a line is compared with them."""
    return tuple(
        Part(**{key: _typed(value) for key, value in entry.items()}) for entry in _read()["parts"]
    )


@cache
def _running() -> dict[str, str]:
    return {name: text for text, names in _read()["running"].items() for name in names}


def _typed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def _read() -> dict[str, Any]:
    text = files("clusterctl.diagnosis").joinpath("parts.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
