"""Writes clusterctl/published/xids.json: what NVIDIA's catalog says of each Xid error.

    python -m scripts.xids CATALOG.go

The catalog is a page of NVIDIA's (SOURCE). gpud converts its spreadsheet to Go, and states the day;
CATALOG.go is that file: components/accelerator/nvidia/xid/catalog_generated.go of
https://github.com/leptonai/gpud.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

SOURCE = "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
TABLE = Path(__file__).parents[1] / "clusterctl/published/xids.json"

_DAY = re.compile(r"Generated at (\d{4}-\d{2}-\d{2})T\S+ Source: (\S+)")
_ENTRY = re.compile(
    r'\{Code: (\d+), Mnemonic: "[^"]*", Description: "([^"]*)", ImmediateResolution: "([^"]*)"'
)


def table(text: str) -> str:
    """Return the table as JSON, a line for each Xid in use. Raises ValueError for another file."""
    head = _DAY.search(text)
    if head is None or head[2] != SOURCE:
        raise ValueError(f"not made from {SOURCE}")
    entries = {
        code: {"what": what.replace("\\n", " "), "action": action}
        for code, what, action in _ENTRY.findall(text)
        if what != "Unused"
    }
    lines = ",\n".join(f'  "{code}": {json.dumps(entry)}' for code, entry in entries.items())
    return f'{{"source": "{SOURCE}", "date": "{head[1]}", "xids": {{\n{lines}\n}}}}\n'


if __name__ == "__main__":
    TABLE.write_text(table(Path(sys.argv[1]).read_text()))
