"""The settings of vLLM that a failure is about: those that its message names, and those that the
part which failed reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from clusterctl.diagnosis.kinds import FailureKind
from clusterctl.diagnosis.parts import Part, settings_of_parts

MOST_FLAGS = 4
_SHORTEST_VALUE = 2  # characters of a setting's value that a message may have by chance

_SETTING = re.compile(r"'(\w+)': ('[^']*'|\{[^{}]*\}|[^,{}]+)")
_ARGUMENTS = re.compile(r"'?\b(\w+)'?[:=]")
_FLAG = re.compile(r"--[a-z][a-z0-9-]+(?!\S*$)|\b[a-z]+(?:_[a-z]+)+\b")
_VARIABLE = re.compile(
    r"\b(?:VLLM|NCCL|GLOO|RAY|HF|UCX|NVSHMEM|LMCACHE|FLASHINFER|TRITON|CUDA_VISIBLE|CUDA_HOME|PYTORCH)"
    r"_[A-Z0-9_]+\b"
)
# What makes a library tell more, which messages recommend, and no cause
_NO_CAUSE = re.compile(r"_ERR|_(?:DEBUG|LOG|LOGGING|TRACE)")
_STANDARD = frozenset({"true", "false", "none", "auto"})
_NOT_TO_CHANGE = frozenset({"model", "served_model_name", "host", "port", "api_key", "tokenizer"})


def settings_in(arguments: str) -> dict[str, str]:
    """Return the settings in vLLM's log line about them, by name."""
    return dict(_SETTING.findall(arguments))


def named_in(part: Part, message: str, arguments: str, kind: FailureKind | None) -> tuple[str, ...]:
    """Return the flags that a message names, or whose value it has if it is about values, and the
    variables of the environment."""
    own = settings_in(arguments)
    known = own.keys() | (frozenset() if part.is_foreign else settings_of_parts())
    words = [word for word in _FLAG.findall(message) if word.startswith("--") or word in known]
    for name, value in own.items() if kind and kind.of_values else ():
        text = value.strip("'")
        odd = len(text) > _SHORTEST_VALUE and text.lower() not in _STANDARD
        if odd and name not in _NOT_TO_CHANGE and _stands_in(text, message):
            words.append(name)
    flags = [f"--{word.lstrip('-').replace('_', '-')}" for word in words]
    found = [name for name in _VARIABLE.findall(message) if not _NO_CAUSE.search(name)]
    variables = [f"{name} in `env`" for name in found]
    return tuple(dict.fromkeys((*flags, *variables)))[:MOST_FLAGS]


def _stands_in(text: str, message: str) -> bool:
    found = re.search(rf"(?:['\"`=(]){re.escape(text)}(?![\w.-])", message, re.IGNORECASE)
    return found is not None


def read_by(part: Part, arguments: str, named: Sequence[str]) -> tuple[str, ...]:
    """Return the flags that a part reads, apart from those that are named already; if the log shows
    which are set, only those."""
    own = set(_ARGUMENTS.findall(arguments))
    read = [word for word in part.settings if word in own or not own]
    flags = [f"--{word.replace('_', '-')}" for word in read]
    return tuple(flag for flag in flags if flag not in named)[:MOST_FLAGS]
