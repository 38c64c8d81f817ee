"""`--config file.yaml` in vLLM's own format: flags as keys, read on the operator's machine.

The file's content is passed on as arguments: hosts need no copy, its secrets stay out of their file
systems, and a changed line shows up in the diff of the service.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.serving.vllm_flags import Argument, normal_name


def read_config_file(path: Path) -> tuple[Argument, ...]:
    """Return the file's flags as arguments, each with `file:line:column` as its origin.

    Raises UsageError if the file cannot be read or is not a mapping, or with every value that
    cannot be passed to vLLM.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the vLLM config {path}: {reason}") from error
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> tuple[Argument, ...]:
    """Parse `text` as `read_config_file` does; `name` is the file's name for messages."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise UsageError(f"{place}: {error.problem or 'not YAML'}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not YAML: {error}") from error
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{_place(name, root)}: a vLLM config is a mapping of flags to values")
    found: dict[str, Argument] = {}
    problems: list[ClusterctlError] = []
    for key, value in root.value:
        try:
            argument = _argument(key, value, _place(name, key))
        except UsageError as error:
            problems.append(error)
            continue
        if first := found.get(argument.name):
            where = f"{argument.name} is already set at {first.origin}"
            problems.append(UsageError(f"{argument.origin}: {where}"))
        else:
            found[argument.name] = argument
    raise_all(problems)
    return tuple(argument for argument in found.values() if argument.values != _EMPTY)


_EMPTY = ("",)  # a key without a value or with an empty list: dropped


def _place(name: str, node: yaml.Node) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _argument(key: yaml.Node, value: yaml.Node, place: str) -> Argument:
    if not isinstance(key, yaml.ScalarNode) or not key.value:
        raise UsageError(f"{place}: a key must be the name of a vLLM flag")
    flag = normal_name(key.value.removeprefix("--"))
    try:
        loaded = yaml.SafeLoader("").construct_document(value)
    except yaml.YAMLError as error:
        raise UsageError(f"{place}: {error}") from error
    if isinstance(loaded, bool):
        return Argument(flag, negated=not loaded, origin=place)
    return Argument(flag, _values(loaded, value, place), origin=place)


def _values(loaded: Any, node: yaml.Node, place: str) -> tuple[str, ...]:
    """Return scalars as written (0.90 stays 0.90), lists item by item, mappings as JSON."""
    if loaded is None or loaded == []:
        return _EMPTY
    if isinstance(loaded, dict):
        try:
            return (json.dumps(loaded),)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{place}: cannot be written as JSON: {error}") from error
    if isinstance(node, yaml.SequenceNode):
        parts = zip(loaded, node.value, strict=True)
        return tuple(value for item, part in parts for value in _values(item, part, place))
    return (node.value,)
