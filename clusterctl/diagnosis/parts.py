"""The parts of the software that may fail, and what runs in them: `parts.yaml` as typed data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

import yaml

from clusterctl.node.attempt import stage_of

# Frames that belong to no part: they call what the part gave them.
_NEUTRAL = (
    "/torch/nn/", "/torch/utils/", "/torch/_ops", "/torch/_C", "<frozen", "<string>", "tvm_ffi",
)  # fmt: skip
_FOREIGN = "the package "
_PACKAGE = re.compile(r"(?:.*(?:site|dist)-packages/)?(?P<name>\w+)/.*\.pyx?i?")

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
    about: tuple[str, ...] = ()
    calls: bool = False

    @property
    def is_foreign(self) -> bool:
        """Whether it is a package of which no more is known, with settings of its own."""
        return self.name.startswith(_FOREIGN)

    @property
    def of_all(self) -> bool:
        """Whether it says little, since all others run in it."""
        return self.calls and not self.settings


NO_PART, VLLM = Part("a program"), Part("vLLM")
COMPILING = Part("a kernel that is compiled at the start")


def part_of(paths: Sequence[str], module: str, line: str, message: str, code: str = "") -> Part:
    """Return the part that raised an exception: `paths` of its traceback, innermost first, the path
    of its class, and the innermost line of code.

    If that part calls all others, one further out, or the message, says more.
    """
    for part in parts():
        if any(words in message for words in part.says):
            return part

    own = [path for path in paths if not any(one in path for one in _NEUTRAL)]
    there = [part for part in map(_with_file, own) if part]
    of_class = _with_file(module) if module else None
    if of_class and not of_class.of_all:
        return of_class
    if there and not there[0].of_all:
        return there[0]

    told = [part for part in parts() if any(words in message + code for words in part.about)]
    callers = [part for part in there if not part.calls]
    telling = []  # vLLM runs in all parts, and PyTorch for one of them
    if there and there[0].name != VLLM.name:
        telling = [part for part in there if not part.of_all]
    package = _package(own[0]) if own and not there else None
    of_line = None if there else _with_file(line)
    found = (*callers, package, *told, *telling, *there, of_line)
    return next(filter(None, found), NO_PART)


def _package(path: str) -> Part | None:
    """Return the package of a file that is of no known part."""
    if path == "<unknown>":
        return Part("a compiled extension")
    match = _PACKAGE.fullmatch(path)
    return Part(f"{_FOREIGN}{match['name']}") if match else None


def _with_file(path: str) -> Part | None:
    small = path.lower() if path.startswith(("/", "<")) else f"/{path.lower()}"
    return next((part for part in parts() if any(one in small for one in part.files)), None)


def running_in(functions: Sequence[str], before: Sequence[str]) -> str:
    """Return what was running, according to the functions of a traceback, innermost first, else the
    last preceding line that shows a stage of the start; "" if neither does."""
    of_functions = _running()
    for function in functions:
        if function in of_functions:
            return of_functions[function]

    for line in reversed(before):
        if stage := _stage_of(line):
            return _BY_STAGE.get(stage, "")
    return ""


_stage_of = lru_cache(maxsize=1000)(stage_of)  # the same lines stand before many


@cache
def parts() -> tuple[Part, ...]:
    """Return all parts in the order in which a line is compared with them."""
    return tuple(
        Part(**{key: _typed(value) for key, value in entry.items()}) for entry in _read()["parts"]
    )


@cache
def settings_of_parts() -> frozenset[str]:
    """Return the arguments of vLLM that some part reads."""
    return frozenset(name for part in parts() for name in part.settings)


@cache
def _running() -> dict[str, str]:
    return {name: text for text, names in _read()["running"].items() for name in names}


def _typed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def _read() -> dict[str, Any]:
    text = files("clusterctl.diagnosis").joinpath("parts.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text))
