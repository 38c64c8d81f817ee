"""Tables of vendors' published data, which go out of date: JSON files with their source and its
date. `scripts/table_ages.py` lists the old ones."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files as resource_files
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """Return NAME.json of this directory."""
    file = resource_files("clusterctl.published").joinpath(f"{name}.json")
    document: dict[str, Any] = json.loads(file.read_text())
    return document
