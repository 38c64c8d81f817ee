"""docs/serving.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterctl.models.catalogue import CATALOGUE, CatalogueEntry
from clusterctl.planning.problems import possible_tp

GUIDE = (Path(__file__).parents[3] / "docs" / "serving.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.alias)
def test_the_table_of_models_is_the_catalogue(entry: CatalogueEntry) -> None:
    sizes = ", ".join(str(size) for size in possible_tp(entry.shape, 8))
    flags = " ".join(entry.tokens(None))

    assert f"| `{entry.alias}` | {entry.hub_id} | `{flags}` | {sizes} |" in GUIDE
