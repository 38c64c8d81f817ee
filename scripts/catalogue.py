#!/usr/bin/env python3
"""Makes the figures of clusterctl/models/catalogue.json from the models' own config.json, and
docs/catalogue.md from those.

    scripts/catalogue.py [--configs DIR] [HUB_ID...]     all with a config, or those named

To add a model, add a line to `models`, with the `source` of its config.json, and name it here. The
files come from the Hub (HF_ENDPOINT, HF_TOKEN), or from DIR as ORG--NAME.json. Of
each, the keys stay without which the model's shape would be another.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from clusterctl.errors import ClusterctlError  # noqa: E402
from clusterctl.models.catalogue import CATALOGUE as CATALOGUE_ENTRIES  # noqa: E402
from clusterctl.models.catalogue import CatalogueEntry  # noqa: E402
from clusterctl.models.config_files import parse_config  # noqa: E402
from clusterctl.models.config_json import describe  # noqa: E402
from clusterctl.models.version import show_version  # noqa: E402
from clusterctl.transfer.weights.huggingface import config_on_hub  # noqa: E402

CATALOGUE = ROOT / "clusterctl/models/catalogue.json"
PAGE = ROOT / "docs/catalogue.md"

# Of layers that vLLM does not load unless it is told to; `describe` notes that, and no more.
NOT_LOADED = "num_nextn_predict_layers"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--configs", type=Path, metavar="DIR")
    arguments.add_argument("hub_ids", nargs="*", metavar="HUB_ID")
    asked = arguments.parse_args()
    document = json.loads(CATALOGUE.read_text())
    for model in document["models"]:
        hub_id = model["hub_id"]
        if hub_id not in asked.hub_ids and (asked.hub_ids or "config" not in model):
            continue
        if asked.configs:
            file = asked.configs / f"{hub_id.replace('/', '--')}.json"
            config: Any = parse_config(file.read_text(), str(file))
        else:
            config = config_on_hub(hub_id).config
        made = shortened(config, hub_id)
        if model.get("config") != made:
            print(f"{hub_id}: {'changed' if 'config' in model else 'new'}")
        model["config"] = made
    CATALOGUE.write_text(lines(document))
    # Read anew: the catalogue was imported before it was written
    command = [sys.executable, "-c", "import catalogue; catalogue.write_page()"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True)


def write_page() -> None:
    text = PAGE.read_text()
    rows = [line for line in text.splitlines(keepends=True) if line.startswith("| `")]
    PAGE.write_text(text.replace("".join(rows), "\n".join(table()) + "\n"))


def table() -> list[str]:
    """Return the rows of docs/catalogue.md."""
    return ["| " + " | ".join(cells(entry)) + " |" for entry in CATALOGUE_ENTRIES]


def cells(entry: CatalogueEntry) -> tuple[str, ...]:
    """Return the cells of a model: alias, Hub id, kind, billions of parameters, first
    release, precisions with the GB that each needs at least, and flags."""
    precisions = [f"{each.precision} {each.least_gb}" for each in entry.editions if each.least_gb]
    return (
        f"`{entry.alias}`",
        entry.hub_id,
        entry.kind,
        f"{entry.billions:g}",
        show_version(entry.since) if any(entry.since) else "",
        ", ".join(precisions),
        " ".join(entry.tokens(None)),
    )


def shortened(config: dict[str, Any], hub_id: str) -> dict[str, Any]:
    """Return what of a config.json the model's shape depends on."""
    config = {key: value for key, value in deepcopy(config).items() if key != NOT_LOADED}
    shape = describe(config, hub_id, whole=False)
    for part in _parts(config):
        for key in [key for key in part if key != "architectures"]:
            value = part.pop(key)
            try:
                needed = describe(config, hub_id, whole=False) != shape
            except (ClusterctlError, KeyError):
                needed = True
            if needed:
                part[key] = value
    return config


def _parts(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a mapping, then those mappings in it that are left when the next one is asked for."""
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _parts(value)


def lines(document: dict[str, Any]) -> str:
    """Return the catalogue as JSON with a line for each flag, source and model."""
    parts = []
    for name, value in document.items():
        if isinstance(value, dict):
            rows = [f"  {json.dumps(key)}: {json.dumps(each)}" for key, each in value.items()]
            parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n }")
        elif isinstance(value, list):
            rows = [f"  {json.dumps(each, separators=(',', ':'))}" for each in value]
            parts.append(f" {json.dumps(name)}: [\n" + ",\n".join(rows) + "\n ]")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    main()
