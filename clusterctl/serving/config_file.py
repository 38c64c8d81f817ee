"""`--config file.yaml` in vLLM's own format: flags as keys, read on the operator's machine.

The file is shipped as arguments, not as a file: hosts need no copy of it, its secrets stay out
of their file systems, and a changed line shows up in the diff of the service.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from clusterctl.errors import ClusterctlError, UsageError, raise_all
from clusterctl.serving.vllm_flags import Argument, normal_name


def read_config_file(path: Path) -> tuple[Argument, ...]:
    """The arguments that the file stands for, each with `file:line:column` as its origin.

    Raises UsageError when it cannot be read or is no mapping, and for every value that vLLM
    could not take, all of them at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the vLLM config {path}: {reason}") from error
    return parse_config(text, str(path))


def parse_config(text: str, name: str) -> tuple[Argument, ...]:
    """As `read_config_file`, from the text of a file called `name`."""
    root = _compose(text, name)
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{_place(name, root)}: a vLLM config is a mapping of flags to values")
    found: dict[str, Argument] = {}
    problems: list[ClusterctlError] = []
    for key, value in root.value:
        try:
            argument = _argument(key, value, name)
            _refuse_twice(found, argument)
        except UsageError as error:
            problems.append(error)
        else:
            found[argument.name] = argument
    raise_all(problems)
    return tuple(argument for argument in found.values() if argument.values != _EMPTY)


_EMPTY = ("",)  # The values of a key without a value, or with an empty list: it says nothing


def _compose(text: str, name: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise UsageError(f"{place}: {error.problem or 'not YAML'}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not YAML: {error}") from error


def _place(name: str, node: yaml.Node) -> str:
    return f"{name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def _argument(key: yaml.Node, value: yaml.Node, name: str) -> Argument:
    place = _place(name, key)
    if not isinstance(key, yaml.ScalarNode) or not key.value:
        raise UsageError(f"{place}: a key must be the name of a vLLM flag")
    flag = normal_name(key.value.removeprefix("--"))
    loaded = _load(value, place)
    if isinstance(loaded, bool):
        return Argument(flag, negated=not loaded, origin=place)
    return Argument(flag, _values(loaded, value, place), origin=place)


def _load(node: yaml.Node, place: str) -> Any:
    try:
        return yaml.SafeLoader("").construct_document(node)
    except yaml.YAMLError as error:
        raise UsageError(f"{place}: {error}") from error


def _values(loaded: Any, node: yaml.Node, place: str) -> tuple[str, ...]:
    """Scalars as written (0.90 stays 0.90), lists item by item, mappings as JSON."""
    if loaded is None or loaded == []:
        return _EMPTY
    if isinstance(loaded, dict):
        return (_as_json(loaded, place),)
    if isinstance(node, yaml.SequenceNode):
        parts = zip(loaded, node.value, strict=True)
        return tuple(value for item, part in parts for value in _values(item, part, place))
    return (node.value,)


def _as_json(value: Any, place: str) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{place}: cannot be written as JSON: {error}") from error


def _refuse_twice(found: dict[str, Argument], argument: Argument) -> None:
    first = found.get(argument.name)
    if first is not None:
        raise UsageError(f"{argument.origin}: {argument.name} is already set at {first.origin}")
