"""The JSON Schema (draft 2020-12) of the inventory file, for editors.

It is generated from the models, in the form of the file: hosts are a mapping by name, GPUs a count
or a list. What a schema cannot express (one head, no duplicate address) only `load` checks.
To publish it:

    python -m clusterctl.inventory.schema > inventory/schema.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from clusterctl.inventory.model import MOST_GPUS, Inventory
from clusterctl.inventory.shape import EXTENSION
from clusterctl.inventory.values import NAME, SET_BY_CLUSTERCTL

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_Schema = dict[str, Any]


def schema() -> _Schema:
    """Return the schema as plain data."""
    root = Inventory.model_json_schema()
    for part in _parts(root):
        _simplify(part)
    _as_in_the_file(root)
    return {
        "$schema": DRAFT,
        "title": "clusterctl inventory",
        **root,
        "description": "The hosts of a cluster and how to reach them; every key: docs/inventory.md",
    }


def render() -> str:
    """Return the schema as the text of inventory/schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


def _parts(value: object) -> Iterator[_Schema]:
    """Yield every mapping inside, the innermost first."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _parts(inner)
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)


def _simplify(part: _Schema) -> None:
    """Drop what is useless to readers: titles, nulls, defaults of whole sections."""
    if isinstance(part.get("title"), str):
        del part["title"]
    if "default" in part and part["default"] in (None, {}, []):
        del part["default"]
    if isinstance(part.get("default"), dict) and "$ref" in part:
        del part["default"]
    if part.get("format") == "path":
        del part["format"]
    if "patternProperties" in part:
        part["additionalProperties"] = False
    # A key that may be left out is not one that may be null.
    choices = [one for one in part.get("anyOf", []) if one != {"type": "null"}]
    if len(choices) == 1:
        del part["anyOf"]
        part.update(choices[0])
    elif choices:
        part["anyOf"] = choices


def _as_in_the_file(root: _Schema) -> None:
    host = root["$defs"]["Host"]
    del host["properties"]["name"], root["properties"]["source"]
    host["required"].remove("name")
    host["description"] = "One machine, under its name."
    host["properties"]["gpus"] = _gpus(host["properties"]["gpus"])
    for owner in (root, host):
        _refuse_reserved(owner["properties"]["env"])
        _allow_numbers(owner["properties"]["env"])
    _allow_numbers(host["properties"]["labels"])
    host["properties"]["labels"]["propertyNames"] = {"not": {"const": "role"}}
    root["properties"]["hosts"] = {
        "description": root["properties"]["hosts"]["description"],
        "type": "object",
        "minProperties": 1,
        "propertyNames": {"pattern": NAME},
        "additionalProperties": {"$ref": "#/$defs/Host"},
    }
    root["patternProperties"] = {
        f"^{EXTENSION}": {"description": "Yours: a place for anchors; clusterctl skips it."}
    }


def _gpus(listed: _Schema) -> _Schema:
    description = listed.pop("description")
    count = {"type": "integer", "minimum": 0, "maximum": MOST_GPUS}
    return {"description": description, "anyOf": [count, {**listed, "maxItems": MOST_GPUS}]}


def _refuse_reserved(env: _Schema) -> None:
    """Exclude variables that clusterctl sets itself, by prefix where they share one."""
    names = (f"{name}.*" if name.endswith("_") else name for name in SET_BY_CLUSTERCTL)
    env["propertyNames"] = {"not": {"pattern": f"^({'|'.join(names)})$"}}


def _allow_numbers(mapping: _Schema) -> None:
    """Allow numbers, which `load` takes as the text that was written."""
    for value in mapping["patternProperties"].values():
        value["type"] = ["string", "number"]


if __name__ == "__main__":
    sys.stdout.write(render())
