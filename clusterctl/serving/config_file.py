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

    def place_of(mark: yaml.Mark) -> str:
        return f"{name}:{mark.line + 1}:{mark.column + 1}"

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = place_of(error.problem_mark) if error.problem_mark else name
        raise UsageError(f"{place}: {error.problem or 'not YAML'}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{name}: not YAML: {error}") from error
    if root is None:
        return ()
    if not isinstance(root, yaml.MappingNode):
        place = place_of(root.start_mark)
        raise UsageError(f"{place}: a vLLM config is a mapping of flags to values")
    found: dict[str, Argument] = {}
    problems: list[ClusterctlError] = []
    for key, value in root.value:
        place = place_of(key.start_mark)
        if not isinstance(key, yaml.ScalarNode) or not key.value:
            problems.append(UsageError(f"{place}: a key must be the name of a vLLM flag"))
            continue
        flag = normal_name(key.value.removeprefix("--"))
        try:
            loaded = yaml.SafeLoader("").construct_document(value)
            values = () if isinstance(loaded, bool) else _values(loaded, value)
        except (yaml.YAMLError, TypeError, ValueError) as error:
            problems.append(UsageError(f"{place}: {error}"))
            continue
        if first := found.get(flag):
            problems.append(UsageError(f"{place}: {flag} is already set at {first.origin}"))
            continue

        # `no-FLAG: true` becomes --no-FLAG, and `no-FLAG: false` is left out, as in vLLM
        # (vllm/utils/argparse_utils.py, `load_config_file`).
        opposite = flag.startswith("no-") and isinstance(loaded, bool)
        if opposite and not loaded:
            continue
        whole = flag.removeprefix("no-") if opposite else flag
        found[flag] = Argument(whole, values, negated=opposite or loaded is False, origin=place)
    raise_all(problems)
    return tuple(argument for argument in found.values() if argument.values != _EMPTY)


_EMPTY = ("",)  # a key without a value or with an empty list: dropped


def _values(loaded: Any, node: yaml.Node) -> tuple[str, ...]:
    """Return scalars as written (0.90 stays 0.90), lists item by item, mappings as JSON."""
    if loaded is None or loaded == []:
        return _EMPTY
    if isinstance(loaded, dict):
        try:
            return (json.dumps(loaded),)
        except (TypeError, ValueError) as error:
            raise ValueError(f"cannot be written as JSON: {error}") from error
    if isinstance(node, yaml.SequenceNode):
        parts = zip(loaded, node.value, strict=True)
        return tuple(value for item, part in parts for value in _values(item, part))
    return (node.value,)
