"""The JSON Schema (draft 2020-12) of the inventory file, for editors.

It is generated from the pydantic classes, but describes the file: hosts are a mapping by name, GPUs
a count or a list. Rules that a schema cannot express (one head, no duplicate address) are checked
by `load`. To publish it:

    python -m clusterctl.inventory.schema > inventory/schema.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from clusterctl.inventory.load import EXTENSION
from clusterctl.inventory.model import MOST_GPUS, Inventory
from clusterctl.inventory.unsafe import DANGEROUS
from clusterctl.inventory.values import NAME, SET_BY_CLUSTERCTL

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_Schema = dict[str, Any]


def schema() -> _Schema:
    """Return the schema as plain data."""
    root = readable(Inventory)
    _as_in_the_file(root)
    return {
        "$schema": DRAFT,
        "title": "clusterctl inventory",
        **root,
        "description": "The hosts of a cluster and how to reach them; every key: docs/inventory.md",
    }


def readable(model: type[BaseModel]) -> _Schema:
    """Return pydantic's schema of the model, without what does not help readers of a file."""
    root = model.model_json_schema()
    for part in _parts(root):
        # Titles, nulls and defaults of whole sections do not help readers.
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
        # In the file an optional key may be absent, but not null.
        choices = [one for one in part.get("anyOf", []) if one != {"type": "null"}]
        if len(choices) == 1:
            del part["anyOf"]
            part.update(choices[0])
        elif choices:
            part["anyOf"] = choices
    return root


def render() -> str:
    """Return the schema as the text of inventory/schema.json."""
    return json.dumps(schema(), indent=2) + "\n"


def _parts(value: object) -> Iterator[_Schema]:
    """Yield every mapping inside `value`, innermost first."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from _parts(inner)
        yield value
    elif isinstance(value, list):
        for inner in value:
            yield from _parts(inner)


def _as_in_the_file(root: _Schema) -> None:
    host = root["$defs"]["Host"]
    del host["properties"]["name"], root["properties"]["source"]
    host["required"].remove("name")
    host["description"] = "One machine, by name."
    listed = host["properties"]["gpus"]
    description = listed.pop("description")
    count = {"type": "integer", "minimum": 0, "maximum": MOST_GPUS}
    counted = {"description": description, "anyOf": [count, {**listed, "maxItems": MOST_GPUS}]}
    host["properties"]["gpus"] = counted
    # Variables that clusterctl sets itself; names that end in `_` are prefixes.
    reserved = (f"{name}.*" if name.endswith("_") else name for name in SET_BY_CLUSTERCTL)
    refused = {"not": {"pattern": f"^({'|'.join([*reserved, *DANGEROUS])})$"}}
    labels, envs = host["properties"]["labels"], [it["properties"]["env"] for it in (root, host)]
    for env in envs:
        env["propertyNames"] = refused
    labels["propertyNames"] = {"not": {"const": "role"}}
    for mapping in (labels, *envs):  # `load` uses the original text of numbers
        for value in mapping["patternProperties"].values():
            value["type"] = ["string", "number"]
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


if __name__ == "__main__":
    sys.stdout.write(render())
