"""The models with an alias: their Hub id, their public config.json, and the vLLM flags that they
need. The data is in catalogue.json, where each model is one line; `scripts/catalogue.py` makes the
`config` of a new one, which is what of its config.json affects memory. So `fit` works without
weights and without a network.

Where each figure is from, and of which date, stands under `sources`. The flags are those of vLLM's
documentation and of vllm-project/recipes; `since` is a release whose own documentation or list of
parsers has them. `own_code` is as in vLLM's tests/models/registry.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clusterctl.models.config_json import describe
from clusterctl.models.shape import ModelShape
from clusterctl.models.version import Version, parse_version

Config = Mapping[str, Any]


@dataclass(frozen=True)
class ModelFlag:
    """Arguments of `vllm serve`, and the releases that accept them."""

    tokens: tuple[str, ...]
    since: Version = (0, 0, 0)
    until: Version | None = None  # The first release without them

    def known_to(self, version: Version | None) -> bool:
        """Return whether that release accepts them. An unknown version counts as the newest."""
        if version is None:
            return self.until is None
        return self.since <= version and (self.until is None or version < self.until)


@dataclass(frozen=True)
class CatalogueEntry:
    """One model of the catalogue."""

    alias: str
    hub_id: str
    config: Config  # The keys of its config.json that affect memory
    # Further aliases; they are also common names of directories with this model.
    other_names: tuple[str, ...] = ()
    flags: tuple[ModelFlag, ...] = ()
    note: str = ""
    billions: float = 0.0  # Published number of parameters, without layers that vLLM does not load
    # vLLM does not start it without --trust-remote-code, which the user has to give: it runs Python
    # code that comes with the model.
    own_code: bool = False

    @cached_property
    def shape(self) -> ModelShape:
        return describe(self.config, self.hub_id, whole=False)

    @property
    def directory(self) -> str:
        """The directory's name after `git clone` or a download by name."""
        return self.hub_id.partition("/")[2]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.alias, *self.other_names)

    def tokens(self, version: Version | None) -> tuple[str, ...]:
        """Return the flags that this vLLM accepts, as tokens of a command line."""
        known = (flag.tokens for flag in self.flags if flag.known_to(version))
        return tuple(token for tokens in known for token in tokens)


def _catalogue() -> tuple[CatalogueEntry, ...]:
    document = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    flags = {
        name: tuple(
            ModelFlag(
                tuple(each["tokens"]),
                parse_version(each.get("since", "")) or (0, 0, 0),
                parse_version(each.get("until", "")),
            )
            for each in group
        )
        for name, group in document["flags"].items()
    }
    return tuple(
        CatalogueEntry(
            model["alias"],
            model["hub_id"],
            model.get("config", {}),  # scripts/catalogue.py has yet to fill in that of a new model
            tuple(model.get("names", ())),
            tuple(flag for name in model.get("flags", ()) for flag in flags[name]),
            model.get("note", ""),
            model["billions"],
            model.get("own_code", False),
        )
        for model in document["models"]
    )


CATALOGUE = _catalogue()


def by_alias(name: str) -> CatalogueEntry | None:
    """Return the entry with that alias, ignoring case."""
    folded = name.casefold()
    return next((entry for entry in CATALOGUE if folded in entry.names), None)


def by_hub_id(hub_id: str) -> CatalogueEntry | None:
    """Return the entry with that Hub id, ignoring case."""
    folded = hub_id.casefold()
    return next((entry for entry in CATALOGUE if entry.hub_id.casefold() == folded), None)


def by_directory(name: str) -> CatalogueEntry | None:
    """Return the entry for a directory of that name, judging by the name alone."""
    folded = name.casefold()
    found = (entry for entry in CATALOGUE if entry.directory.casefold() == folded)
    return next(found, None) or by_alias(name)
