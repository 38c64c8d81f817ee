"""The public config.json of a model of the catalogue, for tests that change it."""

from __future__ import annotations

from typing import Any

from clusterctl.models.catalogue import CATALOGUE, by_hub_id


def config_of(hub_id: str) -> dict[str, Any]:
    entry = by_hub_id(hub_id)
    assert entry is not None, hub_id
    return dict(entry.config)


# The models whose figures are checked against those of their publishers
SHAPED = tuple(entry for entry in CATALOGUE if entry.given)
